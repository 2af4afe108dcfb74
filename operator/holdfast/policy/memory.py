"""Everything that is carried from tick to tick; it can be lost at any time, at the price of holding for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from holdfast.domain.service import ServiceKey, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.batching import Batching
from holdfast.policy.budget import Budget
from holdfast.policy.capacity import Capacity
from holdfast.policy.coldstart import ColdStarts
from holdfast.policy.demand import Demand
from holdfast.policy.fastloops import FastLoops
from holdfast.policy.fleet import Fleet, Grant
from holdfast.policy.fleet_claims import Claim
from holdfast.policy.forecast import Residuals
from holdfast.policy.hangs import Hangs
from holdfast.policy.headroom import Headroom
from holdfast.policy.heldback import HeldBack
from holdfast.policy.idle import Idle
from holdfast.policy.lags import Lag
from holdfast.policy.look import Look
from holdfast.policy.mix import Lengths
from holdfast.policy.placement import Choice
from holdfast.policy.rest import Last
from holdfast.policy.retries import Retries
from holdfast.policy.setbacks import Setbacks
from holdfast.policy.sizing import Peaks
from holdfast.policy.turns import Turns


@value
class Learned:
    """What looking at a service has taught; every part belongs to the module of its type.

    `lead_seconds` is the lead time that the rest was learned for.
    """

    lead_seconds: float = 0.0
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    demand: Demand = field(default_factory=Demand)
    residuals: Residuals = field(default_factory=Residuals)
    retries: Retries = field(default_factory=Retries)
    lengths: Lengths = field(default_factory=Lengths)
    budget: Budget = field(default_factory=Budget)
    headroom: Headroom = field(default_factory=Headroom)
    capacity: Capacity = field(default_factory=Capacity)
    look: Look = field(default_factory=Look)
    fast_loops: FastLoops = field(default_factory=FastLoops)
    setbacks: Setbacks = field(default_factory=Setbacks)
    hangs: Hangs = field(default_factory=Hangs)
    lag: Lag = field(default_factory=Lag)
    idle: Idle = field(default_factory=Idle)
    held: HeldBack = field(default_factory=HeldBack)


@value
class ServiceMemory:
    """What was learned of one service and what was decided last; `last` is None before the first decision.

    `limited`: the last size was not made by the forecast, so that what became of requests says nothing about headroom.
    `short`: it was less than the forecast asked for, so that misses say nothing about it. `claim` is what was asked of
    the fleet, `granted` what it left where that is less.
    """

    last: Last | None = None
    learned: Learned = field(default_factory=Learned)
    peaks: Peaks = field(default_factory=Peaks)
    choice: Choice = field(default_factory=Choice)
    turns: Turns = field(default_factory=Turns)
    limited: bool = False
    short: bool = False
    batching: Batching = field(default_factory=Batching)
    claim: Claim | None = None
    granted: Grant | None = None

    @property
    def spec(self) -> ServiceSpec | None:
        """The spec that was decided by last."""
        return None if self.last is None else self.last.facts.spec

    @property
    def decided_at(self) -> float | None:
        return None if self.last is None else self.last.at


@value
class Memory:
    """What is remembered of each service, and of all together; what is gone is forgotten."""

    services: Mapping[ServiceKey, ServiceMemory] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
