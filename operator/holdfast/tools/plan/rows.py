"""What a plan tells of each accelerator and batching: what a replica carries and what binds it, replicas, cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.phases import Roofs
from holdfast.twin.replica.capacity import SimulatedRate

LEAST_LOAD, MOST_LOAD = 0.5, 0.7
"""Shares of its saturation between which an engine is best run."""


@dataclass(frozen=True, slots=True)
class Point:
    """So many replicas at the asked rate: the share of good requests, GPUs, and dollars per hour.

    Output tokens/s of a user (median, the wait included) and of all together are known where they were asked for.
    """

    replicas: int
    gpus: int
    attainment: float
    cost_per_hour: float | None
    user_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """One accelerator with one choice of batching.

    `formula_rps` is the closed form's rate per replica, `simulated` the twin's. `saturation_rps` is what leaves a
    replica while an endless queue waits, whatever the objectives. `memory_bound`: more of a step goes into reading
    weights and KV cache than into tokens. `refused_share` of the requests need more KV cache than there is: bad ones.
    `spread_attainment` is the good share of as many `replicas` behind a plain Service, which spreads requests unevenly,
    and `spread_replicas` the least of them that attain the objective there, with their cost; None where that was not
    looked at, or twice as many miss it. `load` is what each of the `replicas` gets, as a share of its saturation.
    `relaxed`: what a replica at half its saturation keeps, where the spec allows too few almost idle ones.
    `roofline`: the position of prefill and of decode under the roofs of a known GPU, at the carried rate.
    `replicas` is None where the objectives cannot be met; `impossible` then says what would be possible.
    """

    accelerator: str
    default_batching: bool
    limits: BatchLimits
    source: str
    formula_rps: float
    simulated: SimulatedRate
    bound_by: str
    memory_bound: bool
    saturation_rps: float
    refused_share: float = 0.0
    replicas: int | None = None
    load: float | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None
    spread_attainment: float | None = None
    spread_replicas: int | None = None
    spread_cost_per_hour: float | None = None
    front: tuple[Point, ...] = ()
    relaxed: str = ""
    impossible: str = ""
    roofline: Mapping[str, Roofs] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The choice in few words."""
        limits = self.limits
        return f"{self.accelerator}, {limits.max_num_seqs} sequences, {limits.max_num_batched_tokens} tokens/step"

    @property
    def operating_range_rps(self) -> tuple[float, float]:
        """Requests per second of a replica where it is best run: 50 to 70 % of saturation, where that keeps the SLO."""
        kept = self.simulated.rate_rps
        return min(LEAST_LOAD * self.saturation_rps, kept), min(MOST_LOAD * self.saturation_rps, kept)

    @property
    def carriers(self) -> int:
        """How many would carry the load if each had an even share, whatever the spec keeps."""
        if self.replicas is None or self.load is None or not self.simulated.rate_rps:
            return 0
        return max(1, math.ceil(self.load * self.replicas * self.saturation_rps / self.simulated.rate_rps - 1e-9))

    @property
    def safe_replicas(self) -> int | None:
        """How many it takes to stay within that range."""
        if self.replicas is None or self.load is None:
            return None
        rate = self.load * self.replicas * self.saturation_rps
        return max(self.replicas, math.ceil(rate / self.operating_range_rps[1] - 1e-9))

    @property
    def spread_holds(self) -> bool:
        """Whether nothing speaks against the size behind a plain Service."""
        return self.spread_attainment is None or self.spread_replicas == self.replicas

    @property
    def tokens_per_dollar(self) -> float | None:
        """Tokens of prompts and answers."""
        return None if not self.cost_per_million_tokens else 1e6 / self.cost_per_million_tokens


def priced(found: Iterable[Offer]) -> bool:
    """Whether sizes are compared by dollars, which leaves out what has no price; else by GPUs."""
    return any(point.cost_per_hour is not None for offer in found for point in offer.front)


def pareto(found: Sequence[Offer]) -> list[tuple[Offer, Point]]:
    """Cheapest first: choices that attain more than everything that costs no more."""
    dollars = priced(found)
    front: list[tuple[Offer, Point]] = []
    sizes = [
        (float(point.gpus) if not dollars else point.cost_per_hour, offer, point)
        for offer in found
        for point in offer.front
        if point.cost_per_hour is not None or not dollars
    ]
    for _, offer, point in sorted(sizes, key=lambda size: (size[0] or 0.0, -size[2].attainment)):
        if not front or point.attainment > front[-1][1].attainment:
            front.append((offer, point))
    return front
