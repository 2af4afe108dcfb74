"""Limits of a service at any time: the number of replicas (scaling.max) and the cost per hour (budget)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from holdfast.domain.service import ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import affordable_replicas


@value
class Allowance:
    """Most replicas, and most dollars per hour; None without a budget.

    `prices` are dollars per replica and hour. An accelerator without a price costs nothing here. Where pods end before
    they serve, only the `lasting` replicas of their accelerator are allowed.
    """

    replicas: int
    dollars_per_hour: float | None
    prices: Mapping[str, float]
    lasting: Mapping[str, int] = field(default_factory=dict)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Return the dollars per hour of these replicas."""
        return sum(self.price(name) * count for name, count in sizes.items())

    def price(self, accelerator: str) -> float:
        """Return the dollars per hour of one replica."""
        return self.prices.get(accelerator, 0.0)

    def left(self, sizes: Mapping[str, int]) -> float:
        """Return the dollars per hour that remain next to these replicas."""
        return math.inf if self.dollars_per_hour is None else self.dollars_per_hour - self.cost(sizes)

    def more(self, accelerator: str, existing: Mapping[str, int]) -> int:
        """Return the most replicas of an accelerator that are allowed in addition to the `existing` replicas."""
        own = self.lasting.get(accelerator, self.replicas) - existing.get(accelerator, 0)
        paid = affordable_replicas(self.left(existing), self.price(accelerator))
        return max(0, min(self.replicas - sum(existing.values()), own, paid))


def allowance(spec: ServiceSpec) -> Allowance:
    """Return the limits of a spec."""
    prices = {option.name: option.cost_per_replica_hour or 0.0 for option in spec.accelerators}
    return Allowance(spec.max_replicas, spec.max_cost_per_hour, prices)
