"""Record direction changes of the size: the flap limit counts them, and they lengthen the hold time."""

from __future__ import annotations

from holdfast.domain.decision import Action
from holdfast.domain.value import value

UNCHANGED = 1.1
"""A load that has grown by less than this factor did not cause a scale-up: the scale-down before it was a mistake."""

MOST_PATIENCE = 16.0


@value
class Flapping:
    """Whether the size last grew, and the times of its direction changes in seconds, newest last.

    `lowered_rps` is the load at the last scale-down since the size last grew. `patience` multiplies the hold time. It
    doubles with every scale-down that is reversed at the same load, and is reset when the load changes.
    """

    rising: bool | None = None
    at: tuple[float, ...] = ()
    lowered_rps: float | None = None
    patience: float = 1.0


def remember_change(memory: Flapping, action: Action, now: float, lead_seconds: float, level_rps: float) -> Flapping:
    """Record an action; direction changes older than a lead time are dropped."""
    if action not in (Action.SCALE_UP, Action.SCALE_DOWN):
        return memory
    rising = action is Action.SCALE_UP
    turned = memory.rising is not None and memory.rising != rising
    at = (*(at for at in memory.at if now - at <= lead_seconds), now) if turned else memory.at
    if not rising:
        return Flapping(rising, at, level_rps, memory.patience)
    return Flapping(rising, at, None, _patience(memory, level_rps))


def _patience(memory: Flapping, level_rps: float) -> float:
    """Return the factor on the hold time after a scale-up."""
    if memory.lowered_rps is None:
        return memory.patience
    mistaken = level_rps <= UNCHANGED * memory.lowered_rps
    return min(2.0 * memory.patience, MOST_PATIENCE) if mistaken else 1.0
