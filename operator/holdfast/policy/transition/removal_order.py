"""Which replicas are removed first where a Deployment gets smaller."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.domain.cluster import Replica
from holdfast.policy.health.replicas import Group


def removal_order(group: Group, wanted: Collection[str] = ()) -> tuple[str, ...]:
    """Names in the order in which replicas are best removed: without capacity first, then the newest.

    Of those that serve the ones first whose GPUs others can use, on the `wanted` nodes.
    """
    useless = (*group.failing, *group.stuck, *group.ailing, *group.short)
    ready = sorted(_newest(group.ready), key=lambda replica: bool(wanted) and replica.node not in wanted)
    ranked = (*useless, *group.pending, *_newest(group.starting), *ready)
    return tuple(replica.name for replica in ranked)


def _newest(replicas: Iterable[Replica]) -> list[Replica]:
    return sorted(replicas, key=lambda replica: (-replica.created_at, replica.name))
