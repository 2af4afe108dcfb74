"""Decide whether sizing uses the result of a benchmark, and why not."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.api.conditions import CAPACITY_IN_USE
from holdfast.api.reasons import Reason
from holdfast.domain.decision import ConditionValue
from holdfast.domain.value import value

_MOST_NAMES = 3
_AGAIN = "change spec.revision to measure again"


@value
class Standing:
    """Facts about a result.

    `newer`: a benchmark with a newer result of the same engine, which is used instead. `services` have such an engine;
    `refusing` are the services whose engine model cannot be scaled to the result. `edited`: the measured service, if
    its engine has changed since. `by_earlier_run`: the newest run of the benchmark did not produce the result.
    """

    newer: str = ""
    services: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    edited: str = ""
    by_earlier_run: bool = False


def use_of(known: Standing) -> ConditionValue:
    """Return the condition that reports the use of a result."""
    status, reason, message = _use_of(known)
    remark = "; the result is of an earlier run, not of the newest" if known.by_earlier_run else ""
    return ConditionValue(CAPACITY_IN_USE, status, reason, message + remark)


def _use_of(known: Standing) -> tuple[bool, Reason, str]:
    if known.newer:
        return False, Reason.SUPERSEDED, f"benchmark {known.newer} has a newer result for this engine"
    if not known.services:
        return (
            False,
            Reason.NO_SUCH_ENGINE,
            "no LLMService in this namespace has the measured model, quantization, accelerator, count and nodeSelector",
        )
    taking = tuple(name for name in known.services if name not in known.refusing)
    if not taking:
        why = (
            "the result differs from the engine model by more than twenty times, or the model cannot meet "
            "its objectives"
        )
        return (
            False,
            Reason.IMPLAUSIBLE,
            f"{_names(known.services)}: sized from the engine model alone, because {why}; {_AGAIN}",
        )
    text = f"sizing of {_names(taking)} starts from this result"
    if known.edited:
        return True, Reason.OLDER_ENGINE, f"{text}, but the engine of {known.edited} was edited since; {_AGAIN}"
    return True, Reason.IN_FORCE, text


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
