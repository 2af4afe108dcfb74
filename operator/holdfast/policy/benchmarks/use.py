"""Decide whether sizing uses the result of a benchmark, and why not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.api.conditions import CAPACITY_IN_USE
from holdfast.api.reasons import Reason
from holdfast.domain.decision import ConditionValue
from holdfast.domain.value import value

SURPRISING = 3.0
"""Factor between a result and the engine model that the condition mentions."""

_MOST_NAMES = 3
_AGAIN = "change spec.revision to measure again"


@value
class Standing:
    """Facts about a result.

    `newer`: a benchmark with a newer result of the same engine, which is used instead. `services` have such an engine;
    `refusing` are the services whose engine model cannot be scaled to the result; `factors` are the results of the
    others relative to the model. `edited`: the measured service, if its engine has changed since. `by_earlier_run`: the
    newest run of the benchmark did not produce the result.
    """

    newer: str = ""
    services: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()
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
        why = "the benchmark or the engine model found no rate that an engine carries"
        return (
            False,
            Reason.IMPLAUSIBLE,
            f"{_names(known.services)}: sized from the engine model alone, because {why}; {_AGAIN}",
        )
    text = f"sizing of {_names(taking)} starts from this result{_surprise(known.factors)}"
    if known.edited:
        return True, Reason.OLDER_ENGINE, f"{text}, but the engine of {known.edited} was edited since; {_AGAIN}"
    return True, Reason.IN_FORCE, text


def _surprise(factors: Sequence[float]) -> str:
    """A remark on a result that the engine model did not expect at all."""
    factor = max(factors, key=lambda each: abs(math.log(each)), default=1.0)
    if 1.0 / SURPRISING < factor < SURPRISING:
        return ""
    return f", which is {factor:.2g} times what the engine model says; check model.uri and the accelerator's labels"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
