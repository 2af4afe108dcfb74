"""Conditions of an LLMService and of an LLMBenchmark, by the conventions of Kubernetes and kstatus."""

import re
from collections.abc import Iterable, Mapping, Sequence
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
_LEAST_SHARED = 60
"""Characters from which on a text is not repeated in another condition."""


def worst(conditions: Iterable[Condition]) -> Condition | None:
    """The condition that a person should read first; None without any."""
    return next(iter(worst_first(conditions)), None)


def worst_first(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that a person should read, in that order.

    A target whose engines run without the plugin needs no action, so that condition is left out.
    """
    found = [each for each in conditions if each.reason != Reason.NOT_OUR_ENGINES]
    ranks = _ranks(found)
    return sorted((each for each in found if _key(each) in ranks), key=lambda each: ranks[_key(each)])


def said_once(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """The conditions with each long text in the worst one that has it; in the others stands where to read it."""
    ranks, told = _ranks(conditions), dict[str, Condition]()
    for each in sorted(conditions, key=lambda each: ranks.get(_key(each), len(ranks))):
        told[each.type] = replace(each, message=_referring(each.message, tuple(told.values())))
    return tuple(told[each.type] for each in conditions)


def _key(condition: Condition) -> tuple[str, str]:
    return condition.type, condition.status


def _ranks(conditions: Iterable[Condition]) -> dict[tuple[str, str], int]:
    """How urgent each type with its status is, the most urgent one 0.

    Where Stalled only repeats the reason of CapacityAvailable, that one counts how many replicas it concerns.
    """
    reasons = {_key(each): each.reason for each in conditions}
    order = _WORST_FIRST
    if reasons.get((ConditionType.READY, Status.FALSE)) == Reason.NO_REPLICAS:
        why = [reasons.get(key) for key in _WHY_NONE_SERVES]
        order = (_WHY_NONE_SERVES[::-1] if why[0] == why[1] else _WHY_NONE_SERVES) + order
    return {key: rank for rank, key in enumerate(dict.fromkeys(order))}


def _referring(message: str, told: Sequence[Condition]) -> str:
    """A message with references in place of the long texts that others have; their remedies go with them."""
    parts, carrier = list[str](), ""
    for part in message.split("; "):
        starts = [0, *(found.end() for found in re.finditer(": ", part))] if len(part) >= _LEAST_SHARED else []
        ends = ((at, other) for at in starts for other in told if len(part) - at >= _LEAST_SHARED)
        found = next(((at, other) for at, other in ends if part[at:] in other.message), None)
        if found is not None:
            at, other = found
            parts += [f"{part[:at]}see {other.type}"] if at or carrier != other.message else []
            carrier = other.message
        elif part not in carrier:
            parts, carrier = [*parts, part], ""
    return "; ".join(parts)


def _with_time(condition: Condition, before: Condition | None, now_iso: str) -> Condition:
    unchanged = before is not None and before.status == condition.status and before.last_transition_time != ""
    return replace(condition, last_transition_time=before.last_transition_time if before and unchanged else now_iso)


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + "…"
