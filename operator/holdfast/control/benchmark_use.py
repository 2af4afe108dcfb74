"""Which benchmark results size services now, by the snapshot of this tick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from holdfast.domain.benchmark import Measured
from holdfast.domain.decision import ConditionValue, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.observe.benchmarks import engine_digest
from holdfast.observe.cluster import ServiceParts
from holdfast.policy.benchmarks.use import Standing, use_of
from holdfast.policy.estimate.benchmarked_capacity import newest_by_engine

Statuses = Mapping[ServiceKey, Mapping[str, Any]]
Names = Mapping[ServiceKey, Sequence[str]]


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
