"""All state between ticks; it may be lost at any time, which only makes the policy hold sizes for a while."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import NamedTuple

from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey, ServiceSpec
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Recalled, ServiceSnapshot, Timing
from holdfast.domain.value import value
from holdfast.policy.batching.controller import Batching
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.estimate.activator_misses import ActivatorMisses
from holdfast.policy.estimate.arrivals import Arrivals
from holdfast.policy.estimate.batch_work import BatchWork
from holdfast.policy.estimate.class_budgets import Budgets
from holdfast.policy.estimate.cold_start import ColdStarts
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.fast_loops import FastLoops
from holdfast.policy.estimate.flapping import Flapping
from holdfast.policy.estimate.forecast import Residuals
from holdfast.policy.estimate.growth import Growth
from holdfast.policy.estimate.headroom import Headroom
from holdfast.policy.estimate.hidden_requests import Queue
from holdfast.policy.estimate.kv_cache import KvCache
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity
from holdfast.policy.estimate.scale_to_zero import Idle
from holdfast.policy.estimate.set_backs import SetBacks
from holdfast.policy.estimate.slo_budget import Budget
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.health.sick import Sick
from holdfast.policy.placement.choice import Choice


@value
class Closing:
    """A serving replica goes with its node: until when its eviction waits for a successor, and the size before."""

    until: float
    size: int


@value
class Demand:
    """What was learned about the requests of a service, whichever pools serve them.

    Every part belongs to the module of its type, here and in `Supply`.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    residuals: Residuals = field(default_factory=Residuals)
    lengths: Lengths = field(default_factory=Lengths)
    budget: Budget = field(default_factory=Budget)
    classes: Budgets = field(default_factory=dict)
    headroom: Headroom = field(default_factory=Headroom)
    idle: Idle = field(default_factory=Idle)
    activator_misses: ActivatorMisses = field(default_factory=ActivatorMisses)
    batch: BatchWork = field(default_factory=BatchWork)


@value
class Supply:
    """What was learned about the replicas of one pool.

    `lead_seconds` is the lead time that all else was learned for, demand included. `closing` is None while no serving
    replica goes with its node. At `contradiction` answers of Prometheus last contradicted each other.
    """

    lead_seconds: float = 0.0
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    capacity: Capacity = field(default_factory=Capacity)
    evidence: EvidenceWindow = field(default_factory=EvidenceWindow)
    growth: Growth = field(default_factory=Growth)
    queue: Queue = field(default_factory=Queue)
    contradiction: float | None = None
    kv_cache: KvCache = field(default_factory=KvCache)
    fast_loops: FastLoops = field(default_factory=dict)
    backoffs: Backoffs = field(default_factory=Backoffs)
    sick: Sick = field(default_factory=Sick)
    slow_since: tuple[tuple[str, float], ...] = ()
    closing: Closing | None = None
    set_backs: SetBacks = field(default_factory=SetBacks)


class Last(NamedTuple):
    """A decision, its facts, its time, and until when no scheduled minimum begins or ends."""

    decision: Decision
    facts: ServiceSnapshot
    at: float
    until: float = math.inf


def facts(service: ServiceSnapshot) -> ServiceSnapshot:
    """Return what a decision depends on: without quantiles, ages and history, which change or end with time alone."""
    seen = service.traffic
    traffic = Traffic(
        seen.state,
        seen.detail,
        seen.interval_seconds,
        late_seconds=seen.late_seconds,
        by_accelerator=seen.by_accelerator,
        hung=seen.hung,
        silent=seen.silent,
        failing=seen.failing,
        lagging=seen.lagging,
        batch=seen.batch,
    )
    return replace(service, traffic=traffic, history=None, recalled=Recalled(), born_at=None)


@value
class ServiceMemory:
    """What was learned about one service and decided last; `last` is None before the first decision.

    `limited`: the forecast did not determine the last size, so that verdicts say nothing about headroom. `short`: the
    size was less than the forecast needs, so that misses say nothing about headroom. `ample`: batch raised it, so that
    good requests say nothing. `request` was sent to the fleet allocation; `allocation` is its answer where it is less.
    """

    last: Last | None = None
    demand: Demand = field(default_factory=Demand)
    supply: Supply = field(default_factory=Supply)
    peaks: Peaks = field(default_factory=Peaks)
    useful: Peaks = field(default_factory=Peaks)
    choice: Choice = field(default_factory=Choice)
    flapping: Flapping = field(default_factory=Flapping)
    limited: bool = False
    short: bool = False
    ample: bool = False
    batching: Batching = field(default_factory=Batching)
    request: CapacityRequest | None = None
    allocation: Allocation | None = None

    @property
    def spec(self) -> ServiceSpec | None:
        """The spec of the last decision."""
        return None if self.last is None else self.last.facts.spec

    @property
    def decided_at(self) -> float | None:
        """Time of the last decision, in seconds since the epoch."""
        return None if self.last is None else self.last.at

    def held(self, known: ServiceSnapshot, now: float, timing: Timing) -> Last | None:
        """Return the last decision if it held everything, on the same facts, less than a scrape interval ago.

        Most services are quiet, and engines are scraped less often than decisions are made. Changes that only need time
        (the end of a hold time, a replica that waited too long) are thus delayed by up to one scrape interval. A new
        scrape, another pod, an edited spec or the time of a schedule is decided on at once.
        """
        last = self.last
        if last is None or last.decision.verdict.action is not Action.HOLD or not now < last.until:
            return None
        return last if 0.0 <= now - last.at < timing.scrape_seconds and last.facts == known else None


Selector = tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str, str, str], ...]]
"""Resource, node labels and tolerations: an accelerator as the scheduler sees it, independent of its name."""


Shortages = Mapping[Selector, tuple[float, float]]
"""Accelerators that proved short: until when the fleet allocates them, and for how many seconds.

After that they are requested again, to check whether nodes can be provisioned. The second number doubles each time.
"""


@value
class Promise:
    """Other services are giving up GPUs of an accelerator for a service, since `since` (seconds)."""

    accelerator: str
    since: float


@value
class FleetContext:
    """What the decision about one service depends on, besides the service itself and the nodes.

    `allocation` is None where it may have as much as it wants, `promise` is what other services give up for it.
    `unanswered` are the numbers, from 0, of its questions to the engine model that had no answer in that tick.
    """

    allocation: Allocation | None = None
    promise: Promise | None = None
    unanswered: tuple[int, ...] = ()


@value
class Fleet:
    """State of all services together."""

    shortages: Shortages = field(default_factory=dict)
    promises: Mapping[ServiceKey, Promise] = field(default_factory=dict)


@value
class Memory:
    """State of each service, and of all together; the state of deleted services is dropped."""

    services: Mapping[ServiceKey, ServiceMemory] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
