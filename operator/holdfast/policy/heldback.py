"""Requests that waited for a replica to start: judged by what their clients saw, not by what the engine saw.

An engine counts a request from its arrival there. Who has waited for a cold start missed its TTFT all the same: such
requests are bad, and as many verdicts of the engine are taken back, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.domain.activator import Activator, longer_than
from holdfast.domain.service import Slo
from holdfast.policy.budget import Budget, Verdicts, amended

MOST_PROCESSES = 4
"""An activator that is being replaced answers beside the next one."""


class Counted(NamedTuple):
    """Counters of one process of the activator at the last look at it."""

    boot: str
    late: int
    lost: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What was counted, the last looked at last, and requests judged bad that an engine has yet to judge."""

    counted: tuple[Counted, ...] = ()
    owed: float = 0.0


def account(memory: HeldBack, told: Activator | None, budget: Budget, slo: Slo, now: float) -> tuple[HeldBack, Budget]:
    """Put what was held into the verdicts; what was counted before the first look of all is not known.

    Of a process that is new beside known ones everything counts: it has started since.
    """
    if told is None or not told.answers:
        return memory, budget
    shown = Counted(
        told.boot,
        longer_than(told.forwarded, slo.ttft_seconds),
        longer_than(told.gone, slo.ttft_seconds) + told.turned_away,
    )
    others = tuple(process for process in memory.counted if process.boot != shown.boot)
    before = next((process for process in memory.counted if process.boot == shown.boot), None)
    if before is None:
        before = Counted(shown.boot, 0, 0) if others else shown
    # A longer TTFT makes the counts smaller: then nothing is new.
    late, lost = max(0, shown.late - before.late), max(0, shown.lost - before.lost)
    owed, judged = memory.owed + late, budget.latest
    taken = min(owed, judged.judged)
    kept = HeldBack((*others, shown)[-MOST_PROCESSES:], owed - taken)
    if not (late or lost or taken):
        return kept, budget
    bad = taken * judged.bad_share
    return kept, amended(budget, Verdicts(bad - taken, late + lost - bad), now)
