"""One service as the last steps of a decision see it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from holdfast.api.quantities import format_duration
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica
from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate.demand import Peaks, replicas_for
from holdfast.policy.estimate.flapping import Flapping
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import NO_SCHEDULED_MINIMUMS, ScheduledMinimums
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.estimate.traffic import Seen
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.memory import Learned
from holdfast.policy.placement.choice import Choice
from holdfast.policy.placement.options import Option

LEAST_HELD_SECONDS = 15.0
"""A rate is not read from requests that came within less."""

NO_ACTIVATOR = "scaling.min is 0, but nothing would hold requests: start the operator with --activator-image"


class Least(NamedTuple):
    """Fewest replicas, and what asks for them."""

    replicas: int
    reason: Reason
    sentence: str


@lru_cache(maxsize=1024)
def _declared(field: str, replicas: int) -> Least:
    return Least(replicas, Reason.AT_MINIMUM, f"{field} is {replicas}")


@value
class View:
    """What is known and believed of one service at `now`, before a size is decided.

    `group` are the replicas of the accelerator that was chosen and of its pair, `others` those of any other, listed or
    no longer listed; `starting`: capacity is on its way. `forecast` is None where no load was ever seen.
    `backlog_requests` wait longer than they should; `demand_rps` is what sizes are made for now, `peaks` what they were
    made for before. `scheduled` are those of the schedules. `allocation` is what the fleet leaves of the chosen
    accelerator, None as long as there is enough. `slumber` says whether the service rests; where it may, the last
    replica stays until no request came for `idle_seconds`. `edited`: the spec is another one than at the last look.
    """

    service: ServiceSnapshot
    now: float
    seen: Seen
    groups: tuple[Group, ...]
    group: Group
    others: tuple[Group, ...]
    starting: bool
    learned: Learned
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
    def switching(self) -> bool:
        return any(group.size > 0 for group in self.others)

    @property
    def size(self) -> int:
        """Replicas wanted by all Deployments together."""
        return sum(group.size for group in self.groups)

    @property
    def ready(self) -> int:
        return sum(len(group.ready) for group in self.groups)

    @property
    def held_by_people(self) -> bool:
        """The size is pinned, or only recommended."""
        return self.spec.pinned_replicas is not None or self.spec.recommend_only

    @property
    def least(self) -> Least:
        """The bound from below: scaling.min, or scaling.minOnDemand or a schedule's floor that is higher."""
        spec, floor = self.spec, self.scheduled.now
        least, regular = spec.min_replicas, spec.min_on_demand
        if floor is not None and floor.replicas > max(least, regular):
            return Least(floor.replicas, Reason.SCHEDULED_FLOOR, floor.sentence)
        if not self.asleep and regular > max(1, least):
            return _declared("scaling.minOnDemand", regular)
        if least == 0 and not self.asleep:
            return self._last_one
        return _declared("scaling.min", least)

    @property
    def asleep(self) -> bool:
        """No replica is wanted: no request came for long enough, and the next one is held."""
        return self.slumber is Slumber.ASLEEP

    @property
    def at_zero(self) -> bool:
        """No replica runs, and none should."""
        return not self.size and (self.asleep or self.left_at_zero)

    @property
    def left_at_zero(self) -> bool:
        """No replica runs, and people hold the size: whoever waited for one would wait in vain."""
        spec = self.spec
        recommended = spec.recommend_only and spec.pinned_replicas is None and any(g.exists for g in self.groups)
        return not self.size and (spec.pinned_replicas == 0 or recommended)

    @property
    def held(self) -> int:
        """Requests that wait for the first replica."""
        told = self.service.activator
        return told.waiting if told is not None and told.answers and not self.ready else 0

    @property
    def waking(self) -> int:
        """Replicas that carry the requests held as fast as they came, as far as a few seconds tell."""
        told, rate_rps = self.service.activator, self.belief.rate_rps
        if told is None or not self.held or not rate_rps > 0.0:
            return 0
        came_within = max(told.oldest_seconds, self.spec.slo.ttft_seconds, LEAST_HELD_SECONDS)
        return replicas_for(told.waiting / came_within, rate_rps)

    @property
    def _last_one(self) -> Least:
        """Why a service that may rest does not."""
        if self.service.activator is None:
            return Least(1, Reason.ACTIVATOR_SILENT, NO_ACTIVATOR)
        if self.learned.idle.silent(self.now):
            return Least(1, Reason.ACTIVATOR_SILENT, "its activator does not answer, a replica takes requests itself")
        if self.held:
            return Least(1, Reason.REQUESTS_HELD, "requests are held until a replica serves")
        spell = format_duration(float(round(self.idle_seconds)))
        return Least(1, Reason.AT_MINIMUM, f"scaling.min is 0: the last replica goes once no request came for {spell}")

    @property
    def schedule_rules(self) -> bool:
        """A schedule keeps more replicas than the demand asks for."""
        least = self.least
        scheduled = least.reason is Reason.SCHEDULED_FLOOR
        return scheduled and replicas_for(self.demand_rps or 0.0, self.belief.rate_rps) < least.replicas

    @property
    def ailing_to_let_go(self) -> int:
        """Ailing replicas that can go at once: that takes no capacity, and no more requests than are lost already.

        Not while people hold the size, metrics are in doubt, or something starts that Kubernetes would remove instead.
        Where no more can be had, one goes below the minimum: it is none of those that serve, and its successor is next.
        What a lagging one answers late would make others late that have no room for it.
        """
        if not self.group.ailing or (self.learned.straggler.sure and not self._without_laggard):
            return 0
        moving = self.starting or any(group.rolling_out or not group.observed for group in self.groups)
        if moving or self.held_by_people or not self.seen.fresh:
            return 0
        least = max(1, self.least.replicas - (not self._room))
        return max(0, min(len(self.group.ailing), self.group.baseline - len(self._before_ailing) - least))

    @property
    def leaving(self) -> Counter[str]:
        """Replicas that go at once, by accelerator: ailing ones, and those that Kubernetes removes before them."""
        gone = self.group.ailing[: self.ailing_to_let_go]
        return Counter([replica.accelerator for replica in (*gone, *(self._before_ailing if gone else ()))])

    @property
    def _before_ailing(self) -> tuple[Replica, ...]:
        """Replicas without a node beside ailing ones: Kubernetes removes them first, whatever they are worth."""
        ailing_on = {replica.accelerator for replica in self.group.ailing}
        return tuple([replica for replica in self.group.short if replica.accelerator in ailing_on])

    @property
    def _room(self) -> bool:
        """More replicas can be had beside ailing ones."""
        return self.group.baseline < self.chosen.most and not self._before_ailing and self.allocation is None

    @property
    def _without_laggard(self) -> bool:
        """The others carry the load, or no more replicas can be had beside a lagging one."""
        return not self._room or len(self.group.ready) >= max(self.chosen.replicas, self.least.replicas)

    @property
    def paired(self) -> tuple[str, ...]:
        """The accelerator that serves by choice beside the chosen one, if there is one."""
        return () if self.chosen.pair is None else (self.chosen.pair.accelerator,)

    @property
    def migration_paused(self) -> bool:
        """Whether nothing is given up for the next ones, since others would get it."""
        return self.allocation is not None and self.allocation.paused

    @property
    def own(self) -> Group:
        """All replicas of the chosen accelerator alone."""
        return self.part(self.chosen.name)

    @property
    def lacking(self) -> int:
        """Replicas of a pair's other accelerator without a node: the chosen one stands in for those the load needs."""
        if self.chosen.pair is None:
            return 0
        asked = self.chosen.replicas
        if self.demand_rps is not None:
            asked = min(asked, max(1, replicas_for(self.demand_rps, self.belief.rate_rps)))
        return max(0, len(self.group.short) - len(self.own.short) - (self.chosen.replicas - asked))

    @property
    def spare(self) -> int:
        """Replicas to run in place of ailing ones that stay for now, of failing ones, and of those a pair lacks."""
        group = self.group
        return group.in_place_of_failing + len(group.ailing) - self.ailing_to_let_go + self.lacking

    def part(self, accelerator: str) -> Group:
        """All replicas of one accelerator, whether they serve by choice or are being left."""
        if self.chosen.pair is not None:
            return self.group_of(accelerator)
        return group_on((self.group, *self.others), accelerator)

    def option(self, accelerator: str) -> Option | None:
        """What is considered of an accelerator, None where it is no longer listed."""
        return next((option for option in self.considered if option.name == accelerator), None)

    def in_backoff(self, accelerator: str) -> bool:
        """Whether it could not be had a short while ago, or was left to others."""
        return self.learned.backoffs.active(accelerator, self.now) is not None

    def group_of(self, accelerator: str) -> Group:
        return group_on(self.groups, accelerator)

    def is_forbidden(self, group: Group) -> bool:
        """Whether the spec or the objectives rule its accelerator out: it will not be asked for again."""
        option = self.option(group.accelerator)
        return option is None or option.forbidden or not option.belief.feasible
