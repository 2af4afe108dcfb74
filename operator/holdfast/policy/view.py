"""One service as the last steps of a decision see it: estimates, health and options in one value."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from holdfast.api.quantities import format_duration
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica
from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate.demand import Peaks, replicas_for
from holdfast.policy.estimate.flapping import Flapping
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import NO_SCHEDULED_MINIMUMS, ScheduledMinimums
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.health.backoff import Backoff
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.memory import Demand, Supply
from holdfast.policy.placement.choice import Choice
from holdfast.policy.placement.options import Option

LEAST_HELD_SECONDS = 15.0
"""Shortest time over which the rate of held requests is computed."""

LASTING_SECONDS = 60.0
"""A node rejects a pod within seconds."""

NO_ACTIVATOR = "scaling.min is 0, but no activator runs to hold requests; start the operator with --activator-image"

BALANCE = "balance each request, as gateways can, or have clients close connections (Connection: close)"


class Bound(NamedTuple):
    """The fewest replicas, or the size that a guard allows instead, and why."""

    replicas: int
    reason: Reason
    sentence: str


@lru_cache(maxsize=1024)
def _declared(field: str, replicas: int) -> Bound:
    return Bound(replicas, Reason.AT_MINIMUM, f"{field} is {replicas}")


@value
class View:
    """Facts and estimates about one service at `now`, before its size is decided.

    `group` are the replicas of the chosen accelerator and its pair. `others` are those of every other accelerator,
    listed in the spec or not. `starting`: capacity is on its way. `forecast` is None where no load was ever observed.

    `backlog_requests` have waited for too long. `demand_rps` is the rate to size for now, and `peaks` are the recent
    ones. `scheduled` are the minimums of the schedules. `allocation` is the fleet's share of the chosen accelerator,
    None while there is enough for all services.

    `slumber` says whether the service is scaled to zero. Where it may be, the last replica stays until no request came
    for `idle_seconds`. `edited`: the spec differs from that of the last tick.
    """

    service: ServiceSnapshot
    now: float
    seen: Seen
    groups: tuple[Group, ...]
    group: Group
    others: tuple[Group, ...]
    starting: bool
    demand: Demand
    supply: Supply
    peaks: Peaks
    choice: Choice
    flapping: Flapping
    slo: SloState
    forecast: Forecast | None
    backlog_requests: float
    demand_rps: float | None
    hold_seconds: float
    considered: tuple[Option, ...]
    chosen: Option
    return_seconds: float = 0.0
    scheduled: ScheduledMinimums = NO_SCHEDULED_MINIMUMS
    allocation: Allocation | None = None
    slumber: Slumber = Slumber.AWAKE
    idle_seconds: float = 0.0
    edited: bool = False

    @property
    def spec(self) -> ServiceSpec:
        return self.service.spec

    @property
    def belief(self) -> Belief:
        return self.chosen.belief

    @property
    def kv_replicas(self) -> int:
        """Replicas that hold the KV cache which the requests are expected to take within the lead time."""
        return self.supply.kv_cache.replicas(self.supply.lead_seconds, self.belief.facts.kv_tokens)

    @property
    def carrying(self) -> int:
        """Replicas that the load, held requests and the minimum ask for."""
        return max(self.chosen.replicas, self.waking, self.least.replicas)

    @property
    def needed(self) -> int:
        """Replicas that are asked for, also by the KV cache, with those in place of failing ones."""
        return max(self.carrying, self.kv_replicas) + self.spare

    @property
    def doubt(self) -> str:
        """Why the size may rise but not shrink; empty where metrics are fresh and the history is known."""
        missing = self.service.missing_history
        if self.seen.fresh:
            return "" if missing is None else missing.sentence
        state, detail = self.seen.state.value, self.seen.detail or "see MetricsAvailable"
        return f"the size does not shrink while metrics are {state}: {detail}"

    @property
    def switching(self) -> bool:
        """Whether replicas run on other accelerators than the chosen one and its pair."""
        return any(group.size > 0 for group in self.others)

    @property
    def size(self) -> int:
        """Replicas wanted by all Deployments together."""
        return sum(group.size for group in self.groups)

    @property
    def sizes(self) -> dict[str, int]:
        """Replicas wanted by each Deployment, by accelerator."""
        return {group.accelerator: group.size for group in self.groups}

    @property
    def ready(self) -> int:
        """Ready replicas on all accelerators."""
        return sum(len(group.ready) for group in self.groups)

    @property
    def held_by_people(self) -> bool:
        """Whether the size is pinned, or only recommended."""
        return self.spec.pinned_replicas is not None or self.spec.recommend_only

    @property
    def let_go(self) -> bool:
        """Whether sizes are only recommended for a while, because somebody else set them back each time."""
        return self.spec.recommend_only and self.supply.set_backs.paused(self.now)

    @property
    def least(self) -> Bound:
        """The lower bound: scaling.min, or a higher scaling.minOnDemand or scheduled minimum."""
        spec, floor = self.spec, self.scheduled.now
        least, on_demand = spec.min_replicas, spec.min_on_demand
        if floor is not None and floor.replicas > max(least, on_demand):
            return Bound(floor.replicas, Reason.SCHEDULED_FLOOR, floor.sentence)
        if not self.asleep and on_demand > max(1, least):
            return _declared("scaling.minOnDemand", on_demand)
        if least == 0 and not self.asleep:
            return self._least_near_zero
        return _declared("scaling.min", least)

    @property
    def asleep(self) -> bool:
        """Whether no replica is wanted: no request came for long enough, and the activator holds the next one."""
        return self.slumber is Slumber.ASLEEP

    @property
    def at_zero(self) -> bool:
        """Whether no replica runs, and none should."""
        return not self.size and (self.asleep or self.left_at_zero)

    @property
    def left_at_zero(self) -> bool:
        """Whether no replica runs because the size is set by people: a held request would never be served."""
        spec = self.spec
        recommended = spec.recommend_only and spec.pinned_replicas is None and any(g.exists for g in self.groups)
        return not self.size and (spec.pinned_replicas == 0 or recommended)

    @property
    def held(self) -> int:
        """Requests that wait for the first replica."""
        activator = self.service.activator
        return activator.waiting if activator is not None and activator.answers and not self.ready else 0

    @property
    def waking(self) -> int:
        """Replicas that carry the held requests at the rate they arrived, as far as a few seconds show it."""
        activator, rate_rps = self.service.activator, self.belief.rate_rps
        if activator is None or not self.held or not rate_rps > 0.0:
            return 0
        came_within = max(activator.oldest_seconds, self.spec.slo.ttft_seconds, LEAST_HELD_SECONDS)
        return replicas_for(activator.waiting / came_within, rate_rps)

    @property
    def _least_near_zero(self) -> Bound:
        """The lower bound, with the reason why a service that may scale to zero does not."""
        silent = Reason.ACTIVATOR_SILENT
        if self.service.activator is None:
            return Bound(1, silent, NO_ACTIVATOR)
        if self.demand.idle.silent(self.now):
            return Bound(1, silent, "the activator does not answer, so one replica stays up to serve requests")
        if self.held:
            return Bound(1, Reason.REQUESTS_HELD, "the activator holds requests until a replica is ready")
        spell = format_duration(float(round(self.idle_seconds)))
        text = f"scaling.min is 0: the last replica is removed after {spell} without a request"
        return Bound(1, Reason.AT_MINIMUM, text)

    @property
    def above_demand(self) -> bool:
        """Whether the lower bound is more than the demand needs."""
        return replicas_for(self.demand_rps or 0.0, self.belief.rate_rps) < self.least.replicas

    @property
    def schedule_rules(self) -> bool:
        """Whether a schedule requires more replicas than the demand."""
        return self.least.reason is Reason.SCHEDULED_FLOOR and self.above_demand

    @property
    def ailing_to_let_go(self) -> int:
        """Ailing replicas to remove now, without a loss of capacity or of further requests: one at a time.

        None is removed while people set the size, metrics are doubtful, or something starts: Kubernetes would remove
        that instead. Where no more replicas are available, one is removed below the minimum, and its successor follows.

        One that still serves stays while other replicas have no room for its load: they would answer late as well.
        """
        group = self.group
        if not group.ailing or self._moving:
            return 0
        least, waiting = self.least.replicas, len(self._before_ailing)
        has_room = group.baseline < self.chosen.most and not waiting and self.allocation is None
        if self.supply.sick.serve and has_room and len(group.ready) < max(self.chosen.replicas, least):
            return 0
        return max(0, min(1, group.baseline - waiting - max(1, least - (not has_room))))

    @property
    def leaving(self) -> Counter[str]:
        """Replicas removed at once, by accelerator: ailing ones, those that Kubernetes removes before them, and going
        ones whose successor serves.
        """
        ailing = self.group.ailing[: self.ailing_to_let_go]
        removed = (*ailing, *(self._before_ailing if ailing else ()), *self.going[: self.going_to_let_go])
        return Counter([replica.accelerator for replica in removed])

    @property
    def going(self) -> tuple[Replica, ...]:
        """Serving replicas on nodes that are cordoned or about to be removed."""
        return tuple([replica for replica in self.group.ready if replica.closing])

    @property
    def successors(self) -> int:
        """Replicas to start before a going one is removed: one at a time, and none where no GPU was found."""
        going = len(self.going)
        stay = len(self.group.ready) - going
        return int(going > 0 and stay < self._enough and not self.in_backoff(self.chosen.name))

    @property
    def going_to_let_go(self) -> int:
        """Going replicas to remove now, because the other ones serve as much: one at a time."""
        if not self.going or self.ailing_to_let_go or self._moving or self.group.short:
            return 0
        return int(len(self.group.ready) > self._enough)

    @property
    def with_successor(self) -> int:
        """The size with a successor on top of what runs; 0 where none is to start."""
        baseline = self.group.baseline
        return baseline + (len(self.group.ready) >= baseline) if self.successors else 0

    @property
    def _enough(self) -> int:
        """Replicas that carry the load, its recent peaks, the error of its forecast, and the KV cache.

        Where the load is unknown: as many as ran before the node closed.
        """
        if self.forecast is None or self.demand_rps is None or not self.belief.sized:
            closing = self.supply.closing
            return max(self.least.replicas, self.waking, closing.size if closing else 0)
        carrying = replicas_for(max(self.peaks.rate_rps, self.forecast.releasable_rps), self.belief.rate_rps)
        return max(self.carrying, self.kv_replicas, carrying)

    @property
    def _moving(self) -> bool:
        """Whether sizes or replicas change, people hold the size, or metrics are doubtful: no replica is removed."""
        moving = self.starting or any(group.rolling_out or not group.observed for group in self.groups)
        return moving or self.held_by_people or not self.seen.fresh

    @property
    def _before_ailing(self) -> tuple[Replica, ...]:
        """Replicas without a node on accelerators with ailing ones.

        Kubernetes removes unscheduled pods first, whatever the replicas are worth.
        """
        ailing_on = {replica.accelerator for replica in self.group.ailing}
        return tuple([replica for replica in self.group.short if replica.accelerator in ailing_on])

    @property
    def paired(self) -> tuple[str, ...]:
        """The accelerator of the pair that serves next to the chosen one, if there is one."""
        return () if self.chosen.pair is None else (self.chosen.pair.accelerator,)

    @property
    def own(self) -> Group:
        """All replicas of the chosen accelerator, without its pair."""
        return self.part(self.chosen.name)

    @property
    def lacking(self) -> int:
        """Replicas of the pair's accelerator that have no node and that the load needs.

        The chosen accelerator substitutes for them.
        """
        if self.chosen.pair is None:
            return 0
        needed = self.chosen.replicas
        if self.demand_rps is not None:
            needed = min(needed, max(1, replicas_for(self.demand_rps, self.belief.rate_rps)))
        return max(0, len(self.group.short) - len(self.own.short) - (self.chosen.replicas - needed))

    @property
    def spare(self) -> int:
        """Replicas to run in place of retained ailing ones, failing or going ones, and the pair's missing ones."""
        group = self.group
        substitutes = max(group.in_place_of_failing, self.successors)
        return substitutes + len(group.ailing) - self.ailing_to_let_go + self.lacking

    def part(self, accelerator: str) -> Group:
        """Return all replicas of one accelerator, whether they are wanted or being drained."""
        return group_on(self.groups, accelerator)

    def option(self, accelerator: str) -> Option | None:
        """Return the option for an accelerator; None where it is no longer listed."""
        return next((option for option in self.considered if option.name == accelerator), None)

    def in_backoff(self, accelerator: str) -> bool:
        """Return whether an accelerator was recently unavailable, or given up for other services."""
        return self.supply.backoffs.active(accelerator, self.now) is not None

    def stopped(self, accelerator: str) -> Backoff | None:
        """Return the backoff of an accelerator of which no more pods are started, because too many ended."""
        backoff = self.supply.backoffs.active(accelerator, self.now)
        return backoff if backoff is not None and backoff.starts_none else None

    def bounded(self, accelerator: str, size: int) -> int:
        """Return the size, at most the replicas that last where no more are started."""
        if self.stopped(accelerator) is None:
            return size
        group = self.part(accelerator)
        starting = sum(self.now - replica.created_at >= LASTING_SECONDS for replica in group.starting)
        return min(size, len(group.ready) + len(group.ailing) + starting)

    def is_forbidden(self, group: Group) -> bool:
        """Return whether the spec or the objectives rule an accelerator out: it is not requested again."""
        option = self.option(group.accelerator)
        return option is None or option.forbidden or not option.belief.feasible
