"""Decide when a service scales to zero: idle for long enough, while the activator can hold the next request.

Missing data never counts as idle.

Source: docs/designs/0006-scale-to-zero.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from holdfast.domain.activator import Activator
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums

SILENT_SECONDS = 60.0
"""Silence after which an activator is assumed unable to hold requests."""

LEADING_SECONDS = 10.0
"""How long the Service routes to the activator before the last replica is removed.

Endpoints take seconds to propagate.
"""

_TOLERANCE_SECONDS = 1.0


class Slumber(enum.Enum):
    """Whether a service is scaled to zero."""

    AWAKE = "awake"
    LEAVING = "leaving"  # the activator forwards requests; the last replicas still run
    ASLEEP = "asleep"  # no replica is wanted


@value
class Idle:
    """Activity of a service that may scale to zero; times in seconds since the epoch.

    `busy_at`: when a request was last observed, or could not be ruled out. `asked`: a request came since the last tick.
    `led_at`: since when the Service routes to the activator.
    """

    busy_at: float | None = None
    asked: bool = False
    answered_at: float | None = None
    led_at: float | None = None
    looked_at: float | None = None

    def silent(self, now: float) -> bool:
        """Return whether the activator has not answered for too long."""
        return self.answered_at is None or now - self.answered_at >= SILENT_SECONDS

    def quiet_seconds(self, now: float) -> float:
        """Return the seconds since the last request."""
        return 0.0 if self.busy_at is None else max(0.0, now - self.busy_at)


def watch(memory: Idle, service: ServiceSnapshot, seen: Seen, now: float) -> Idle:
    """Record one tick; a service that may not scale to zero, or has no activator, has an empty state."""
    activator = service.activator
    if activator is None or service.spec.min_replicas > 0:
        return Idle()
    asked, doubtful = _has_requests(memory, activator, seen, _sizes(service), now)
    started = memory.busy_at is None or memory.busy_at > now
    leading = memory.led_at if memory.led_at is not None and memory.led_at <= now else now
    answered = now if activator.answers or memory.looked_at is None else memory.answered_at
    return Idle(
        busy_at=now if asked or doubtful or started else memory.busy_at,
        asked=asked,
        answered_at=answered,
        led_at=leading if activator.leads else None,
        looked_at=now,
    )


def slumber(
    memory: Idle,
    service: ServiceSnapshot,
    seen: Seen,
    starting: bool,
    scheduled: ScheduledMinimums,
    least_seconds: float,
    now: float,
) -> Slumber:
    """Decide whether a service is scaled to zero.

    At zero it stays there until a request comes, a scheduled minimum begins or the activator stops answering. With
    replicas the Service first routes to the activator; the last replica is removed once that has propagated.
    `least_seconds` is the idle time.
    """
    activator, spec = service.activator, service.spec
    held_by_people = spec.pinned_replicas is not None or spec.recommend_only
    if activator is None or spec.min_replicas > 0 or held_by_people or scheduled.now is not None or memory.silent(now):
        return Slumber.AWAKE
    sizes = _sizes(service)
    if not sizes or memory.asked:
        return Slumber.AWAKE
    if not any(sizes):
        return Slumber.ASLEEP
    settled = not starting and not service.problems and sum(size > 0 for size in sizes) == 1
    known = seen.fresh and service.missing_history is None
    certain = known and activator.answers and scheduled.kept is None
    if not (settled and certain) or memory.quiet_seconds(now) < least_seconds:
        return Slumber.AWAKE
    led = memory.led_at is not None and now - memory.led_at >= LEADING_SECONDS
    return Slumber.ASLEEP if led else Slumber.LEAVING


def _has_requests(
    memory: Idle, activator: Activator, seen: Seen, sizes: Sequence[int], now: float
) -> tuple[bool, bool]:
    """Return whether a request is present or came since the last tick, and whether that is unknown."""
    passed = 0.0 if memory.looked_at is None else max(0.0, now - memory.looked_at)
    newly = passed > 0.0 and activator.quiet_seconds <= passed + _TOLERANCE_SECONDS
    if activator.answers and (activator.waiting > 0 or newly):
        return True, False
    if not any(sizes):
        return False, not activator.answers
    total, came = seen.total, (seen.arrived, seen.started)
    # Batch keeps the last replica: else its clients would wake a service that has just gone to zero, again and again.
    counted = (total.running, total.waiting, *came, total.finished, total.failed, total.aborted, total.batch)
    moved = seen.visible and any(count > 0.0 for count in counted)
    return moved, not seen.fresh


def _sizes(service: ServiceSnapshot) -> list[int]:
    """Return the desired replicas of each Deployment of the service."""
    by_accelerator = {placement.accelerator: placement.replicas for placement in service.placements}
    return [max(0, replicas) for replicas in by_accelerator.values()]
