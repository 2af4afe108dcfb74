"""What a status says of the two pools of a service with `prefill`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from holdfast.api import status
from holdfast.api.conditions import ConditionType
from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.decision import ConditionValue, Decision
from holdfast.observe.objects.cluster import PrefillPool, ServiceParts
from holdfast.rendered.pools import prefill_pool, role_of


def pools_of(part: ServiceParts, decision: Decision) -> tuple[status.PoolStatus, ...] | None:
    """Both pools, the one that answers first; None without a prefill pool."""
    pool = prefill_pool(part.service)
    if pool is None or part.prefill is None:
        return None
    return (
        status.PoolStatus(
            name=part.spec.key.label,
            role=role_of(part.service),
            desired=decision.verdict.replicas,
            ready=_ready(part.replicas),
        ),
        status.PoolStatus(
            name=pool.metadata.name,
            role=role_of(pool),
            desired=pool.spec.replicas or 0,
            ready=_ready(part.prefill.replicas),
        ),
    )


def with_prefill(values: Sequence[ConditionValue], part: ServiceParts) -> tuple[ConditionValue, ...]:
    """Return the conditions with what the prefill pool does to Ready: it is true while both pools serve."""
    pool = prefill_pool(part.service)
    if pool is None or part.prefill is None:
        return tuple(values)
    found, desired = _ready(part.prefill.replicas), pool.spec.replicas or 0
    return tuple(_joined(each, part.prefill, found, desired) if found < desired else each for each in values)


def _joined(value: ConditionValue, pool: PrefillPool, ready: int, desired: int) -> ConditionValue:
    if value.type != ConditionType.READY or not value.status:
        return value
    told = f"{counted(ready, 'prefill engine', 'is', 'are', of=desired)} ready"
    if ready:
        return dataclasses.replace(value, message=f"{value.message}; {told}{_cause(pool)}")
    told += f", so the replicas serve whole requests{_cause(pool)}"
    return dataclasses.replace(value, status=False, reason=Reason.PREFILL_NOT_READY, message=told)


def _cause(pool: PrefillPool) -> str:
    """Why an engine of it is not ready, as Kubernetes says: the Deployment first, which may have no pods."""
    problems = [each.message for each in (pool.deployed.problems if pool.deployed else ())]
    waiting = (each for each in pool.replicas if each.phase is not ReplicaPhase.READY)
    words = [f"{each.name}: {each.words}" for each in waiting if each.words]
    return "".join(f"; {told}" for told in (problems + words)[:1])


def _ready(replicas: Iterable[Replica]) -> int:
    return sum(replica.phase is ReplicaPhase.READY for replica in replicas)
