"""Everything that is carried from tick to tick; it can be lost at any time, at the price of holding for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.domain.service import ServiceKey
from holdfast.policy.budget import Budget
from holdfast.policy.capacity import Capacity
from holdfast.policy.coldstart import ColdStarts
from holdfast.policy.demand import Demand
from holdfast.policy.forecast import Residuals
from holdfast.policy.headroom import Headroom
from holdfast.policy.mix import Lengths
from holdfast.policy.placement import Choice
from holdfast.policy.setbacks import Setbacks
from holdfast.policy.sizing import Peaks
from holdfast.policy.turns import Turns


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """What is remembered of one service; every part belongs to the module of its type.

    `limited`: the last size was not the one wanted, so that its misses say nothing about headroom. `lead_seconds` is
    the lead time that the rest was learned for.
    """

    generation: int = -1
    decided_at: float | None = None
    demand: Demand = field(default_factory=Demand)
    residuals: Residuals = field(default_factory=Residuals)
    budget: Budget = field(default_factory=Budget)
    headroom: Headroom = field(default_factory=Headroom)
    lengths: Lengths = field(default_factory=Lengths)
    capacity: Capacity = field(default_factory=Capacity)
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    peaks: Peaks = field(default_factory=Peaks)
    setbacks: Setbacks = field(default_factory=Setbacks)
    choice: Choice = field(default_factory=Choice)
    turns: Turns = field(default_factory=Turns)
    limited: bool = False
    lead_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of all services; those that are gone are forgotten."""

    services: Mapping[ServiceKey, ServiceMemory] = field(default_factory=dict)
