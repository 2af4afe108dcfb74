"""One service's request for shared accelerators, the worth of each replica to it, and the resulting allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.domain.value import value

STAYING = 1.1
"""Factor on the worth of a running replica over one to be started: no replica moves for a smaller gain."""


@value
class CapacityRequest:
    """A service requests `want` replicas of one accelerator.

    `least` of them are guaranteed, whatever other services request. `running` replicas hold accelerators; `outside` of
    these are on nodes that take no new pods, so their GPUs are of no use to other services. `short`: some replicas have
    waited longer than nodes take to be provisioned.

    `kept`: source replicas on accelerators being drained whose slots no target replicas take over; those whose slots
    are taken over are among the running ones. `paired`: replicas that serve next to these; `waits`: some of them have
    waited as long. Good requests have worth up to `demand_rps`. `elsewhere`: the same request on each other accelerator
    to which the service could move as a whole.
    """

    key: ServiceKey
    option: AcceleratorOption
    want: int
    least: int
    rate_rps: float
    demand_rps: float
    priority: int = 0
    running: int = 0
    outside: int = 0
    short: bool = False
    waits: bool = False
    kept: tuple[tuple[AcceleratorOption, int], ...] = ()
    paired: tuple[tuple[AcceleratorOption, int], ...] = ()
    elsewhere: tuple[CapacityRequest, ...] = ()

    def gpus(self, replicas: int) -> int:
        """Return the GPUs that so many replicas hold, without those on nodes closed to new pods."""
        return self.option.gpus_per_replica * (replicas - self.outside)

    def good_rps(self, replicas: int) -> float:
        """Return the good requests/s of so many replicas."""
        return min(self.rate_rps * replicas, self.demand_rps)

    def worth(self, nth: int) -> float:
        """Return the good requests/s that the nth replica adds."""
        return min(self.rate_rps, max(0.0, self.demand_rps - (nth - 1) * self.rate_rps))

    def steps(self) -> Iterator[tuple[int, float]]:
        """Yield the replicas beyond the guaranteed ones, as numbers of equal worth (good requests/s per GPU)."""
        full = 0 if self.rate_rps <= 0.0 else math.floor(min(self.demand_rps / self.rate_rps, float(self.want)) + 1e-9)
        cuts = {min(max(cut, self.least), self.want) for cut in (self.running, full, full + 1, self.want)}
        begin = self.least
        for end in sorted(cuts):
            if end > begin:
                worth = self.worth(end) * (STAYING if end <= self.running else 1.0)
                yield end - begin, worth / self.option.gpus_per_replica
                begin = end


@value
class Allocation:
    """Replicas that a service may have of those it requested, and why not more.

    With `moves_to` the replicas are of that accelerator, and the service leaves its present one (`leaves`).
    """

    replicas: int
    sentence: str
    leaves: str = ""
    moves_to: str = ""
