"""Backoff of unavailable accelerators: why each is unavailable, and when it is tried again."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import MOST_ENDED
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.health.replicas import Group, ended_since
from holdfast.policy.settings import PolicySettings

FLOOD_SECONDS = 600.0
"""At most `MOST_ENDED` pods of an accelerator may end within this time."""

_REACTION_SECONDS = 10.0  # so many pods as ended within two ticks end before a new size takes effect


@value
class Backoff:
    """Why an accelerator is in backoff until `until`; `delay_seconds` doubles from one backoff to the next.

    Where nodes were short or too many pods ended: `asked` is the number of replicas wanted, and `placed` the number
    with a node. `own` of this accelerator and `elsewhere` of others then served, or were starting on a node. `is_half`:
    a group of pods held nodes that are of no use without the others.
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
    is_half: bool = False

    @property
    def starts_none(self) -> bool:
        """Whether no more pods are started until it ends: too many ended, or waiting ones would hold nodes in vain."""
        return self.is_half or (self.reason is Reason.POD_ENDED and self.asked > 0)

    @property
    def begun(self) -> float:
        """When it began, in seconds since the epoch."""
        return self.until - self.delay_seconds


@value
class Backoffs:
    """The last backoff of each accelerator, active or expired, and since when its replicas fail.

    `failing_since`: when replicas were first observed to fail. `places`: replicas of each spot accelerator that have,
    or had, a node.
    """

    past: tuple[Backoff, ...] = ()
    failing_since: tuple[tuple[str, float], ...] = ()
    places: tuple[tuple[str, int], ...] = ()

    def last(self, accelerator: str) -> Backoff | None:
        """Return the last backoff of an accelerator, active or expired."""
        return next((s for s in self.past if s.accelerator == accelerator), None)

    def active(self, accelerator: str, now: float) -> Backoff | None:
        """Return the active backoff of an accelerator; None where there is none."""
        last = self.last(accelerator)
        return last if last is not None and now < last.until else None

    def given_up(self, accelerator: str, detail: str, now: float, settings: PolicySettings) -> Backoffs:
        """Return the state after an accelerator was given up for other services."""
        delay = settings.retry_seconds + settings.yielding_seconds
        backoff = Backoff(accelerator, now + delay, delay, Reason.CAPACITY_LIMITED, detail)
        return replace(self, past=(*(s for s in self.past if s.accelerator != accelerator), backoff))

    def after_edit(self, old: ServiceSpec, new: ServiceSpec) -> Backoffs:
        """Return the backoffs that an edit leaves valid.

        Changed pods, or fewer pods, may run where the last ones could not. An accelerator that was given up for other
        services is requested again, because it may be worth more now. Where pods ended, any edit may have mended the
        cause: that backoff is over, and the pods that ended before it say nothing of new ones.
        """
        fewer = _lowered(old.max_replicas, new.max_replicas)
        same = {o.name for o in old.accelerators if not fewer and _is_as_hard(o, new.accelerator(o.name))}
        kept = (s for s in self.past if s.accelerator in same and s.reason is not Reason.CAPACITY_LIMITED)
        return Backoffs(
            # Without a delay, the next one is as long as a first one.
            tuple(replace(s, until=s.begun, delay_seconds=0.0) if s.reason is Reason.POD_ENDED else s for s in kept),
            tuple(since for since in self.failing_since if since[0] in same),
            tuple(place for place in self.places if place[0] in same),
        )


def _is_as_hard(old: AcceleratorOption, new: AcceleratorOption | None) -> bool:
    """Return whether an edit asks for the same pods, and no fewer of them; prices do not matter."""
    if new is None or _lowered(old.max_replicas, new.max_replicas):
        return False
    return old == replace(new, cost_per_gpu_hour=old.cost_per_gpu_hour, max_replicas=old.max_replicas)


def _lowered(before: int | None, after: int | None) -> bool:
    """Return whether a maximum became smaller."""
    return after is not None and (before is None or after < before)


def watch_backoffs(
    memory: Backoffs,
    groups: tuple[Group, ...],
    now: float,
    settings: PolicySettings,
    awaited: str = "",
    spot: frozenset[str] = frozenset(),
) -> Backoffs:
    """Update the backoffs; an accelerator whose requested replicas all serve is reset.

    Other services may still free GPUs of the `awaited` accelerator, so that missing nodes prove nothing yet. On `spot`
    accelerators the remaining replicas all serve as soon as no more are requested. So a spot backoff is only reset once
    it has been expired for as long as it lasted.
    """
    failing, places = dict(memory.failing_since), dict(memory.places)
    past = {backoff.accelerator: backoff for backoff in memory.past}
    for group in groups:
        name, last = group.accelerator, past.get(group.accelerator)
        flood = _is_flood(group, last, now)
        if group.ready or not group.size:
            failing.pop(name, None)
        elif group.failing or group.ended:  # between two ends it looks like starting, so the time is not reset
            failing.setdefault(name, now)
        reclaimed = _reclaimed(group, places) if name in spot else None
        if group.ready and not group.useless and len(group.ready) >= group.size:
            if not _is_given_up(last, group, now, name in spot):
                past.pop(name, None)
        elif last is None or now >= last.until or (flood and not last.starts_none):
            is_long = now - failing.get(name, now) >= settings.failing_seconds
            found = _pods_end(group, last, is_long, flood) or reclaimed
            found = found or _found(group, is_long, settings, name == awaited)
            if found is not None:
                elsewhere = sum(other.to_serve for other in groups if other is not group)
                no_more = flood or found[0] is Reason.INSUFFICIENT_GPUS
                asked = (group.size, group.placed, group.to_serve, elsewhere) if no_more else ()
                delay = _delay_seconds(last, now, settings)
                backoff = Backoff(name, now + delay, delay, *found, *asked)
                past[name] = replace(backoff, is_half=True) if no_more and _is_half(group) else backoff
    slots = tuple((name, places[name]) for name in sorted(group.accelerator for group in groups) if places.get(name))
    return Backoffs(tuple(past[name] for name in sorted(past)), tuple(sorted(failing.items())), slots)


def _reclaimed(group: Group, places: dict[str, int]) -> tuple[Reason, str] | None:
    """Return a reason where nodes of spot replicas were reclaimed; such replicas need not wait for new nodes.

    These replicas had a node, are still wanted and find no other one. A draining replica still holds its slot, which
    its successor may get.
    """
    lost = sum(replica.reason == Reason.NODE_LOST for replica in group.failing)
    placed, placed_before = group.placed - lost, min(places.get(group.accelerator, 0), group.size)
    places[group.accelerator] = max(min(placed, group.size), placed_before)
    waiting = (*group.pending, *group.short)
    if not waiting or placed >= placed_before or group.rolling_out:
        return None
    return Reason.INSUFFICIENT_GPUS, waiting[0].words or "the nodes of the spot replicas were reclaimed"


def _is_given_up(backoff: Backoff | None, group: Group, now: float, spot: bool) -> bool:
    """Return whether the accelerator stays given up, although all its replicas serve.

    A recent backoff continues on a spot accelerator, and while fewer replicas are requested than before. A backoff in
    favour of other services continues until it expires: meanwhile replicas elsewhere start.
    """
    if backoff is None:
        return False
    lately = backoff.begun <= now < backoff.until + backoff.delay_seconds
    if lately and (spot or group.size < backoff.asked):
        return True
    return backoff.reason is Reason.CAPACITY_LIMITED and now < backoff.until


def _found(group: Group, fails_long: bool, settings: PolicySettings, is_awaited: bool) -> tuple[Reason, str] | None:
    """Return why the accelerator is unavailable, if it is.

    Failing replicas next to ready ones are a problem of their own.
    """
    if group.short and not is_awaited:
        return Reason.INSUFFICIENT_GPUS, group.short[0].words or "the scheduler found no node"
    if group.ready:
        return None
    if group.failing and fails_long:
        return group.failing[0].failure, group.failing[0].words
    if group.stuck and not group.coming:
        waits = f": {group.stuck[0].detail}" if group.stuck[0].detail else ""
        told = f"not ready after {settings.starting_seconds:.0f} s{waits}; see the log of its pods"
        return Reason.PROGRESS_DEADLINE_EXCEEDED, told
    return None


def _is_half(group: Group) -> bool:
    """Whether a group of pods that has waited for too long holds some of its nodes, and goes if the size falls by one.

    Where it is not the one with the highest number, a group that serves would go in its place.
    """
    others = (*group.ready, *group.ailing, *group.starting, *group.pending)
    highest = max((replica.number for replica in others), default=-1)
    return any(replica.nodes and replica.number > highest for replica in group.short)


def _is_flood(group: Group, last: Backoff | None, now: float) -> bool:
    """Return whether by the next tick more than `MOST_ENDED` pods would have ended within `FLOOD_SECONDS`.

    A ReplicaSet replaces a pod that its node rejects at once and without end.
    """
    counted = -math.inf if last is None or not last.starts_none else last.begun
    recent = ended_since(group, max(counted, now - FLOOD_SECONDS))
    latest = ended_since(group, max(counted, now - _REACTION_SECONDS))
    return group.size > 0 and len(recent) + len(latest) >= MOST_ENDED


def _pods_end(group: Group, last: Backoff | None, fails_long: bool, flood: bool) -> tuple[Reason, str] | None:
    """Return a reason if too many pods ended, or no replica serves and two ended since the last backoff began."""
    again = ended_since(group, -math.inf if last is None else last.begun)[1:]
    if flood or (again and not group.ready and fails_long):
        return Reason.POD_ENDED, group.ended[-1].words
    return None


def _delay_seconds(last: Backoff | None, now: float, settings: PolicySettings) -> float:
    """Return the delay of the next backoff: twice that of the last one, or the same while that one is active."""
    if last is None or not last.delay_seconds:
        return settings.retry_seconds
    return min(last.delay_seconds * (1.0 if now < last.until else 2.0), settings.longest_retry_seconds)
