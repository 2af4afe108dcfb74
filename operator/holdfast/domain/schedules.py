"""When schedules hold: their windows in time, from wall-clock times and days.

Where the clock changes, a wall-clock time may denote no moment or two moments. A window begins at the earliest and ends
at the latest possible moment, so that no reading of it is missed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.domain.service import Schedule

_ONE_DAY = datetime.timedelta(days=1)


class Window(NamedTuple):
    """One period in which a schedule holds, in seconds since the epoch."""

    schedule: Schedule
    opens_at: float
    closes_at: float


def windows(schedule: Schedule, since: float, until: float) -> Iterator[Window]:
    """Yield the windows that are open at any time from `since` to `until` (both included), oldest first."""
    zone = schedule.zone
    if zone is None:
        return
    # A window may start at any time of a day and last a day, and a day may have more than 24 hours.
    day = datetime.datetime.fromtimestamp(since, zone).date() - 2 * _ONE_DAY
    last = datetime.datetime.fromtimestamp(until, zone).date() + _ONE_DAY
    while day <= last:
        if day.weekday() in schedule.days:
            opens_at = min(_readings(day, schedule.start_minute, zone))
            closes_at = max(_readings(day, schedule.end_minute, zone))
            if opens_at <= until and since < closes_at:
                yield Window(schedule, opens_at, closes_at)
        day += _ONE_DAY


def unknown_timezone(schedules: Iterable[Schedule]) -> str:
    """Return a message about schedules whose time zone is unknown; empty where there is none."""
    found = [f"scaling.schedules[{each.name}].timezone: {each.timezone}" for each in schedules if each.zone is None]
    if not found:
        return ""
    text = "is an unknown time zone, so this schedule has no effect; use an IANA name"
    if len(found) > 1:
        text = "are unknown time zones, so these schedules have no effect; use IANA names"
    return f"{', '.join(found)} {text}, such as Europe/Berlin"


def _readings(day: datetime.date, minute: int, zone: datetime.tzinfo) -> list[float]:
    """Return the two moments that a wall-clock time can denote; usually they are the same."""
    wall = datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(minutes=minute)
    return [wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
