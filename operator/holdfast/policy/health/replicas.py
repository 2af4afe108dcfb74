"""Classify the replicas of one accelerator: serving, about to serve, or not going to serve."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import SCHEDULING_GATED, Placement, Replica, ReplicaPhase
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.policy.settings import PolicySettings


@value
class Group:
    """All replicas of one accelerator; `size` is spec.replicas of its Deployment.

    `pending` replicas wait for a node and may still get one. `short` replicas have waited longer than nodes take to be
    provisioned. `failing` replicas will not become capacity by waiting, nor will `stuck` ones, which have been starting
    for too long. `ailing` replicas are Ready but sick: their requests fail, or are late while others are in time.
    `ended` pods never served and ended within the time of a start, the newest last; they are no replicas.
    """

    accelerator: str
    size: int = 0
    exists: bool = False
    observed: bool = True
    rolling_out: bool = False
    ready: tuple[Replica, ...] = ()
    starting: tuple[Replica, ...] = ()
    pending: tuple[Replica, ...] = ()
    short: tuple[Replica, ...] = ()
    failing: tuple[Replica, ...] = ()
    stuck: tuple[Replica, ...] = ()
    ailing: tuple[Replica, ...] = ()
    draining: int = 0
    ended: tuple[Replica, ...] = ()

    @property
    def coming(self) -> tuple[Replica, ...]:
        """Replicas that will become capacity."""
        return self.starting + self.pending

    @property
    def useless(self) -> tuple[Replica, ...]:
        """Replicas that are neither capacity nor about to become it."""
        return self.short + self.failing + self.stuck + self.ailing

    @property
    def useful(self) -> int:
        """Wanted replicas that serve or may come to serve; useless replicas beyond the size do not reduce it."""
        return min(self.size, max(len(self.ready), self.size - len(self.useless)))

    @property
    def to_serve(self) -> int:
        """Replicas with a node that serve or are starting."""
        return len(self.ready) + len(self.starting)

    @property
    def placed(self) -> int:
        """Replicas that hold accelerators, including draining ones."""
        holding = (self.ready, self.starting, self.failing, self.stuck, self.ailing)
        return sum(map(len, holding)) + self.draining

    @property
    def baseline(self) -> int:
        """Size that a change starts from: spec.replicas, or the running replicas if the Deployment is gone."""
        return self.size if self.exists else len(self.ready) + len(self.coming)

    def size_with(self, ready: int) -> int:
        """The smallest size at which so many ready replicas stay: of groups of pods, those with the highest numbers go.

        0 where that asks for none; a pod that is no group has the number 0.
        """
        numbers = sorted(replica.number for replica in self.ready)
        return numbers[ready - 1] + 1 if 0 < ready <= len(numbers) else 0

    @property
    def in_place_of_failing(self) -> int:
        """Replicas to run in addition to failing ones, as far as others are expected to succeed.

        Where no replica serves, further replicas would fail as well, except for replicas whose node was lost. Each
        failing replica gets a substitute if a replica at least as new serves. While only the newest replicas fail, a
        single substitute is tried. During a rollout none is tried, because the new revision is the likely cause.
        """
        lost = self.failing + self.stuck
        if not lost:
            return 0
        newest = max((replica.created_at for replica in self.ready), default=-math.inf)
        substitutes = sum(replica.created_at <= newest or replica.reason == Reason.NODE_LOST for replica in lost)
        return max(substitutes, 1 if self.ready and not self.rolling_out else 0)


def group_on(groups: Iterable[Group], accelerator: str) -> Group:
    """Return the group of one accelerator; an empty group where it has none."""
    return next((group for group in groups if group.accelerator == accelerator), None) or Group(accelerator)


def anything_starting(groups: tuple[Group, ...]) -> bool:
    """Return whether capacity is on its way, even if its pods do not exist yet."""
    return any(group.coming or len(group.ready) + len(group.useless) < group.size for group in groups)


def group_replicas(
    service: ServiceSnapshot, now: float, settings: PolicySettings, ailing: frozenset[str] = frozenset()
) -> tuple[Group, ...]:
    """Group the replicas and Deployments of a service by accelerator, sorted by name.

    Replicas named in `ailing` do not count as capacity.
    """
    placements = {placement.accelerator: placement for placement in service.placements}
    found: dict[str, dict[str, list[Replica]]] = {name: {} for name in placements}
    for replica in sorted(service.replicas, key=lambda each: (each.created_at, each.name)):
        kinds = found.setdefault(replica.accelerator, {})
        kinds.setdefault(_counts_as(replica, now, settings, ailing), []).append(replica)
    # Where a node's clock is ahead of ours, its pods ended when they were created.
    ended = [e if e.ended_at <= now else replace(e, unready_at=e.created_at) for e in service.ended]
    lately = [e for e in ended if now - e.ended_at < settings.starting_seconds]
    lately.sort(key=lambda each: (each.ended_at, each.name))
    return tuple(_group(name, placements.get(name), found[name], lately) for name in sorted(found))


def ended_since(group: Group, at: float) -> tuple[Replica, ...]:
    """Return the pods that ended after `at`, seconds since the epoch."""
    return tuple(replica for replica in group.ended if replica.ended_at > at)


def _group(name: str, placed: Placement | None, found: dict[str, list[Replica]], ended: list[Replica]) -> Group:
    draining, known = len(found.pop("draining", ())), placed or Placement(name, 0)
    return Group(
        accelerator=name,
        size=max(0, known.replicas),
        exists=placed is not None,
        observed=known.observed,
        rolling_out=known.rolling_out,
        draining=draining,
        ended=tuple(each for each in ended if each.accelerator == name),
        **{kind: tuple(members) for kind, members in found.items()},
    )


def _counts_as(replica: Replica, now: float, settings: PolicySettings, ailing: frozenset[str]) -> str:
    """Return the field of `Group` that a replica belongs to."""
    phase = replica.phase
    if phase is ReplicaPhase.READY:
        return "ailing" if replica.name in ailing else "ready"
    if phase is ReplicaPhase.STARTING:
        return "starting" if now - replica.placed_at < settings.starting_seconds else "stuck"
    if phase is ReplicaPhase.UNSCHEDULABLE:
        gated = replica.reason == SCHEDULING_GATED  # a queue holds it: no other accelerator would help
        return "pending" if gated or now - replica.created_at < settings.provisioning_seconds else "short"
    return "failing" if phase is ReplicaPhase.FAILING else "draining"
