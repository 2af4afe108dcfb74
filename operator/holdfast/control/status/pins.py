"""Pins that no applied manifest has: reported at once in a condition, and as a warning once they have lasted."""

from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.domain.service import ServiceKey, ServiceSpec

LASTING_SECONDS = 600.0


class Pins:
    """Since when this process has seen each such pin; the API server keeps no time for one set by `kubectl scale`."""

    def __init__(self) -> None:
        self._since: dict[ServiceKey, tuple[tuple[str, int], float]] = {}

    def due_at(self, spec: ServiceSpec, now: float) -> float:
        """Return when to warn of the pin of a service; infinite if it has none, or if `warned` was called for it."""
        if not spec.pin_lacked_by:
            self._since.pop(spec.key, None)
            return math.inf
        which = (spec.uid, spec.generation)
        known, since = self._since.get(spec.key, (None, now))
        if known != which:
            since = now
            self._since[spec.key] = (which, since)
        return since + LASTING_SECONDS

    def warned(self, spec: ServiceSpec) -> None:
        """Take note that the warning of this pin was posted."""
        self._since[spec.key] = ((spec.uid, spec.generation), math.inf)

    def forget(self, gone: Iterable[ServiceKey]) -> None:
        """Drop deleted services."""
        for key in gone:
            self._since.pop(key, None)
