"""What a service may have at one time: replicas by scaling.max, dollars an hour by its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.domain.service import ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import affordable_replicas


@value
class Allowance:
    """Most replicas, and most dollars an hour: None where there is no budget.

    `prices` are those of one replica for an hour, as far as the spec names them: others cost nothing here.
    """

    replicas: int
    dollars_per_hour: float | None
    prices: Mapping[str, float]

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Dollars an hour."""
        return sum(self.price(name) * count for name, count in sizes.items())

    def price(self, accelerator: str) -> float:
        """Dollars of one replica for an hour."""
        return self.prices.get(accelerator, 0.0)

    def left(self, sizes: Mapping[str, int]) -> float:
        """Dollars an hour that these leave for others."""
        return math.inf if self.dollars_per_hour is None else self.dollars_per_hour - self.cost(sizes)

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Whether it allows all these at one time."""
        return sum(sizes.values()) <= self.replicas and self.left(sizes) >= -1e-9

    def more(self, accelerator: str, beside: Mapping[str, int]) -> int:
        """Most replicas of an accelerator beside so many others."""
        room, money, price = self.replicas - sum(beside.values()), self.left(beside), self.price(accelerator)
        return max(0, min(room, affordable_replicas(money, price) if price > 0.0 else room))


def allowance(spec: ServiceSpec) -> Allowance:
    """What the spec allows."""
    prices = {option.name: option.cost_per_replica_hour or 0.0 for option in spec.accelerators}
    return Allowance(spec.max_replicas, spec.max_cost_per_hour, prices)
