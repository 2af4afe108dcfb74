"""One service as the last steps of a decision see it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.policy.budget import SloState
from holdfast.policy.capacity import Belief
from holdfast.policy.forecast import Forecast
from holdfast.policy.memory import Learned
from holdfast.policy.placement import Choice, Option
from holdfast.policy.replicas import Group
from holdfast.policy.sizing import Peaks
from holdfast.policy.traffic import Seen
from holdfast.policy.turns import Turns


@dataclass(frozen=True, slots=True)
class View:
    """What is known and believed of one service at `now`, before a size is decided.

    `group` are the replicas of the accelerator that was chosen, `others` those of any other, listed or no longer
    listed; `starting`: capacity is on its way. `forecast` is None where no load was ever seen. `backlog_requests`
    wait longer than they should; `demand_rps` is what sizes are made for now, `peaks` what they were made for before.
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
    turns: Turns
    slo: SloState
    forecast: Forecast | None
    backlog_requests: float
    demand_rps: float | None
    hold_seconds: float
    considered: tuple[Option, ...]
    chosen: Option

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
    def hung_to_let_go(self) -> int:
        """Hung replicas that can go at once: that takes no capacity, and no more requests than are lost already.

        Not while people hold the size, metrics are in doubt, or something starts that Kubernetes would remove instead.
        """
        moving = self.starting or any(group.rolling_out or not group.observed for group in self.groups)
        if moving or self.held_by_people or not self.seen.fresh:
            return 0
        least = max(1, self.spec.min_replicas)
        return max(0, min(len(self.group.hung), self.group.baseline - least))

    def group_of(self, accelerator: str) -> Group:
        return next((group for group in self.groups if group.accelerator == accelerator), Group(accelerator))
