"""Warnings about services, each logged once until it changes: what is refused at one tick is refused at the next."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from holdfast.domain.service import ServiceKey


class ChangedWarnings:
    """The sentences that hold of each service, as they were last logged."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[ServiceKey, frozenset[str]] = {}

    def warn(self, key: ServiceKey, sentences: Collection[str]) -> None:
        """Log the sentences that did not hold before; those left out hold no more, and are new if they come back."""
        for sentence in sentences:
            if sentence not in self._last.get(key, ()):
                self._log.warning("%s: %s", key, sentence)
        self._last[key] = frozenset(sentences)

    def has(self, key: ServiceKey, part: str) -> bool:
        """Whether a sentence of the service says this."""
        return any(part in sentence for sentence in self._last.get(key, ()))

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop deleted services."""
        for key in keys:
            self._last.pop(key, None)
