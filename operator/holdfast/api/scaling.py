"""Bounds on the number of replicas, and floors that hold at certain hours."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictInt, StringConstraints, WithJsonSchema

from holdfast.api import fields
from holdfast.api.rules import ApiModel, Checked, Rule

MOST_SCHEDULES = 16
MINUTES_PER_HOUR = 60
Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DAYS: tuple[Day, ...] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"
_ZONE = "[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*"

ScheduleName = Annotated[
    str,
    StringConstraints(max_length=63),
    Checked(
        fields.matches(
            fields.LABEL_PATTERN, "name must be a DNS label: lower-case letters, digits and '-', such as office-hours"
        )
    ),
]
Timezone = Annotated[
    str,
    StringConstraints(max_length=64),
    Checked(fields.matches(f"^{_ZONE}$", "timezone must be an IANA time zone, such as Europe/Berlin or UTC")),
]
StartTime = Annotated[
    str,
    StringConstraints(max_length=16),
    Checked(fields.matches(f"^{_TIME}$", "start must be a time of day from 00:00 to 23:59, such as 08:00")),
]
EndTime = Annotated[
    str,
    StringConstraints(max_length=16),
    Checked(fields.matches(f"^({_TIME}|24:00)$", "end must be a time of day from 00:00 to 24:00, such as 18:00")),
]

_DISTINCT_DAYS = Rule(
    "self.all(day, self.exists_one(other, other == day))",
    "days must be distinct: remove the duplicate",
    lambda days: len(set(days)) == len(days),
)
_START_IS_NOT_END = Rule(
    "self.start != self.end",
    "start and end must differ: change one of them; a whole day is 00:00 to 24:00",
    lambda schedule: schedule.start != schedule.end,
    ".end",
)


class Schedule(ApiModel):
    """A minimum number of replicas at certain hours; replicas are started early enough to serve from start on."""

    rules = (_START_IS_NOT_END,)

    name: ScheduleName
    """Name of the schedule, such as office-hours."""
    timezone: Timezone
    """IANA time zone of start, end and days, such as Europe/Berlin."""
    start: StartTime
    """Time of day from which the replicas serve, such as 08:00."""
    end: EndTime
    """Time of day until which the minimum holds, such as 18:00. An end before start is on the next day."""
    days: Annotated[
        tuple[Annotated[Day, WithJsonSchema({"type": "string", "enum": list(DAYS), "maxLength": 3})], ...],
        Field(min_length=1, max_length=len(DAYS), json_schema_extra={"x-kubernetes-list-type": "set"}),
        Checked(_DISTINCT_DAYS),
    ] = DAYS
    """Days on which the schedule starts: Mon, Tue, Wed, Thu, Fri, Sat, Sun. Default: every day."""
    min: Annotated[StrictInt, Field(ge=1, le=10_000)]
    """Minimum number of replicas from start to end, at most scaling.max. Of overlapping schedules the highest holds."""

    @property
    def start_minute(self) -> int:
        """Minutes from midnight to start."""
        return _minutes(self.start)

    @property
    def end_minute(self) -> int:
        """Minutes from the midnight before start to end; above a day where it ends on the next."""
        end = _minutes(self.end)
        return end if end > self.start_minute else end + 24 * MINUTES_PER_HOUR


def _minutes(time: str) -> int:
    hours, _, minutes = time.partition(":")
    return int(hours) * MINUTES_PER_HOUR + int(minutes)


_MIN_BELOW_MAX = Rule(
    "self.min <= self.max",
    "scaling.min must not exceed scaling.max: lower min or raise max",
    lambda scaling: scaling.min <= scaling.max,
    ".min",
)
_DISTINCT_SCHEDULES = Rule(
    "!has(self.schedules) || self.schedules.all(s, self.schedules.exists_one(other, other.name == s.name))",
    "schedules must have distinct names: rename or remove the duplicate",
    lambda scaling: len({schedule.name for schedule in scaling.schedules}) == len(scaling.schedules),
    ".schedules",
)
_FLOORS_BELOW_MAX = Rule(
    "!has(self.schedules) || self.schedules.all(s, s.min <= self.max)",
    "the min of a schedule must not exceed scaling.max: lower the schedule's min or raise scaling.max",
    lambda scaling: all(schedule.min <= scaling.max for schedule in scaling.schedules),
    ".schedules",
)


_ON_DEMAND_BELOW_MAX = Rule(
    "!has(self.minOnDemand) || self.minOnDemand <= self.max",
    "scaling.minOnDemand must not exceed scaling.max: lower minOnDemand or raise max",
    lambda scaling: scaling.min_on_demand <= scaling.max,
    ".minOnDemand",
)


class Scaling(ApiModel):
    """Limits of the number of replicas over all accelerators."""

    rules = (_MIN_BELOW_MAX, _DISTINCT_SCHEDULES, _FLOORS_BELOW_MAX, _ON_DEMAND_BELOW_MAX)

    min: Annotated[StrictInt, Field(ge=0, le=10_000)] = 1
    """Minimum number of replicas. With 0, none runs while no requests arrive; the next request waits for a start."""
    max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 10
    """Maximum number of replicas."""
    min_on_demand: Annotated[StrictInt, Field(ge=0, le=10_000)] = 0
    """Minimum number of replicas on on-demand accelerators (spot: false) while any replica runs."""
    schedules: Annotated[
        tuple[Schedule, ...], Field(max_length=MOST_SCHEDULES, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """Higher minimums at certain hours, at most 16 schedules. If several are active, the highest one holds."""

    @property
    def highest_floor(self) -> int:
        """Fewest replicas at the hour that asks for most."""
        return max((self.min, *(schedule.min for schedule in self.schedules)))
