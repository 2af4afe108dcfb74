"""Decision and observation -> status: the only module that formats status."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.api import conditions, status
from holdfast.api.conditions import Condition, ConditionType, Status
from holdfast.api.reasons import Reason
from holdfast.control.status.explanation import capacity_source, explained
from holdfast.control.status.pools import pools_of, with_prefill
from holdfast.domain.cluster import Adoption, ReplicaPhase
from holdfast.domain.decision import Action, CapacityView, ClassView, ConditionValue, Decision, Verdict
from holdfast.domain.engine import EngineFacts
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.render import service_url
from holdfast.rendered.pools import prefill_pool

_STARTING = (ReplicaPhase.STARTING, ReplicaPhase.UNSCHEDULABLE, ReplicaPhase.FAILING)
_HOUR = 3600.0
_BEGINNINGS = frozenset({Reason.NO_REPLICAS, Reason.METRICS_MISSING, Reason.METRICS_HOLD})
_WARNED_OF_LATER = frozenset({Reason.PINNED_OUTSIDE_MANIFEST})
"""Somebody has just done it on purpose: see `control.status.pins`."""
_LOST = (
    "the engines of {name} run without Holdfast's plugin: requests start in vLLM's own order, none is "
    "rejected in overload, good requests are bounds from vLLM's histograms, and batching limits stay as started; for "
    "these, let Holdfast make the engines (docs/adopt.md)"
)
FIGURES = frozenset({"slo", "capacity", "cost"})
"""The parts of a status that move with every scrape."""


def status_of(
    part: ServiceParts,
    decision: Decision,
    batching: status.BatchingStatus,
    old: Mapping[str, Any],
    now: float,
    remarks: Sequence[str] = (),
    found: Sequence[ConditionValue] = (),
    digests: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the whole status of a service; times of conditions and the last decision are carried over.

    `remarks` are notes about the rendered pods; they appear in the condition Ready. `found` are conditions in addition
    to those of the decision. `digests` are those of the service's objects.
    """
    stamp = iso(now)
    values = conditions_told(part, decision, remarks, found)
    merged = _conditions(values, decision.generation, old, stamp, decision.slo.pending)
    whole = status.LLMServiceStatus(
        observed_generation=decision.generation,
        conditions=tuple(map(status.ConditionStatus.of, merged)),
        reason=_reason(merged),
        url=None if part.adoption else service_url(part.service),
        replicas=_counts(part, decision),
        selector=part.selector,
        slo=status.SLOStatus(**_slo(part, decision)),
        capacity=None if decision.capacity is None else status.CapacityStatus(**_capacity(decision.capacity)),
        placements=_placements(part, decision),
        pools=pools_of(part, decision),
        batching=batching,
        cold_start_seconds=decision.cold_start_seconds,
        cost=None if (cost := _cost(part, decision)) is None else status.CostStatus(**cost),
        recommendation=_recommendation(decision, old.get("recommendation"), stamp),
        object_digests=tuple(digests) or None,
    )
    return {**whole.to_dict(), "lastDecision": _last_decision(decision, old.get("lastDecision"), stamp)}


def conditions_told(
    part: ServiceParts, decision: Decision, remarks: Sequence[str] = (), found: Sequence[ConditionValue] = ()
) -> tuple[ConditionValue, ...]:
    """Return the conditions that status and metrics tell; `remarks` and `found` are those of `status_of`."""
    return with_adoption((*with_remarks(with_prefill(decision.conditions, part), remarks), *found), part)


def standing(part: ServiceParts, decision: Decision, now: float) -> tuple[Condition, ...]:
    """Return the conditions as kubectl shows them; the newly decided one where its status or reason has changed since.

    What is published holds more than a decision: remedies, remarks about the pods, and the condition of the fast loop.
    """
    published = {each.type: each for each in conditions.conditions_of(part.service.status)}
    values, old = conditions_told(part, decision), part.service.status
    merged = _conditions(values, decision.generation, old, iso(now), decision.slo.pending)
    decided = {each.type: each for each in merged}
    same = {kind: each for kind, each in published.items() if _is_same(each, decided.get(kind))}
    return tuple((decided | same).values())


def _is_same(published: Condition, decided: Condition | None) -> bool:
    if decided is None:
        return published.type == ConditionType.FAST_LOOP_ACTIVE  # that only acting finds out
    shown = (decided.status, decided.reason, decided.observed_generation)
    return (published.status, published.reason, published.observed_generation) == shown


def figures(part: ServiceParts, decision: Decision) -> dict[str, Any]:
    """Return the parts of the status that move with every scrape, as `status_of` does."""
    capacity, cost = decision.capacity, _cost(part, decision)
    parts = {
        "slo": status.SLOStatus.figures(_slo(part, decision)),
        "capacity": status.CapacityStatus.figures(_capacity(capacity)) if capacity else {},
        "cost": status.CostStatus.figures(cost) if cost else {},
    }
    return {name: said for name, said in parts.items() if said}


def with_remarks(values: Sequence[ConditionValue], remarks: Sequence[str]) -> tuple[ConditionValue, ...]:
    """Return the conditions with remarks about the pods in the message of Ready."""
    return tuple(
        dataclasses.replace(value, message="; ".join((value.message, *remarks)))
        if value.type == ConditionType.READY
        else value
        for value in values
    )


def with_adoption(values: Sequence[ConditionValue], part: ServiceParts) -> tuple[ConditionValue, ...]:
    """Return the conditions with what is lost and what is held where a service sizes somebody else's Deployment."""
    if part.adoption is None:
        return tuple(values)
    text = _LOST.format(name=part.adoption.workload)
    lost = ConditionValue(ConditionType.FAST_LOOP_ACTIVE, False, Reason.NOT_OUR_ENGINES, text)
    if not part.adoption.autoscaler:
        return (*values, lost)
    sizes, remedy = told_sizer(part.adoption)
    text = f"{sizes}, so Holdfast only recommends; {remedy} and set mode to Auto to change that"
    held = ConditionValue(ConditionType.SCALING_ACTIVE, False, Reason.OTHER_AUTOSCALER, text)
    return (*(held if value.type == ConditionType.SCALING_ACTIVE else value for value in values), lost)


def told_sizer(adoption: Adoption) -> tuple[str, str]:
    """Return who else sizes a workload, and what to do about it."""
    who, name = adoption.autoscaler, adoption.workload
    if not adoption.is_owned:
        return f"{who} sizes {name}", "delete it"
    return f"{who} owns {name} and may set its size", "have it leave replicas alone (docs/adopt.md)"


def invalid_status(entry: Invalid, old: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the status of an invalid object: its engines keep running unchanged."""
    ready = None if entry.reason is Reason.DELETION_HELD else False
    values = (
        ConditionValue(ConditionType.READY, ready, entry.reason, entry.message),
        ConditionValue(ConditionType.STALLED, True, entry.reason, entry.message),
    )
    merged = _conditions(values, entry.generation, old, iso(now))
    changed = {"observedGeneration": entry.generation, "conditions": [condition.to_dict() for condition in merged]}
    return {**old, **changed, "reason": _reason(merged)}


def condition_news(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions whose status or reason changed, for Events; transient ones are skipped."""
    before = {item["type"]: (item["status"], item["reason"]) for item in old.get("conditions", ())}
    shown = (item for item in new.get("conditions", ()) if item["type"] not in conditions.TRANSIENT)
    return [item for item in shown if before.get(item["type"]) != (item["status"], item["reason"])]


def is_warning(item: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether a changed condition deserves a Warning; conditions that every first replica fails for a while do not."""
    begins = not old.get("replicas", {}).get("ready") and item["reason"] in _BEGINNINGS
    return item["status"] == "False" and not begins and item["reason"] not in _WARNED_OF_LATER


def iso(now: float) -> str:
    """Return a time in the API server's format."""
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(
    values: Sequence[ConditionValue], generation: int, old: Mapping[str, Any], stamp: str, pending: bool = False
) -> tuple[Condition, ...]:
    before = conditions.conditions_of(old)
    # A restart of the operator would otherwise turn SLOMet of every service to Unknown and back.
    kept = {known.type: known for known in before if pending and known.type == ConditionType.SLO_MET}
    new = [kept.get(value.type) or condition_of(value, generation) for value in values]
    return conditions.said_once(conditions.merge_conditions(before, new, stamp))


def _reason(merged: Sequence[Condition]) -> str | None:
    found = conditions.worst(merged)
    return None if found is None else found.reason


def condition_of(value: ConditionValue, generation: int) -> Condition:
    """A decided condition as a condition of an object of that generation."""
    word = Status.UNKNOWN if value.status is None else Status.TRUE if value.status else Status.FALSE
    return Condition(value.type, word, str(value.reason), value.message, generation)


def _counts(part: ServiceParts, decision: Decision) -> status.ReplicaCounts:
    phases, desired = [replica.phase for replica in part.replicas], decision.verdict.replicas
    ready = phases.count(ReplicaPhase.READY)
    return status.ReplicaCounts(
        desired=desired,
        ready=ready,
        summary=f"{ready}/{desired}",
        starting=sum(phase in _STARTING for phase in phases),
        draining=phases.count(ReplicaPhase.DRAINING),
    )


def _slo(part: ServiceParts, decision: Decision) -> dict[str, Any]:
    view = decision.slo
    return {
        "attainment": view.attainment,
        "budget_remaining": view.budget_remaining,
        "good_rps": view.good_rps,
        "arrival_rps": view.arrival_rps,
        "ttft_p50_seconds": view.ttft.p50_seconds,
        "ttft_p95_seconds": view.ttft.p95_seconds,
        "ttft_p99_seconds": view.ttft.p99_seconds,
        "tpot_p50_seconds": view.tpot.p50_seconds,
        "tpot_p95_seconds": view.tpot.p95_seconds,
        "tpot_p99_seconds": view.tpot.p99_seconds,
        "concurrency_p50": view.concurrency.p50,
        "concurrency_p90": view.concurrency.p90,
        "concurrency_p99": view.concurrency.p99,
        "quantile": decision.explanation.quantile,
        "window_seconds": part.spec.slo.window_seconds,
        "source": view.source if view.source in ("exact", "engine") else "bounds",
        "hardest_class": view.hardest or None,
        "classes": tuple(_class(each) for each in view.classes if each.name) or None,
        "batch": tuple(
            status.BatchStatus(name=each.name, unfinished=each.unfinished, done_per_minute=60.0 * each.done_rps)
            for each in view.batch
        )
        or None,
    }


def _class(seen: ClassView) -> status.ClassStatus:
    return status.ClassStatus(
        name=seen.name,
        objective=seen.objective,
        attainment=seen.attainment,
        budget_remaining=seen.budget_remaining,
        requests=seen.judged,
    )


def _capacity(view: CapacityView) -> dict[str, Any]:
    return {
        "accelerator": view.accelerator,
        "per_replica_rps": view.per_replica_rps,
        "bound_by": view.bound_by,
        "confidence": view.confidence,
        "source": capacity_source(view.measured),
        "learned_gain": view.learned_gain,
        "learned_slowness": view.learned_slowness,
    }


def _placements(part: ServiceParts, decision: Decision) -> tuple[status.PlacementStatus, ...]:
    ready = [replica.accelerator for replica in part.replicas if replica.phase is ReplicaPhase.READY]
    facts, shown = dict(decision.engines), []
    for target in sorted(decision.verdict.targets, key=lambda target: -target.replicas):
        option = part.spec.accelerator(target.accelerator)
        price = option.cost_per_replica_hour if option else None
        shown.append(
            status.PlacementStatus(
                accelerator=target.accelerator,
                desired=target.replicas,
                ready=ready.count(target.accelerator),
                cost_per_hour=None if price is None else price * target.replicas,
                engine=_engine(facts.get(target.accelerator, EngineFacts())),
            )
        )
    return tuple(shown)


def _engine(facts: EngineFacts) -> status.EngineStatus:
    return status.EngineStatus(
        kv_cache_tokens=facts.kv_tokens,
        max_model_len=facts.max_model_len,
        dtype=facts.dtype,
        quantization=facts.quantization,
        speculative_tokens=facts.speculative_tokens,
        accepted_draft_tokens=facts.accepted_drafts,
        front_end=facts.front_end,
        front_end_lag_seconds=facts.front_end_lag_seconds,
    )


def cost_per_hour(part: ServiceParts) -> float | None:
    """Return dollars per hour of all engines with a GPU now; None without any, or with an unknown price."""
    listed = {option.name: option.cost_per_replica_hour for option in part.spec.accelerators}
    pool = prefill_pool(part.service)
    of_pool = {each.name: each.replica_cost_per_hour for each in (pool.spec.accelerators if pool else ())}
    prices = [
        prices.get(replica.accelerator)
        for prices, replicas in ((listed, part.replicas), (of_pool, part.prefill.replicas if part.prefill else ()))
        for replica in replicas
        if replica.phase is not ReplicaPhase.UNSCHEDULABLE
    ]
    known = [price for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None


def _cost(part: ServiceParts, decision: Decision) -> dict[str, Any] | None:
    """Cost of all replicas, and per unit of work at the present rates."""
    per_hour = cost_per_hour(part)
    if per_hour is None:
        return None
    return {
        "per_hour": per_hour,
        "per_million_tokens": _per(per_hour, decision.slo.tokens_per_second, 1e6),
        "per_thousand_good_requests": _per(per_hour, decision.slo.good_rps, 1e3),
    }


def _per(dollars_per_hour: float, per_second: float | None, unit: float) -> float | None:
    if per_second is None or not math.isfinite(per_second) or per_second <= 0:
        return None
    return dollars_per_hour / _HOUR / per_second * unit


def _last_decision(decision: Decision, old: Mapping[str, Any] | None, stamp: str) -> dict[str, Any]:
    """Return the newest decision that changed something; a hold is shown only before the first change.

    The condition ScalingActive says why the size is held now.
    """
    verdict = decision.verdict
    if old is not None and (_same(verdict, old) if verdict.action is not Action.HOLD else _outlives(old, verdict)):
        return dict(old)
    return explained(verdict, decision, stamp).to_dict()


def _same(verdict: Verdict, old: Mapping[str, Any]) -> bool:
    shown = (old.get("action"), old.get("reason"), old.get("message"))
    return shown == (verdict.action.value, str(verdict.reason), verdict.message[:1024])


def _outlives(old: Mapping[str, Any], hold: Verdict) -> bool:
    """Whether the shown decision stays despite a hold; a hold that differs only in numbers writes nothing.

    A removed pin is no longer shown as the reason, even if it caused the last change of size.
    """
    same = old.get("reason") == str(hold.reason)
    return same or (old.get("action") != Action.HOLD.value and old.get("reason") != str(Reason.PINNED))


def _recommendation(decision: Decision, old: Mapping[str, Any] | None, stamp: str) -> status.DecisionStatus | None:
    """Return the recommended decision, with the time since when it is unchanged."""
    verdict = decision.recommendation
    if verdict is None:
        return None
    known = old is not None and (old.get("action"), old.get("reason")) == (verdict.action.value, str(verdict.reason))
    return explained(verdict, decision, str(old["time"]) if old is not None and known else stamp)
