"""Accelerators that cannot be had for the time being, and when each is tried again."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.health.replicas import Group
from holdfast.policy.settings import PolicySettings


@value
class Backoff:
    """Why an accelerator is out until `until`; `delay_seconds` doubles from one setback to the next.

    `asked`: replicas that there should have been when nodes were short, and `placed` those that had one. Of it `own`
    served then, or were about to, and `elsewhere` of other accelerators.
    """

    accelerator: str
    until: float
    delay_seconds: float
    reason: Reason
    detail: str
    asked: int = 0
    placed: int = 0
    own: int = 0
    elsewhere: int = 0


@value
class Backoffs:
    """`past` holds one setback per accelerator, over or not; `failing_since` when replicas were first seen to fail.

    `places`: how many replicas of each spot accelerator have, or lost, a node.
    """

    past: tuple[Backoff, ...] = ()
    failing_since: tuple[tuple[str, float], ...] = ()
    places: tuple[tuple[str, int], ...] = ()

    def active(self, accelerator: str, now: float) -> Backoff | None:
        return next((s for s in self.past if s.accelerator == accelerator and now < s.until), None)

    def given_up(self, accelerator: str, detail: str, now: float, settings: PolicySettings) -> Backoffs:
        """Return what follows from leaving an accelerator to others."""
        delay = settings.retry_seconds + settings.yielding_seconds
        left = Backoff(accelerator, now + delay, delay, Reason.CAPACITY_LIMITED, detail)
        return replace(self, past=(*(s for s in self.past if s.accelerator != accelerator), left))

    def after_edit(self, old: ServiceSpec, new: ServiceSpec) -> Backoffs:
        """Return what an edit leaves true: other pods, or fewer, may run where the last ones could not.

        What was left to others is asked for anew, for it may be worth more now.
        """
        fewer = _lowered(old.max_replicas, new.max_replicas)
        same = {o.name for o in old.accelerators if not fewer and _is_as_hard(o, new.accelerator(o.name))}
        return Backoffs(
            tuple(s for s in self.past if s.accelerator in same and s.reason is not Reason.CAPACITY_LIMITED),
            tuple(since for since in self.failing_since if since[0] in same),
            tuple(place for place in self.places if place[0] in same),
        )

    def last(self, accelerator: str) -> Backoff | None:
        return next((s for s in self.past if s.accelerator == accelerator), None)


def _is_as_hard(old: AcceleratorOption, new: AcceleratorOption | None) -> bool:
    """Whether the same pods are asked for, whatever one costs, and as many."""
    if new is None or _lowered(old.max_replicas, new.max_replicas):
        return False
    return old == replace(new, cost_per_gpu_hour=old.cost_per_gpu_hour, max_replicas=old.max_replicas)


def _lowered(before: int | None, after: int | None) -> bool:
    return after is not None and (before is None or after < before)


def watch_backoffs(
    memory: Backoffs,
    groups: tuple[Group, ...],
    now: float,
    settings: PolicySettings,
    awaited: str = "",
    spot: frozenset[str] = frozenset(),
) -> Backoffs:
    """Note which accelerators proved unavailable; one that serves in full what was asked of it has a clean sheet.

    Of the one that is `awaited` others may still give something up: that it is full proves nothing yet. Of `spot` ones
    what is left serves in full as soon as no more is asked for: their sheet is clean once they have gone without a
    setback for as long as the last one lasted.
    """
    if not (memory.past or memory.failing_since or spot) and not any(group.useless for group in groups):
        return memory
    failing, places = dict(memory.failing_since), dict(memory.places)
    past = {backoff.accelerator: backoff for backoff in memory.past}
    for group in groups:
        if group.ready or not group.size:
            failing.pop(group.accelerator, None)
        elif group.failing:  # a crash loop looks like starting between two crashes: the time goes on
            failing.setdefault(group.accelerator, now)
        reclaimed = _reclaimed(group, places) if group.accelerator in spot else None
        if group.ready and not group.useless and len(group.ready) >= group.size:
            if not _is_given_up(past.get(group.accelerator), group, now, group.accelerator in spot):
                past.pop(group.accelerator, None)
        elif memory.active(group.accelerator, now) is None:
            waits = group.accelerator == awaited
            found = reclaimed or _found(group, now - failing.get(group.accelerator, now), settings, waits)
            if found is not None:
                elsewhere = sum(other.to_serve for other in groups if other is not group)
                past[group.accelerator] = _next(memory.last(group.accelerator), group, found, now, settings, elsewhere)
    there = tuple((name, places[name]) for name in sorted(group.accelerator for group in groups) if places.get(name))
    return Backoffs(tuple(past[name] for name in sorted(past)), tuple(sorted(failing.items())), there)


def _reclaimed(group: Group, places: dict[str, int]) -> tuple[Reason, str] | None:
    """Spot replicas that had a node, are still wanted, and find no other one: waiting for nodes would be in vain.

    What drains still holds its place, which the next one may get.
    """
    silent = sum(replica.reason == Reason.NODE_LOST for replica in group.failing)
    placed, had = group.placed - silent, min(places.get(group.accelerator, 0), group.size)
    places[group.accelerator] = max(min(placed, group.size), had)
    waiting = (*group.pending, *group.short)
    if not waiting or placed >= had or group.rolling_out:
        return None
    return Reason.INSUFFICIENT_GPUS, _words(waiting[0]) or "the nodes of spot replicas have gone"


def _is_given_up(backoff: Backoff | None, group: Group, now: float, spot: bool) -> bool:
    """It serves in full until those elsewhere do, and is still left to others; or less is asked of it meanwhile."""
    if backoff is None:
        return False
    lately = backoff.until - backoff.delay_seconds <= now < backoff.until + backoff.delay_seconds
    if lately and (spot or group.size < backoff.asked):
        return True
    return backoff.reason is Reason.CAPACITY_LIMITED and now < backoff.until


def _found(group: Group, failing_seconds: float, settings: PolicySettings, waits: bool) -> tuple[Reason, str] | None:
    """Why the accelerator is unavailable; failing replicas beside ready ones are their own problem."""
    if group.short and not waits:
        return Reason.INSUFFICIENT_GPUS, _words(group.short[0]) or "the scheduler found no node"
    if group.ready:
        return None
    if group.failing and failing_seconds >= settings.failing_seconds:
        return failing_reason(group.failing[0]), _words(group.failing[0])
    if group.stuck and not group.coming:
        return Reason.PROGRESS_DEADLINE_EXCEEDED, f"not ready after {settings.starting_seconds:.0f} s"
    return None


def _next(
    last: Backoff | None, group: Group, found: tuple[Reason, str], now: float, settings: PolicySettings, elsewhere: int
) -> Backoff:
    delay = settings.retry_seconds if last is None else min(2.0 * last.delay_seconds, settings.longest_retry_seconds)
    asked = (group.size, group.placed, group.to_serve, elsewhere) if found[0] is Reason.INSUFFICIENT_GPUS else ()
    return Backoff(group.accelerator, now + delay, delay, *found, *asked)


IMAGE_WORDS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")


def failing_reason(replica: Replica) -> Reason:
    """The reason that a failing replica's own words stand for."""
    if replica.reason in IMAGE_WORDS:
        return Reason.IMAGE_PULL_FAILING
    return next((reason for reason in Reason if reason.value == replica.reason), Reason.ENGINE_FAILING)


def _words(replica: Replica) -> str:
    return ": ".join(filter(None, (replica.reason, replica.detail)))
