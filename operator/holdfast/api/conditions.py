"""Conditions of an LLMService and of an LLMBenchmark, by the conventions of Kubernetes and kstatus."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.api.reasons import Reason

# The engine's last words may be long; a condition is read in a terminal.
MAX_MESSAGE_LENGTH = 1024


class ConditionType(StrEnum):
    """The conditions of an LLMService."""

    READY = "Ready"
    SLO_MET = "SLOMet"
    SCALING_ACTIVE = "ScalingActive"
    METRICS_AVAILABLE = "MetricsAvailable"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    FAST_LOOP_ACTIVE = "FastLoopActive"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


COMPLETE = "Complete"
CAPACITY_IN_USE = "CapacityInUse"
"""The conditions of an LLMBenchmark; the second where it has found what a replica carries."""

# kstatus: present only while true.
TRANSIENT = frozenset({ConditionType.RECONCILING, ConditionType.STALLED})


class Status(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `last_transition_time` (ISO 8601) is filled by `merge_conditions`."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The condition as it stands in `status.conditions`."""
        return {
            "type": str(self.type),
            "status": str(self.status),
            "reason": str(self.reason),
            "message": _shortened(self.message),
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": self.last_transition_time,
        }

    @classmethod
    def from_dict(cls, item: Mapping[str, Any]) -> "Condition":
        """A condition read back from `status.conditions`; missing parts are empty."""
        return cls(
            type=str(item.get("type", "")),
            status=str(item.get("status", Status.UNKNOWN)),
            reason=str(item.get("reason", "")),
            message=str(item.get("message", "")),
            observed_generation=int(item.get("observedGeneration") or 0),
            last_transition_time=str(item.get("lastTransitionTime", "")),
        )


def conditions_of(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions of an object's status."""
    return tuple(Condition.from_dict(item) for item in status.get("conditions") or ())


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition], now_iso: str) -> tuple[Condition, ...]:
    """The new conditions, each with the time of its last change of status; those no longer named are dropped.

    Reconciling and Stalled are dropped unless they are true.
    """
    before = {condition.type: condition for condition in old}
    shown = (item for item in new if item.type not in TRANSIENT or item.status == Status.TRUE)
    return tuple(_with_time(item, before.get(item.type), now_iso) for item in shown)


_WORST_FIRST = (
    (ConditionType.READY, Status.FALSE),
    (ConditionType.STALLED, Status.TRUE),
    (ConditionType.SLO_MET, Status.FALSE),
    (ConditionType.CAPACITY_AVAILABLE, Status.FALSE),
    (ConditionType.METRICS_AVAILABLE, Status.FALSE),
    (ConditionType.FAST_LOOP_ACTIVE, Status.FALSE),
    (ConditionType.SCALING_ACTIVE, Status.FALSE),
    *((kind, Status.UNKNOWN) for kind in ConditionType),
    (ConditionType.RECONCILING, Status.TRUE),
    (ConditionType.READY, Status.TRUE),
)
# That no replica serves yet is worth less than why: these come first then.
_WHY_NONE_SERVES = ((ConditionType.STALLED, Status.TRUE), (ConditionType.CAPACITY_AVAILABLE, Status.FALSE))


def worst(conditions: Iterable[Condition]) -> Condition | None:
    """The condition that a person should read first; None without any.

    That the engines of a target run without the plugin is no fault that somebody must mend.
    """
    found = {(each.type, each.status): each for each in conditions if each.reason != Reason.NOT_OUR_ENGINES}
    ready = found.get((ConditionType.READY, Status.FALSE))
    order = _WORST_FIRST
    if ready is not None and ready.reason == Reason.NO_REPLICAS:
        order = _WHY_NONE_SERVES + order
    return next((found[each] for each in order if each in found), None)


def _with_time(condition: Condition, before: Condition | None, now_iso: str) -> Condition:
    unchanged = before is not None and before.status == condition.status and before.last_transition_time != ""
    return replace(condition, last_transition_time=before.last_transition_time if before and unchanged else now_iso)


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + "…"
