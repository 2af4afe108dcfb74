"""Exponential backoff for writes that the API server refuses, as long as the content is unchanged.

A rule of the cluster may refuse the writes of hundreds of services at every tick until it is removed.
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


class WriteBackoff:
    """The refused write of each service, and the time of its retry."""

    def __init__(self) -> None:
        self._known: dict[ServiceKey, _Refused] = {}

    def is_due(self, key: ServiceKey, what: object, now: float) -> bool:
        """Whether to write: the content differs from the refused one, or its pause is over."""
        known = self._known.get(key)
        return known is None or known.what != what or not 0.0 <= now - known.at < known.pause_seconds

    def refused(self, key: ServiceKey, what: object, now: float) -> None:
        """Begin a pause; it doubles if the same content is refused again."""
        known = self._known.get(key)
        again = known is not None and known.what == what
        pause = min(_MOST_SECONDS, 2.0 * known.pause_seconds) if known and again else _FIRST_SECONDS
        self._known[key] = _Refused(what, now, pause)

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop services whose writes succeeded, and deleted services."""
        for key in keys:
            self._known.pop(key, None)
