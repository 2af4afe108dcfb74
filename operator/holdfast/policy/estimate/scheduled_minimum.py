"""Scheduled minimums of replicas: which one holds, which one is next, and when that changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.api.quantities import counted, hh_mm
from holdfast.domain.schedules import Window, windows
from holdfast.domain.service import Schedule

LONGEST_SECONDS = 86_400.0
"""Bound of lead and hold times: longer ones count as a day."""


class ScheduledMinimum(NamedTuple):
    """Fewest replicas, and a sentence that names the schedule and its time."""

    replicas: int
    sentence: str


class ScheduledMinimums(NamedTuple):
    """The minimum that replicas are requested for `now`, and the minimum that scale-down respects (`kept`).

    They differ before a window opens: a replica removed then could not be restored in time. `change_at`: when a minimum
    or its sentence next changes, in seconds since the epoch. Changes further away than the hold time are not known.
    """

    now: ScheduledMinimum | None = None
    kept: ScheduledMinimum | None = None
    change_at: float = math.inf


def scheduled_minimums(
    schedules: Sequence[Schedule], now: float, lead_seconds: float, hold_seconds: float
) -> ScheduledMinimums:
    """Return the highest minimums; a window counts from a lead time before it opens until it closes.

    Replicas requested a lead time in advance serve when the window opens. For another hold time before that, no replica
    is removed.
    """
    lead, hold = _bounded(lead_seconds), _bounded(hold_seconds)
    near = [window for schedule in schedules for window in windows(schedule, now, now + lead + hold)]
    moments = (moment for window in near for moment in (window.opens_at - lead, window.opens_at, window.closes_at))
    return ScheduledMinimums(
        now=_highest([window for window in near if window.opens_at - lead <= now], now),
        kept=_highest(near, now),
        change_at=min((moment for moment in moments if moment > now), default=math.inf),
    )


def _highest(holding: Sequence[Window], now: float) -> ScheduledMinimum | None:
    """Return the highest minimum.

    Of equal minimums, an open window comes first, then the one that closes last.
    """
    if not holding:
        return None
    schedule, opens_at, _ = max(
        holding, key=lambda each: (each.schedule.min_replicas, each.opens_at <= now, each.closes_at, each.schedule.name)
    )
    when = f"until {hh_mm(schedule.end_minute)}" if opens_at <= now else f"from {hh_mm(schedule.start_minute)}"
    least = counted(schedule.min_replicas, "replica")
    sentence = f"schedule {schedule.name} requires at least {least} {when} {schedule.timezone}"
    return ScheduledMinimum(schedule.min_replicas, sentence)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_SECONDS)
