"""Writes that the API server refuses are tried again ever more rarely, for as long as the same is to be written.

A rule of the cluster may refuse those of hundreds of services at once, each tick, until somebody lifts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey

_FIRST_SECONDS, _MOST_SECONDS = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class _Refused:
    what: object
    at: float
    pause_seconds: float


class Refusals:
    """What was refused of which service, and when it is tried again."""

    def __init__(self) -> None:
        self._known: dict[ServiceKey, _Refused] = {}

    def is_due(self, key: ServiceKey, what: object, now: float) -> bool:
        """Whether to write: another thing than what was refused, or after its pause."""
        known = self._known.get(key)
        return known is None or known.what != what or not 0.0 <= now - known.at < known.pause_seconds

    def refused(self, key: ServiceKey, what: object, now: float) -> None:
        """Begin a pause, twice as long as the last one of the same."""
        known = self._known.get(key)
        again = known is not None and known.what == what
        pause = min(_MOST_SECONDS, 2.0 * known.pause_seconds) if known and again else _FIRST_SECONDS
        self._known[key] = _Refused(what, now, pause)

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop services whose writes were taken, or that are gone."""
        for key in keys:
            self._known.pop(key, None)
