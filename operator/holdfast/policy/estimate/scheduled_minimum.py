"""Floors under the replicas at certain hours: which holds, which comes next, and when that changes.

Hours are those of a clock on the wall. Where it is put forward or back, one reading may mean no moment or two: a floor
begins at the earliest and ends at the latest that can be meant, so that no reading of it is missed.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.domain.service import Schedule, ServiceSpec

LONGEST_SECONDS = 86_400.0
"""Lead and hold times above a day count as one."""

_ONE_DAY = datetime.timedelta(days=1)
_MINUTES_PER_DAY = 1440


class ScheduledMinimum(NamedTuple):
    """Fewest replicas, and the schedule that asks for them until or from when, as a sentence."""

    replicas: int
    sentence: str


class ScheduledMinimums(NamedTuple):
    """The floor that replicas are asked for `now`, and the one below which none is let go.

    They differ before a window opens: whoever is let go then would not be back in time. `change_at`: when either the
    floor or its sentence changes, in seconds since the epoch; changes further away than the hold time are not known.
    """

    now: ScheduledMinimum | None = None
    kept: ScheduledMinimum | None = None
    change_at: float = math.inf


NO_SCHEDULED_MINIMUMS = ScheduledMinimums()


class Window(NamedTuple):
    """One time at which a schedule holds, in seconds since the epoch."""

    schedule: Schedule
    opens_at: float
    closes_at: float


def scheduled_minimums(
    schedules: Sequence[Schedule], now: float, lead_seconds: float, hold_seconds: float
) -> ScheduledMinimums:
    """Return the highest floors: a window counts from a lead time before it opens until it closes.

    Replicas asked for a lead time before serve when it opens. Another hold time before that none is let go any more.
    """
    if not schedules:
        return NO_SCHEDULED_MINIMUMS
    lead, hold = _bounded(lead_seconds), _bounded(hold_seconds)
    near = [window for schedule in schedules for window in windows(schedule, now, now + lead + hold)]
    moments = (moment for window in near for moment in (window.opens_at - lead, window.opens_at, window.closes_at))
    return ScheduledMinimums(
        now=_highest([window for window in near if window.opens_at - lead <= now], now),
        kept=_highest(near, now),
        change_at=min((moment for moment in moments if moment > now), default=math.inf),
    )


def windows(schedule: Schedule, since: float, until: float) -> Iterator[Window]:
    """Yield the windows that are open at any time from `since` to `until`, both included, oldest first."""
    zone = schedule.zone
    if zone is None:
        return
    # The longest window takes a day from any time of a day on, and a day may have more hours than 24.
    day = datetime.datetime.fromtimestamp(since, zone).date() - 2 * _ONE_DAY
    last = datetime.datetime.fromtimestamp(until, zone).date() + _ONE_DAY
    while day <= last:
        if day.weekday() in schedule.days:
            opens_at = min(_readings(day, schedule.start_minute, zone))
            closes_at = max(_readings(day, schedule.end_minute, zone))
            if opens_at <= until and since < closes_at:
                yield Window(schedule, opens_at, closes_at)
        day += _ONE_DAY


def raised(spec: ServiceSpec, found: ScheduledMinimums) -> ServiceSpec:
    """The spec with the floor that holds now as its scaling.min, where it is the higher one."""
    if found.now is None or found.now.replicas <= spec.min_replicas:
        return spec
    return replace(spec, min_replicas=found.now.replicas)


def unknown_timezone(schedules: Iterable[Schedule]) -> str:
    """Say what is to be mended where schedules name no time zone; empty where all do."""
    found = [f"scaling.schedules[{each.name}].timezone: {each.timezone}" for each in schedules if each.zone is None]
    if not found:
        return ""
    told = "is no time zone the operator knows, this floor does not hold: write an IANA name"
    if len(found) > 1:
        told = "are no time zones the operator knows, these floors do not hold: write IANA names"
    return f"{', '.join(found)} {told}, such as Europe/Berlin"


def _highest(holding: Sequence[Window], now: float) -> ScheduledMinimum | None:
    """Of equal floors the one that is open, and of these the one that stays longest, gives its name."""
    if not holding:
        return None
    schedule, opens_at, _ = max(
        holding, key=lambda each: (each.schedule.min_replicas, each.opens_at <= now, each.closes_at, each.schedule.name)
    )
    when = f"until {_clock(schedule.end_minute)}" if opens_at <= now else f"from {_clock(schedule.start_minute)}"
    sentence = f"schedule {schedule.name} keeps at least {schedule.min_replicas} {when} {schedule.timezone}"
    return ScheduledMinimum(schedule.min_replicas, sentence)


def _readings(day: datetime.date, minute: int, zone: datetime.tzinfo) -> list[float]:
    """The moments that a time on the wall can mean: as a rule the same one twice."""
    wall = datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(minutes=minute)
    return [wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_SECONDS)


def _clock(minute: int) -> str:
    """A time of day as people write it; the end of a day is 24:00."""
    hours, minutes = divmod(minute if minute <= _MINUTES_PER_DAY else minute - _MINUTES_PER_DAY, 60)
    return f"{hours:02d}:{minutes:02d}"
