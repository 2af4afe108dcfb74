"""A cluster that came to rest, was edited, and is watched tick by tick from then on."""

from __future__ import annotations

from tests.builders import ServiceBuilder
from tests.policy.fluid import FluidCluster, steps

RATES = {"h100": 5.0, "l40s": 5.0, "a100": 5.0}


class Edited:
    """Sizes and Ready replicas at every tick since."""

    def __init__(self, before: ServiceBuilder, after: ServiceBuilder, rate: float = 1.0) -> None:
        self.cluster = FluidCluster(before, steps((0, rate)), RATES).run(200)
        self.cluster.with_spec(after.at_generation(2))
        self.watch(300.0)

    @classmethod
    def running(cls, cluster: FluidCluster, seconds: float = 600.0) -> Edited:
        """One that was edited already, or is watched without an edit."""
        found = cls.__new__(cls)
        found.cluster = cluster
        found.watch(seconds)
        return found

    def watch(self, seconds: float) -> None:
        self.sizes = [dict(self.cluster.size)]
        self.ready = [self._ready()]
        end = self.cluster.clock + seconds
        while self.cluster.clock < end:
            self.cluster.run(self.cluster.tick)
            self.sizes.append(dict(self.cluster.size))
            self.ready.append(self._ready())

    def _ready(self) -> int:
        return sum(self.cluster.ready().values())

    def dollars(self) -> list[float]:
        prices = {o.name: o.cost_per_replica_hour or 0.0 for o in self.cluster.builder.spec.accelerators}
        return [sum(prices.get(name, 0.0) * count for name, count in sizes.items()) for sizes in self.sizes]

    def most(self) -> int:
        return max(sum(sizes.values()) for sizes in self.sizes)

    @property
    def ends_with(self) -> dict[str, int]:
        return {name: count for name, count in self.sizes[-1].items() if count}
