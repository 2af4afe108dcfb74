"""The newest tick as plain data for the page: pure, SI units in the names, null for what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast.api.conditions import ConditionType
from holdfast.control.explanation import explained
from holdfast.control.report import cost_per_hour, iso
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import ConditionValue, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles
from holdfast.observe.cluster import Invalid, ServiceParts
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Halves, plain, span_of, worst_of
from holdfast.page.whatif import rates_by_accelerator, what_if

SPARK_SPANS = 4
"""Spans in one point of a sparkline: two minutes, of which the worst is shown."""

_COMING = (ReplicaPhase.STARTING, ReplicaPhase.UNSCHEDULABLE, ReplicaPhase.FAILING)
_STATUS = {True: "True", False: "False", None: "Unknown"}
_STATE = {True: "held", False: "missed", None: "unknown"}
_WORST_FIRST = ("invalid", "missed", "unknown", "held")


class Change(NamedTuple):
    """A decision that changed something; `at` is in seconds since the epoch."""

    at: float
    action: str
    reason: str
    message: str
    replicas: int


def figures(part: ServiceParts, decision: Decision) -> dict[str, float | None]:
    """Return what is kept of a tick, by the names of `COLUMNS`."""
    slo, bad = decision.slo, decision.slo.bad
    return {
        **_listed(part, decision),
        **_percentiles("ttft", slo.ttft),
        **_percentiles("tpot", slo.tpot),
        **_percentiles("e2e", slo.e2e),
        "bad_ttft_rps": bad.ttft_rps if bad else None,
        "bad_tpot_rps": bad.tpot_rps if bad else None,
        "bad_e2e_rps": bad.e2e_rps if bad else None,
        "bad_rejected_rps": bad.rejected_rps if bad else None,
        "bad_error_rps": bad.error_rps if bad else None,
    }


def _listed(part: ServiceParts, decision: Decision) -> dict[str, float | None]:
    """Those of them that stand in the list of all services as well."""
    slo, rates = decision.slo, rates_by_accelerator(decision)
    ready = [replica.accelerator for replica in part.replicas if replica.phase is ReplicaPhase.READY]
    known = all(name in rates for name in ready)
    return {
        "arrival_rps": slo.arrival_rps,
        "good_rps": slo.good_rps,
        "forecast_rps": decision.explanation.forecast_rps,
        "capacity_rps": sum(rates[name] for name in ready) if known else None,
        "missed_share": None if slo.attainment is None else 1.0 - slo.attainment,
        "budget_remaining": slo.budget_remaining,
        "desired_replicas": decision.verdict.replicas,
        "ready_replicas": len(ready),
        "starting_replicas": sum(replica.phase in _COMING for replica in part.replicas),
        "draining_replicas": sum(replica.phase is ReplicaPhase.DRAINING for replica in part.replicas),
        "dollars_per_hour": cost_per_hour(part),
    }


def _percentiles(name: str, seen: LatencyQuantiles) -> dict[str, float | None]:
    found = {"p50": seen.p50_seconds, "p95": seen.p95_seconds, "p99": seen.p99_seconds}
    return {f"{name}_{percentile}_seconds": seconds for percentile, seconds in found.items()}


def fleet(
    services: Mapping[ServiceKey, tuple[ServiceParts, Decision]],
    invalid: Sequence[Invalid],
    missed: Mapping[ServiceKey, Halves],
    at: float,
    since: float,
) -> dict[str, Any]:
    """Return all services, the worst first; `missed` is one row of a track by service, `since` its beginning."""
    rows = [_row(part, decision, missed.get(key)) for key, (part, decision) in services.items()]
    rows += [_invalid_row(entry) for entry in invalid if entry.key not in services]
    rows.sort(key=_urgency)
    return {
        "at": at,
        "history_since": since,
        "spark_from": _first_at(at),
        "spark_step_seconds": SPARK_SPANS * SPAN_SECONDS,
        "counts": {state: sum(row["state"] == state for row in rows) for state in _WORST_FIRST},
        "services": rows,
    }


def service(
    part: ServiceParts, decision: Decision, track: Halves, changes: Iterable[Change], at: float, since: float
) -> dict[str, Any]:
    """Return one service with its time axis; `track` is (COLUMNS, POINTS) up to `at`."""
    spec, first = part.spec, _first_at(at)
    return {
        **_row(part, decision, None),
        "at": at,
        "history_since": since,
        "slo": {
            "ttft_seconds": spec.slo.ttft_seconds,
            "tpot_seconds": spec.slo.tpot_seconds,
            "e2e_seconds": spec.slo.e2e_seconds,
            "source": decision.slo.source,
        },
        "bad_source": None if decision.slo.bad is None else "exact" if decision.slo.bad.exact else "bounds",
        "limits": {"min": spec.min_replicas, "max": spec.max_replicas, "pinned": spec.pinned_replicas},
        "conditions": [_condition(value) for value in decision.conditions],
        "series": {
            "times": [first + SPAN_SECONDS * point for point in range(POINTS)],
            **{name: plain(row) for name, row in zip(COLUMNS, track, strict=True)},
        },
        "changes": [change._asdict() for change in changes],
        "decision": explained(decision.verdict, decision, iso(at)).to_dict(),
        "recommendation": _recommendation(decision, at),
        "what_if": finite(what_if(spec, decision)),
    }


def finite(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(part: ServiceParts, decision: Decision, missed: Halves | None) -> dict[str, Any]:
    spec, verdict, told = part.spec, decision.verdict, _told(decision)
    row = {
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "model": spec.model_uri,
        "state": _STATE[told.status] if told else "unknown",
        "reason": str(told.reason) if told else "",
        "message": told.message if told else "",
        "objective": spec.slo.objective,
        "window_seconds": spec.slo.window_seconds,
        "attainment": decision.slo.attainment,
        "action": verdict.action.value,
        "action_reason": str(verdict.reason),
        "action_message": verdict.message,
        "spark": None if missed is None else _spark(missed),
    }
    return finite({**row, **_listed(part, decision)})  # type: ignore[no-any-return]


def _invalid_row(entry: Invalid) -> dict[str, Any]:
    told = {"state": "invalid", "reason": str(entry.reason), "message": entry.message}
    return {"namespace": entry.key.namespace, "name": entry.key.name, **told}


def _told(decision: Decision) -> ConditionValue | None:
    return next((value for value in decision.conditions if value.type == ConditionType.SLO_MET), None)


def _spark(missed: Halves) -> list[float | None]:
    """Attainment in percent, the worst of every two minutes."""
    worst = 100.0 * (1.0 - worst_of(missed, SPARK_SPANS).astype(np.float64))
    return plain(worst.tolist(), digits=5)


def _condition(value: ConditionValue) -> dict[str, str]:
    told = {"type": str(value.type), "status": _STATUS[value.status]}
    return {**told, "reason": str(value.reason), "message": value.message}


def _recommendation(decision: Decision, at: float) -> dict[str, Any] | None:
    wanted = decision.recommendation
    return None if wanted is None else explained(wanted, decision, iso(at)).to_dict()


def _first_at(at: float) -> float:
    return (span_of(at) - POINTS + 1) * SPAN_SECONDS


def _urgency(row: Mapping[str, Any]) -> tuple[int, float, str, str]:
    budget = row.get("budget_remaining")
    left = math.inf if budget is None else budget
    return _WORST_FIRST.index(row["state"]), left, row["namespace"], row["name"]
