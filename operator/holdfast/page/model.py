"""The newest tick as plain data for the page: pure, SI units in the names, null for what is not known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from holdfast.api.conditions import Condition, ConditionType, Status, worst_first
from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.control.status.explanation import explained
from holdfast.control.status.pools import pools_of
from holdfast.control.status.report import cost_per_hour, iso, standing
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.mapping import epoch
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Halves, plain, span_of, worst_of
from holdfast.page.whatif import rates_by_accelerator, what_if

SPARK_SPANS = 4
"""Spans in one point of a sparkline: the worst of two minutes is shown."""

_OTHERS = {
    ReplicaPhase.FAILING: "failing",
    ReplicaPhase.UNSCHEDULABLE: "without a node",
    ReplicaPhase.STARTING: "starting",
    ReplicaPhase.DRAINING: "draining",
}
_COMING = (ReplicaPhase.STARTING, ReplicaPhase.UNSCHEDULABLE, ReplicaPhase.FAILING)
_STATE: dict[str, str] = {Status.TRUE: "held", Status.FALSE: "missed"}
_WORST_FIRST = ("invalid", "unready", "missed", "unknown", "held")


class Change(NamedTuple):
    """A decision that changed something; `at` is in seconds since the epoch."""

    at: float
    action: str
    reason: str
    message: str
    replicas: int

    @classmethod
    def told_by(cls, status: Mapping[str, Any]) -> Change | None:
        """Return the last change that a status tells of; None where it tells of none. A status may be anything."""
        try:
            last, replicas = status["lastDecision"], int(status["replicas"]["desired"])
            action, at = str(last["action"]), epoch(last["time"])
            known = at is not None and action != Action.HOLD.value
            return cls(at or 0.0, action, str(last["reason"]), str(last["message"]), replicas) if known else None
        except (KeyError, TypeError, ValueError):
            return None


class Moment(NamedTuple):
    """When an answer holds, from when on figures are known, since when this process leads (all since the epoch).

    `api_outage`: why the API server does not answer.
    """

    at: float
    history_since: float
    leads_since: float
    api_outage: str = ""


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
    moment: Moment,
) -> dict[str, Any]:
    """Return all services, the worst first; `missed` is one row of a track by service."""
    at = moment.at
    rows = [_row(part, decision, missed.get(key), at) for key, (part, decision) in services.items()]
    rows += [_invalid_row(entry) for entry in invalid if entry.key not in services]
    rows.sort(key=_urgency)
    return {
        **_times(moment),
        "outages": outages([decision for _, decision in services.values()], moment.api_outage),
        "spark_from": _first_at(at),
        "spark_step_seconds": SPARK_SPANS * SPAN_SECONDS,
        "counts": {state: sum(row["state"] == state for row in rows) for state in _WORST_FIRST},
        "services": rows,
    }


def service(
    part: ServiceParts, decision: Decision, track: Halves, changes: Iterable[Change], moment: Moment
) -> dict[str, Any]:
    """Return one service with its time axis; `track` is (COLUMNS, POINTS) up to `moment`."""
    spec, at, first = part.spec, moment.at, _first_at(moment.at)
    return {
        **_row(part, decision, None, at),
        **_times(moment),
        "outages": outages([decision], moment.api_outage),
        "slo": {
            "ttft_seconds": spec.slo.ttft_seconds,
            "tpot_seconds": spec.slo.tpot_seconds,
            "e2e_seconds": spec.slo.e2e_seconds,
            "source": decision.slo.source,
        },
        "concurrency": finite(asdict(decision.slo.concurrency)),
        "classes": [asdict(each) for each in decision.slo.classes],
        "batch": [asdict(each) for each in decision.slo.batch],
        "pools": [each.to_dict() for each in pools_of(part, decision) or ()],
        "bad_source": None if decision.slo.bad is None else "exact" if decision.slo.bad.exact else "bounds",
        "limits": {"min": spec.min_replicas, "max": spec.max_replicas, "pinned": spec.pinned_replicas},
        "conditions": [_condition(each) for each in _in_order(standing(part, decision, at))],
        "series": {
            "times": [first + SPAN_SECONDS * point for point in range(POINTS)],
            **{name: plain(row) for name, row in zip(COLUMNS, track, strict=True)},
        },
        "changes": [change._asdict() for change in changes],
        "decision": explained(decision.verdict, decision, iso(at)).to_dict(),
        "recommendation": _recommendation(decision, at),
        "what_if": finite(what_if(spec, decision)),
        "used": _used(spec.key, track),
    }


def _used(key: ServiceKey, track: Halves) -> dict[str, Any]:
    """Return what Ready replicas and dollars add up to on the time axis, and the command that says what could be saved.

    The twin plays a day for minutes: no answer of this page waits for it. Dollars are None if a price is missing.
    """
    ready, dollars = (track[COLUMNS.index(name)].astype(np.float64) for name in ("ready_replicas", "dollars_per_hour"))
    known, span_hours = np.isfinite(ready), SPAN_SECONDS / 3600.0
    spent = dollars[known].sum() * span_hours
    return {
        "hours": float(known.sum()) * span_hours,
        "ready_replica_hours": float(ready[known].sum()) * span_hours,
        "dollars": float(spent) if known.any() and math.isfinite(spent) else None,
        "savings_command": f"holdfast savings {key.namespace}/{key.name} --since 1d --prometheus-url URL",
    }


def _times(moment: Moment) -> dict[str, float]:
    return {"at": moment.at, "history_since": moment.history_since, "leads_since": moment.leads_since}


def outages(decisions: Sequence[Decision], api_outage: str) -> list[dict[str, str]]:
    """Return what does not answer the operator, each with what that means; empty while all do."""
    cut_off = [
        value.message
        for decision in decisions
        for value in decision.conditions
        if value.type == ConditionType.METRICS_AVAILABLE and value.reason == Reason.PROMETHEUS_UNREACHABLE
    ]
    found = []
    if api_outage:
        effect = "Nothing can be changed, and engines keep running."
        found.append({"what": "The API server does not answer", "message": api_outage, "effect": effect})
    if cut_off:
        what = f"Prometheus does not answer for {len(cut_off)} of {counted(len(decisions), 'service')}"
        effect = "Their figures are not known, and no size is lowered."
        found.append({"what": what, "message": cut_off[0], "effect": effect})
    return found


def finite(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(part: ServiceParts, decision: Decision, missed: Halves | None, at: float) -> dict[str, Any]:
    spec, verdict, found = part.spec, decision.verdict, standing(part, decision, at)
    row = {
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "model": spec.model_uri,
        "state": _state(found),
        **_worst(found),
        "objective": spec.slo.objective,
        "window_seconds": spec.slo.window_seconds,
        "attainment": decision.slo.attainment,
        "action": verdict.action.value,
        "action_reason": str(verdict.reason),
        "action_message": verdict.message,
        "others": _others(part),
        "spark": None if missed is None else _spark(missed),
    }
    return finite({**row, **_listed(part, decision)})  # type: ignore[no-any-return]


def _others(part: ServiceParts) -> dict[str, int]:
    """How many replicas are not Ready, by what they are."""
    counts = Counter(replica.phase for replica in part.replicas)
    return {word: counts[phase] for phase, word in _OTHERS.items() if counts[phase]}


def _invalid_row(entry: Invalid) -> dict[str, Any]:
    told = {"state": "invalid", "reason": str(entry.reason), "message": entry.message, "wrong": True}
    return {"namespace": entry.key.namespace, "name": entry.key.name, **told}


def _state(found: Iterable[Condition]) -> str:
    """The SLO's state, but for a service that is not Ready: nobody is served, whatever the window says."""
    statuses = {each.type: each.status for each in found}
    if statuses.get(ConditionType.READY) == Status.FALSE:
        return "unready"
    return _STATE.get(statuses.get(ConditionType.SLO_MET, ""), "unknown")


def _worst(found: Iterable[Condition]) -> dict[str, Any]:
    """The condition that `kubectl get llms` names the reason of."""
    return next(map(_condition, worst_first(found)), {"reason": "", "message": "", "wrong": False})


def _in_order(found: Sequence[Condition]) -> list[Condition]:
    """All conditions, those first that a person should read."""
    first = worst_first(found)
    return [*first, *(each for each in found if each not in first)]


def _spark(missed: Halves) -> list[float | None]:
    """Attainment in percent, the worst of every two minutes."""
    worst = 100.0 * (1.0 - worst_of(missed, SPARK_SPANS).astype(np.float64))
    return plain(worst.tolist(), digits=5)


def _condition(found: Condition) -> dict[str, Any]:
    return {
        "type": str(found.type),
        "status": str(found.status),
        "reason": found.reason,
        "message": found.message,
        "since": found.last_transition_time,
        "wrong": (found.status == Status.TRUE) == (found.type == ConditionType.STALLED)
        and found.reason != Reason.NOT_OUR_ENGINES,
    }


def _recommendation(decision: Decision, at: float) -> dict[str, Any] | None:
    wanted = decision.recommendation
    return None if wanted is None else explained(wanted, decision, iso(at)).to_dict()


def _first_at(at: float) -> float:
    return (span_of(at) - POINTS + 1) * SPAN_SECONDS


def _urgency(row: Mapping[str, Any]) -> tuple[int, float, str, str]:
    budget = row.get("budget_remaining")
    left = math.inf if budget is None else budget
    return _WORST_FIRST.index(row["state"]), left, row["namespace"], row["name"]
