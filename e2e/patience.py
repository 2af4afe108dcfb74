"""How long tests and the demo wait for what must happen.

A deadline is written as what an idle machine needs, with room. Two clusters on cores of which the host takes some away
for minutes need a multiple of that; where all is well a later deadline costs nothing.
"""

from __future__ import annotations

PATIENCE = 3.0


class Promised(float):
    """Seconds that are a promise of the project: a bar, which stays where it is on every machine."""


def patient(seconds: float) -> float:
    """Return how long to wait for something that takes less than `seconds` on an idle machine."""
    return seconds if isinstance(seconds, Promised) else PATIENCE * seconds
