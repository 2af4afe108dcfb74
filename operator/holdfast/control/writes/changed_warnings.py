"""Warnings about services, each logged once until it changes: what is refused at one tick is refused at the next."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from holdfast.domain.cluster import ClusterProblem
from holdfast.domain.service import ServiceKey


class ChangedWarnings:
    """The sentences that hold of each service, as they were last logged, each with its reason."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[ServiceKey, frozenset[ClusterProblem]] = {}

    def warn(self, key: ServiceKey, problems: Collection[ClusterProblem]) -> None:
        """Log the problems that did not hold before; those left out hold no more, and are new if they come back."""
        for problem in problems:
            if problem not in self._last.get(key, ()):
                self._log.warning("%s: %s: %s", key, problem.reason, problem.message)
        self._last[key] = frozenset(problems)

    def has(self, key: ServiceKey, words: str) -> bool:
        """Whether a problem of the service has these words."""
        return any(words in problem.message for problem in self._last.get(key, ()))

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop deleted services."""
        for key in keys:
            self._last.pop(key, None)
