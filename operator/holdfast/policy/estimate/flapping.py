"""Removals that were a mistake lengthen the hold time, so that a size does not flap."""

from __future__ import annotations

from holdfast.domain.decision import Action
from holdfast.domain.value import value

UNCHANGED = 1.1
"""A load that has grown by less than this factor did not cause a scale-up: the scale-down before it was a mistake."""

MOST_PATIENCE = 16.0


@value
class Flapping:
    """`lowered_rps` is the load at the last scale-down since the size last grew; `patience` multiplies the hold time.

    It doubles with every scale-down that is reversed at the same load, and is reset when the load changes.
    """

    lowered_rps: float | None = None
    patience: float = 1.0


def remember_change(memory: Flapping, action: Action, level_rps: float) -> Flapping:
    """Record an action at this load."""
    if action is Action.SCALE_DOWN:
        return Flapping(level_rps, memory.patience)
    if action is not Action.SCALE_UP or memory.lowered_rps is None:
        return memory
    mistaken = level_rps <= UNCHANGED * memory.lowered_rps
    return Flapping(None, min(2.0 * memory.patience, MOST_PATIENCE) if mistaken else 1.0)
