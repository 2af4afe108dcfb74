"""When sizes changed direction: what the flap limit counts, and what lengthens the hold time."""

from __future__ import annotations

from holdfast.domain.decision import Action
from holdfast.domain.value import value

UNCHANGED = 1.1
"""Load that has grown by less than this factor did not call a replica back: letting it go was a mistake."""

MOST_PATIENCE = 16.0


@value
class Flapping:
    """Whether the size last grew, and when it changed direction (seconds), newest last.

    `lowered_rps` is the load at the last step down since the size last grew. `patience` multiplies the hold time: it
    doubles with every step down that had to be taken back at the same load, and starts anew when the load changes.
    """

    rising: bool | None = None
    at: tuple[float, ...] = ()
    lowered_rps: float | None = None
    patience: float = 1.0


def remember_change(memory: Flapping, action: Action, now: float, lead_seconds: float, level_rps: float) -> Flapping:
    """Note what was done; changes of direction older than a lead time are forgotten."""
    if action not in (Action.SCALE_UP, Action.SCALE_DOWN):
        return memory
    rising = action is Action.SCALE_UP
    turned = memory.rising is not None and memory.rising != rising
    at = (*(at for at in memory.at if now - at <= lead_seconds), now) if turned else memory.at
    if not rising:
        return Flapping(rising, at, level_rps, memory.patience)
    return Flapping(rising, at, None, _patience(memory, level_rps))


def _patience(memory: Flapping, level_rps: float) -> float:
    if memory.lowered_rps is None:
        return memory.patience
    mistaken = level_rps <= UNCHANGED * memory.lowered_rps
    return min(2.0 * memory.patience, MOST_PATIENCE) if mistaken else 1.0
