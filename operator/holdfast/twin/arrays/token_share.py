"""How much of an engine's tokens each class had lately, on arrays: `holdfast_engine.queue.tokenshare.TokenShares`.

A second of the last minute has a row of `had`, by its number modulo SPAN_SECONDS.
"""

from __future__ import annotations

import math

from holdfast.twin.arrays.compiled import inner
from holdfast.twin.arrays.state_arrays import Record, Records
from holdfast.twin.arrays.timers import Integers
from holdfast_engine.queue.tokenshare import SPAN_SECONDS


@inner
def add(loop: Record, classes: Records, had: Integers, of_class: int, tokens: int, now: float) -> None:
    """A request of this class brought or got so many tokens."""
    _forget(loop, classes, had, now)
    had[math.floor(now) % SPAN_SECONDS, of_class] += tokens
    classes[of_class]["tokens_had"] += tokens
    loop["tokens_had"] += tokens


@inner
def has_room(loop: Record, classes: Records, had: Integers, of_class: int, now: float) -> bool:
    """Whether one more request may have this class: it has had no more than its share until now."""
    most = classes[of_class]["most_share"]
    if math.isnan(most):
        return True
    _forget(loop, classes, had, now)
    return bool(classes[of_class]["tokens_had"] <= most * loop["tokens_had"])


@inner
def _forget(loop: Record, classes: Records, had: Integers, now: float) -> None:
    """Make room for the seconds since the last one, and forget what is as old as the span."""
    second = math.floor(now)
    for each in range(max(loop["share_second"], second - SPAN_SECONDS) + 1, second + 1):
        row = had[each % SPAN_SECONDS]
        for of_class in range(len(classes)):
            classes[of_class]["tokens_had"] -= row[of_class]
            loop["tokens_had"] -= row[of_class]
            row[of_class] = 0
    loop["share_second"] = max(loop["share_second"], second)
