"""What sizes cost, and what may be spent on the way to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.domain.service import ServiceSpec
from holdfast.policy.replicas import Group


def dollars(spec: ServiceSpec, sizes: Mapping[str, int]) -> float:
    """What these cost in an hour, as far as the spec names prices."""
    return sum((option.cost_per_replica_hour or 0.0) * sizes.get(option.name, 0) for option in spec.accelerators)


def spendable(spec: ServiceSpec, groups: Sequence[Group], coming: str) -> float | None:
    """The budget, or what is there already costs where that is more: whoever lowers a budget wants nobody sent away.

    The last replica that serves, on an accelerator of which none may run any more, stays beside the first that is
    coming. None where there is no budget.
    """
    limit = spec.max_cost_per_hour
    if limit is None:
        return None
    now = dollars(spec, {group.accelerator: group.size for group in groups})
    serving = [group.accelerator for group in groups for _ in group.ready]
    last = spec.accelerator(serving[0]) if len(serving) == 1 else None
    if last is None:
        return max(limit, now)
    price = last.cost_per_replica_hour or 0.0
    ends = last.max_replicas == 0 or price > limit
    return max(limit, now, price + dollars(spec, {coming: 1}) if ends else 0.0)
