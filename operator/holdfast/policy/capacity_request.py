"""What one service wants of the accelerators that it shares with others, and what each replica is worth to it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.domain.value import value

STAYING = 1.1
"""A replica that runs counts for this much more than one to be started: nothing moves for less."""


@value
class WorthStep:
    """`replicas` further replicas of a service that are worth the same: good requests/s for each GPU."""

    replicas: int
    worth_per_gpu: float


@value
class MigrationProgress:
    """Next replicas that take the places of others one by one: of `size` asked for by now `coming` do not serve yet.

    `surplus` of those others stay on these nodes although no next ones will take their places.
    """

    size: int = 0
    coming: int = 0
    surplus: int = 0


@value
class CapacityRequest:
    """`want` replicas of one accelerator, by a service's own decision.

    `least` of them stay whatever others want. `running` ones hold accelerators; `outside` of those are on nodes that
    take no pods now, and leave nothing to others. `short`: some have waited for longer than nodes take to come.
    `kept`: replicas on accelerators that are being left, but for those whose places the next ones take, which are among
    the running where it `migration`. `paired`: those that serve beside these, of which some have waited as long where
    it `waits`. Good requests are worth having up to `demand_rps`.
    `elsewhere`: the same on other accelerators of the service, on those where it could move as a whole.
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
    migration: MigrationProgress | None = None
    paired: tuple[tuple[AcceleratorOption, int], ...] = ()
    elsewhere: tuple[CapacityRequest, ...] = ()

    def gpus(self, replicas: int) -> int:
        """GPUs, of those that nodes offer to new replicas, that so many replicas hold."""
        return self.option.gpus_per_replica * (replicas - self.outside)

    def good_rps(self, replicas: int) -> float:
        """Good requests/s that so many replicas make."""
        return min(self.rate_rps * replicas, self.demand_rps)

    def worth(self, nth: int) -> float:
        """Good requests/s that the nth replica adds."""
        return min(self.rate_rps, max(0.0, self.demand_rps - (nth - 1) * self.rate_rps))

    def steps(self) -> Iterator[WorthStep]:
        """What the replicas beyond the least are worth, most first."""
        full = 0 if self.rate_rps <= 0.0 else math.floor(min(self.demand_rps / self.rate_rps, float(self.want)) + 1e-9)
        cuts = {min(max(cut, self.least), self.want) for cut in (self.running, full, full + 1, self.want)}
        begin = self.least
        for end in sorted(cuts):
            if end > begin:
                worth = self.worth(end) * (STAYING if end <= self.running else 1.0)
                yield WorthStep(end - begin, worth / self.option.gpus_per_replica)
                begin = end


@value
class Allocation:
    """Replicas that a service may have of those it wants, and why not more.

    With `moves_to` they are of that accelerator, and the service leaves the one that it has. While it hands over
    the places of one that it leaves, `most` replicas of both may be there; where it `paused` nothing is given up for
    the next ones.
    """

    replicas: int
    sentence: str
    leaves: str = ""
    moves_to: str = ""
    most: int | None = None
    paused: bool = False
