"""Which benchmark results size services now, by the snapshot of this tick, and why others do not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from holdfast.api.conditions import CAPACITY_IN_USE
from holdfast.api.quantities import some_of
from holdfast.api.reasons import Reason
from holdfast.domain.benchmark import Measured, newest_by_engine
from holdfast.domain.decision import ConditionValue, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.observe.objects.benchmark_engines import engine_digest
from holdfast.observe.objects.cluster import ServiceParts

Statuses = Mapping[ServiceKey, Mapping[str, Any]]
Names = Mapping[ServiceKey, Sequence[str]]

SURPRISING = 3.0
"""Factor between a result and the engine model that the condition mentions."""

_AGAIN = "change spec.revision to measure again"


@value
class Standing:
    """Facts about a result.

    `newer`: a benchmark with a newer result of the same engine, which is used instead. `services` have such an engine;
    `refusing` are the services whose engine model cannot be scaled to the result; `factors` are the results of the
    others relative to the model. `edited`: the measured service, if its engine has changed since. `by_earlier_run`: the
    newest run of the benchmark did not produce the result.
    """

    newer: str = ""
    services: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()
    edited: str = ""
    by_earlier_run: bool = False


def uses(
    results: Mapping[str, Sequence[Measured]],
    statuses: Statuses,
    services: Iterable[ServiceParts],
    pictured: Sequence[ServiceSnapshot],
    decisions: Sequence[Decision],
) -> dict[ServiceKey, ConditionValue | None]:
    """Return the condition of each benchmark, None for one without a result; `results` by namespace.

    Benchmarks whose services were not all decided on in this tick are omitted: their condition stays unchanged.
    """
    found: dict[ServiceKey, ConditionValue | None] = dict.fromkeys(statuses)
    if not results:
        return found
    undecided = _taking(pictured, but={decision.key for decision in decisions})
    parts = {part.spec.key: part for part in services}
    taking, factors = _taking(pictured), _factors(decisions)
    for namespace, here in results.items():
        counting = newest_by_engine(here)
        for result in here:
            key, counts = ServiceKey(namespace, result.benchmark), counting[result.engine]
            standing = Standing(
                newer="" if counts is result else counts.benchmark,
                services=tuple(taking.get(key, ())),
                refusing=tuple(name for name, factor in factors[key] if factor is None),
                factors=tuple(factor for _, factor in factors[key] if factor is not None),
                edited=_edited(namespace, statuses[key]["capacity"], parts),
                by_earlier_run=statuses[key]["capacity"].get("measuredAt") != statuses[key].get("finishedAt"),
            )
            found[key] = use_of(standing)
    return {key: use for key, use in found.items() if key not in undecided}


def _taking(pictured: Iterable[ServiceSnapshot], but: Set[ServiceKey] = frozenset()) -> Names:
    """The services with an engine like the measured one, by benchmark, except `but`."""
    found = defaultdict(list)
    for service in pictured:
        for result in service.measured if service.spec.key not in but else ():
            found[ServiceKey(service.spec.key.namespace, result.benchmark)].append(service.spec.key.name)
    return found


def _factors(decisions: Iterable[Decision]) -> Mapping[ServiceKey, Sequence[tuple[str, float | None]]]:
    """By which factor a result exceeds the engine model of each service, by benchmark; None where it is not used."""
    found: dict[ServiceKey, list[tuple[str, float | None]]] = defaultdict(list)
    for decision in decisions:
        for result, factor in decision.benchmarked:
            found[ServiceKey(decision.key.namespace, result.benchmark)].append((decision.key.name, factor))
    return found


def _edited(namespace: str, capacity: Mapping[str, Any], parts: Mapping[ServiceKey, ServiceParts]) -> str:
    """The measured service, if its engine has changed since."""
    measured, name = capacity.get("build"), str(capacity.get("service", ""))
    part = parts.get(ServiceKey(namespace, name))
    now = "" if part is None or not measured else engine_digest(part, str(capacity.get("accelerator")))
    return name if now and now != measured else ""


def use_of(known: Standing) -> ConditionValue:
    """Return the condition that reports the use of a result."""
    status, reason, message = _use_of(known)
    remark = "; the result is of an earlier run, not of the newest" if known.by_earlier_run else ""
    return ConditionValue(CAPACITY_IN_USE, status, reason, message + remark)


def _use_of(known: Standing) -> tuple[bool, Reason, str]:
    if known.newer:
        return False, Reason.SUPERSEDED, f"benchmark {known.newer} has a newer result for this engine"
    if not known.services:
        return (
            False,
            Reason.NO_SUCH_ENGINE,
            "no LLMService in this namespace has the measured model, quantization, accelerator, count and nodeSelector",
        )
    taking = tuple(name for name in known.services if name not in known.refusing)
    if not taking:
        why = "the benchmark or the engine model found no rate that an engine carries"
        return (
            False,
            Reason.IMPLAUSIBLE,
            f"{some_of(known.services)}: sized from the engine model alone, because {why}; {_AGAIN}",
        )
    text = f"sizing of {some_of(taking)} starts from this result{_surprise(known.factors)}"
    if known.edited:
        return True, Reason.OLDER_ENGINE, f"{text}, but the engine of {known.edited} was edited since; {_AGAIN}"
    return True, Reason.IN_FORCE, text


def _surprise(factors: Sequence[float]) -> str:
    """A remark on a result that the engine model did not expect at all."""
    factor = max(factors, key=lambda each: abs(math.log(each)), default=1.0)
    if 1.0 / SURPRISING < factor < SURPRISING:
        return ""
    return f", which is {factor:.2g} times what the engine model says; check model.uri and the accelerator's labels"
