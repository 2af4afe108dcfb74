"""One service as the steps after learning see it, in parts: each step takes the parts that it uses."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica
from holdfast.domain.service import ServiceSpec, Slo
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate.batch_work import BatchAsk
from holdfast.policy.estimate.class_budgets import ClassState, hardest
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.health.backoff import Backoff
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.memory import Demand, ServiceMemory, Supply
from holdfast.policy.placement.choice import Choice
from holdfast.policy.placement.options import Option

LASTING_SECONDS = 60.0
"""A node rejects a pod within seconds."""


class Bound(NamedTuple):
    """The fewest replicas, or the size that a guard allows instead, and why."""

    replicas: int
    reason: Reason
    sentence: str


@value
class ServiceState:
    """What the tick at `now` shows of a service, and what was learned of it.

    `known` is what was remembered of it before. `groups` are the replicas of every accelerator, listed in the spec or
    not. `starting`: capacity is on its way. `classes` are one where the service has none.
    """

    service: ServiceSnapshot
    known: ServiceMemory
    now: float
    seen: Seen
    groups: tuple[Group, ...]
    starting: bool
    demand: Demand
    supply: Supply
    classes: tuple[ClassState, ...]

    @property
    def slo(self) -> SloState:
        """The state of the class that is hardest to keep, which stands for the service."""
        return hardest(self.classes).state

    @property
    def objectives(self) -> Slo:
        """The objectives that `slo` is about."""
        return hardest(self.classes).slo

    @property
    def spec(self) -> ServiceSpec:
        return self.service.spec

    @property
    def edited(self) -> bool:
        """Whether the spec differs from that of the last tick."""
        return self.known.spec is not None and self.known.spec.generation != self.spec.generation

    @property
    def doubt(self) -> str:
        """Why the size may rise but not shrink; empty where metrics are fresh and the history is known."""
        missing = self.service.missing_history
        if self.seen.fresh:
            return "" if missing is None else missing.sentence
        state, detail = self.seen.state.value, self.seen.detail or "see MetricsAvailable"
        return f"the size does not shrink while metrics are {state}: {detail}"

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
    def held(self) -> int:
        """Requests that wait for the first replica."""
        activator = self.service.activator
        return activator.waiting if activator is not None and activator.answers and not self.ready else 0

    @property
    def held_by_people(self) -> bool:
        """Whether the size is pinned, or only recommended."""
        return self.spec.pinned_replicas is not None or self.spec.recommend_only

    @property
    def let_go(self) -> bool:
        """Whether sizes are only recommended for a while, because somebody else set them back each time."""
        return self.spec.recommend_only and self.supply.set_backs.paused(self.now)

    @property
    def left_at_zero(self) -> bool:
        """Whether no replica runs because the size is set by people: a held request would never be served."""
        spec = self.spec
        recommended = spec.recommend_only and spec.pinned_replicas is None and any(g.exists for g in self.groups)
        return not self.size and (spec.pinned_replicas == 0 or recommended)

    @property
    def moving(self) -> bool:
        """Whether sizes or replicas change, people hold the size, or metrics are doubtful: no replica is removed."""
        moving = self.starting or any(group.rolling_out or not group.observed for group in self.groups)
        return moving or self.held_by_people or not self.seen.fresh

    def part(self, accelerator: str) -> Group:
        """Return all replicas of one accelerator, whether they are wanted or being drained."""
        return group_on(self.groups, accelerator)

    def in_backoff(self, accelerator: str) -> bool:
        """Return whether an accelerator was recently unavailable, or given up for other services."""
        return self.supply.backoffs.active(accelerator, self.now) is not None

    def stopped(self, accelerator: str) -> Backoff | None:
        """Return the backoff of an accelerator on which no more pods start, because too many ended."""
        backoff = self.supply.backoffs.active(accelerator, self.now)
        return backoff if backoff is not None and backoff.starts_none else None

    def bounded(self, accelerator: str, size: int) -> int:
        """Return the size, at most the replicas that last where no more are started."""
        if self.stopped(accelerator) is None:
            return size
        group = self.part(accelerator)
        starting = sum(self.now - replica.created_at >= LASTING_SECONDS for replica in group.starting)
        lasting = len(group.ready) + len(group.ailing) + starting
        return min(size, max(lasting, group.size_with(len(group.ready))))


@value
class Load:
    """What arrives and what waits: `forecast` is None where no load was ever observed, and then `demand_rps` is too.

    `backlog_requests` have waited for too long. `demand_rps` is the rate to size for now. `peaks` are the recent ones:
    they count for `hold_seconds`, and their levels, which may come back, for `return_seconds`. `useful` ones are
    those without `batch` work, which asks for more than all other requests do; None where it does not.
    """

    forecast: Forecast | None
    backlog_requests: float
    demand_rps: float | None
    peaks: Peaks
    useful: Peaks
    hold_seconds: float
    return_seconds: float = 0.0
    batch: BatchAsk | None = None


@value
class Selection:
    """The `chosen` one of the `considered` accelerators, and where replicas run.

    `own` are all replicas of the chosen accelerator. `group` are those of it and its pair, `others` those of every
    other accelerator. `allocation` is the fleet's share of it, None while there is enough for all services.
    """

    considered: tuple[Option, ...]
    choice: Choice
    chosen: Option
    own: Group
    group: Group
    others: tuple[Group, ...]
    allocation: Allocation | None = None

    @property
    def name(self) -> str:
        """Name of the chosen accelerator."""
        return self.chosen.name

    @property
    def belief(self) -> Belief:
        return self.chosen.belief

    @property
    def switching(self) -> bool:
        """Whether replicas run on other accelerators than the chosen one and its pair."""
        return any(group.size > 0 for group in self.others)

    @property
    def paired(self) -> tuple[str, ...]:
        """The accelerator of the pair that serves next to the chosen one, if there is one."""
        return () if self.chosen.pair is None else (self.chosen.pair.accelerator,)

    def option(self, accelerator: str) -> Option | None:
        """Return the option for an accelerator; None where it is no longer listed."""
        return next((option for option in self.considered if option.name == accelerator), None)

    def is_forbidden(self, group: Group) -> bool:
        """Return whether the spec or the objectives rule an accelerator out: it is not requested again."""
        option = self.option(group.accelerator)
        return option is None or option.forbidden or not option.belief.feasible


@value
class Minimum:
    """The lower bound by the spec, and the fewest replicas for the load, the held requests and the KV cache.

    `scheduled` are the minimums of the schedules. `slumber` says whether the service is scaled to zero; where it may
    be, the last replica stays until no request came for `idle_seconds`. `waking` replicas carry the held requests,
    `carrying` ones the load and those, and hold the KV cache that is expected within the lead time, which asks for the
    most of them where `cache_rules`. `above_demand`: the lower bound is more than the demand needs. `at_zero`: no
    replica runs, and none should.
    """

    least: Bound
    scheduled: ScheduledMinimums
    slumber: Slumber
    idle_seconds: float
    waking: int
    carrying: int
    cache_rules: bool
    above_demand: bool
    at_zero: bool

    @property
    def asleep(self) -> bool:
        """Whether no replica is wanted: no request came for long enough, and the activator holds the next one."""
        return self.slumber is Slumber.ASLEEP

    @property
    def schedule_rules(self) -> bool:
        """Whether a schedule requires more replicas than the demand."""
        return self.least.reason is Reason.SCHEDULED_FLOOR and self.above_demand


@value
class Replacement:
    """Replicas to remove now, and those to run in place of others.

    `going` replicas serve on nodes that are cordoned or about to be removed. `leaving` are those removed now, by
    accelerator. `successors` start before a going one is removed, and `with_successor` is the size with them; 0 where
    none is to start. The chosen accelerator substitutes for `lacking` replicas of its pair. `spare` replicas run in
    place of ailing, failing, going and lacking ones, and `needed` are all that are asked for. `restarting` is the sick
    group of pods that is restarted now.
    """

    going: tuple[Replica, ...]
    ailing_to_let_go: int
    restarting: Replica | None
    going_to_let_go: int
    leaving: Counter[str]
    successors: int
    with_successor: int
    lacking: int
    spare: int
    needed: int


@value
class View:
    """All parts."""

    state: ServiceState
    load: Load
    selection: Selection
    minimum: Minimum
    replacement: Replacement
