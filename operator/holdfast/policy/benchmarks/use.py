"""Whether sizing starts from what a benchmark found of a replica, and why not."""

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
    """What is known of a result.

    `newer`: the benchmark whose newer result of the same engine counts; `services` have such an engine, `refusing` are
    those of them that the engine model cannot be scaled for; `edited`: the service that was measured, where its engine
    is another one by now; `by_earlier_run`: the newest run of its benchmark did not find it.
    """

    newer: str = ""
    services: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    edited: str = ""
    by_earlier_run: bool = False


def use_of(known: Standing) -> ConditionValue:
    """The condition that says so."""
    status, reason, message = _use_of(known)
    remark = "; an earlier run found it, not the newest" if known.by_earlier_run else ""
    return ConditionValue(CAPACITY_IN_USE, status, reason, message + remark)


def _use_of(known: Standing) -> tuple[bool, Reason, str]:
    if known.newer:
        return False, Reason.SUPERSEDED, f"{known.newer} has measured such an engine since"
    if not known.services:
        return (
            False,
            Reason.NO_SUCH_ENGINE,
            "no LLMService here has the engine measured: model, quantization, accelerator, its count and nodeSelector",
        )
    taking = tuple(name for name in known.services if name not in known.refusing)
    if not taking:
        why = "the engine model is off from it by more than twenty times, or holds its objectives for impossible"
        return False, Reason.IMPLAUSIBLE, f"{_names(known.services)}: sized from the model alone, for {why}: {_AGAIN}"
    told = f"sizing of {_names(taking)} starts from it"
    if known.edited:
        return True, Reason.OLDER_ENGINE, f"{told}, but the engine of {known.edited} was edited since: {_AGAIN}"
    return True, Reason.IN_FORCE, told


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
