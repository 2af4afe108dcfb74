"""When sizes changed direction: what the flap limit counts."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.decision import Action


@dataclass(frozen=True, slots=True)
class Turns:
    """Whether the size last grew, and when it changed direction (seconds), newest last."""

    rising: bool | None = None
    at: tuple[float, ...] = ()


def remember_turn(memory: Turns, action: Action, now: float, lead_seconds: float) -> Turns:
    """Note a change of direction; what is older than a lead time is forgotten."""
    if action not in (Action.SCALE_UP, Action.SCALE_DOWN):
        return memory
    rising = action is Action.SCALE_UP
    if memory.rising is None or memory.rising == rising:
        return Turns(rising, memory.at)
    return Turns(rising, (*(at for at in memory.at if now - at <= lead_seconds), now))
