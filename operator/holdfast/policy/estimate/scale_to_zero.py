"""When a service runs no replica: idle for long enough, while something holds the next request until one serves.

A replica is kept for as long as traffic usually pauses, for each wake-up costs the requests that wait for it their
TTFT; pauses that nobody would wait out (nights) do not count. Missing data is never idle.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from holdfast.domain.activator import Activator
from holdfast.domain.signals import History
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums
from holdfast.policy.estimate.traffic import Seen

SHORTEST_SECONDS, LONGEST_SECONDS = 60.0, 1800.0
"""Pauses shorter than the one are no pauses, longer ones than the other are not waited out."""

WAITED_OUT, MARGIN = 0.9, 1.5
"""Share of the usual pauses that is waited out, and how much longer than the longest of them."""

KNOWN, REMEMBERED = 3, 20
"""Fewest pauses that tell what is usual, and most that are remembered."""

SILENT_SECONDS = 60.0
"""An activator that has not answered for so long may be unable to hold anything."""

LEADING_SECONDS = 10.0
"""The Service leads to the activator for so long before the last replica goes: endpoints take seconds to spread."""

_SECONDS_OF_A_LOOK = 1.0


class Slumber(enum.Enum):
    """Whether a service rests."""

    AWAKE = "awake"
    LEAVING = "leaving"  # requests go to the activator, which passes them on; the last replicas are still there
    ASLEEP = "asleep"  # no replica is wanted


@value
class Idle:
    """What is remembered of the pauses of a service that may rest; times in seconds since the epoch.

    `busy_at`: when a request was last seen, or could not be ruled out. `pauses`: seconds without a request, oldest
    first. `asked`: a request came since the last look. `led_at`: since when the Service leads to the activator.
    """

    busy_at: float | None = None
    pauses: tuple[float, ...] = ()
    asked: bool = False
    answered_at: float | None = None
    led_at: float | None = None
    looked_at: float | None = None

    def silent(self, now: float) -> bool:
        """The activator has not answered for too long."""
        return self.answered_at is None or now - self.answered_at >= SILENT_SECONDS

    def quiet_seconds(self, now: float) -> float:
        return 0.0 if self.busy_at is None else max(0.0, now - self.busy_at)


AWAKE = Idle()


def watch(memory: Idle, service: ServiceSnapshot, seen: Seen, now: float) -> Idle:
    """Take one look; services that may not rest, or have no activator, have nothing to remember."""
    told = service.activator
    if told is None or service.spec.min_replicas > 0:
        return AWAKE
    asked, doubtful = _asked(memory, told, seen, _sizes(service), now)
    started = memory.busy_at is None or memory.busy_at > now
    paused = memory.quiet_seconds(now) if asked and not started else 0.0
    usual = SHORTEST_SECONDS <= paused <= LONGEST_SECONDS
    leading = memory.led_at if memory.led_at is not None and memory.led_at <= now else now
    answered = now if told.answers or memory.looked_at is None else memory.answered_at
    return Idle(
        busy_at=now if asked or doubtful or started else memory.busy_at,
        pauses=(*memory.pauses, paused)[-REMEMBERED:] if usual else memory.pauses,
        asked=asked,
        answered_at=answered,
        led_at=leading if told.leads else None,
        looked_at=now,
    )


def with_history(memory: Idle, history: History, now: float) -> Idle:
    """Remember the pauses that Prometheus knows of; when the last request came begins anew."""
    busy = sorted((s.at - s.interval_seconds, s.at) for s in history.samples if s.at <= now and s.arrivals > 0.0)
    pauses = [begin - end for (_, end), (begin, _) in itertools.pairwise(busy)]
    usual = [pause for pause in pauses if SHORTEST_SECONDS <= pause <= LONGEST_SECONDS]
    return replace(memory, pauses=tuple(usual[-REMEMBERED:]))


def idle_seconds(memory: Idle, hold_seconds: float, first_seconds: float) -> float:
    """How long no request must have come: no less than a replica takes to leave and to come back.

    `first_seconds` before the pauses of the traffic are known.
    """
    if len(memory.pauses) < KNOWN:
        return max(hold_seconds, first_seconds)
    ranked = sorted(memory.pauses)
    usual = ranked[math.ceil(WAITED_OUT * len(ranked)) - 1]
    return max(hold_seconds, min(LONGEST_SECONDS, MARGIN * usual))


def slumber(
    memory: Idle,
    service: ServiceSnapshot,
    seen: Seen,
    starting: bool,
    scheduled: ScheduledMinimums,
    least_seconds: float,
    now: float,
) -> Slumber:
    """Decide whether a service rests.

    At zero it goes on resting until a request comes, a floor begins or nothing can hold requests any more. With
    replicas the Service is led to the activator first, and the last one goes only once that has had time to spread.
    `least_seconds` is the idle time (`idle_seconds`).
    """
    told, spec = service.activator, service.spec
    held_by_people = spec.pinned_replicas is not None or spec.recommend_only
    if told is None or spec.min_replicas > 0 or held_by_people or scheduled.now is not None or memory.silent(now):
        return Slumber.AWAKE
    sizes = _sizes(service)
    if not sizes or memory.asked:
        return Slumber.AWAKE
    if not any(sizes):
        return Slumber.ASLEEP
    settled = not starting and not service.problems and sum(size > 0 for size in sizes) == 1
    certain = seen.fresh and told.answers and scheduled.kept is None
    if not (settled and certain) or memory.quiet_seconds(now) < least_seconds:
        return Slumber.AWAKE
    led = memory.led_at is not None and now - memory.led_at >= LEADING_SECONDS
    return Slumber.ASLEEP if led else Slumber.LEAVING


def _asked(memory: Idle, told: Activator, seen: Seen, sizes: Sequence[int], now: float) -> tuple[bool, bool]:
    """Whether a request is there or came since the last look, and whether nobody can say."""
    passed = 0.0 if memory.looked_at is None else max(0.0, now - memory.looked_at)
    newly = passed > 0.0 and told.quiet_seconds <= passed + _SECONDS_OF_A_LOOK
    if told.answers and (told.waiting > 0 or newly):
        return True, False
    if not any(sizes):
        return False, not told.answers
    total = seen.total
    counted = (total.running, total.waiting, seen.arrived, seen.started, total.finished, total.failed, total.aborted)
    moved = seen.visible and any(count > 0.0 for count in counted)
    return moved, not seen.fresh


def _sizes(service: ServiceSnapshot) -> list[int]:
    """Replicas that each Deployment of the service asks for."""
    by_accelerator = {placement.accelerator: placement.replicas for placement in service.placements}
    return [max(0, replicas) for replicas in by_accelerator.values()]
