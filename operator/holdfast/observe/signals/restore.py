"""Reads the history of every service back after a start, in the background: no tick waits for all of it.

Services are independent. Those whose read failed are asked for again in smaller portions, at last alone, so that a
service whose history cannot be read keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, MissingHistory
from holdfast.observe.series.samples import QueryError
from holdfast.observe.signals.prometheus import MetricsSource
from holdfast.observe.signals.traffic import TrafficRequest

_LOG = logging.getLogger(__name__)
_PORTION = 100
"""Services of one query: an hour of one is a thousand points."""
_SMALLER = 4
_MOST_PER_TICK = 500
"""Services read before the next tick learns from them: this bounds the memory of both, and the time of a tick."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 15.0, 300.0
_PARTIAL = "Prometheus returned only a part of it"
_TRIES_FOR_ALL = 3
"""Reads until a history without its older part is accepted: a query over 30 days may never be answered."""


@dataclass(slots=True, eq=False)
class _Restore:
    """One service: its history once it has been read, and `learned` once a decision has used it."""

    request: TrafficRequest
    learned: bool = False
    history: History | None = None
    failures: int = 0
    failure: str = ""
    due_at: float = -math.inf  # monotonic

    def take(self, history: History | None, failure: str, now: float) -> None:
        """Keep what was read, or read again after a pause that grows with each failure."""
        if history is not None and (history.whole or self.failures + 1 >= _TRIES_FOR_ALL):
            self.history = history
            return
        self.due_at = now + min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** min(self.failures, 10))
        self.failures, self.failure = self.failures + 1, failure


class Restored(NamedTuple):
    """At one moment: histories that no decision has used yet, and services whose history has yet to be read."""

    found: Mapping[ServiceKey, History]
    missing: Mapping[ServiceKey, MissingHistory]


class HistoryRestore:
    """Hands every service that is older than this process its history once, when it has been read."""

    def __init__(self, metrics: MetricsSource, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._wall = wall
        self._started_at: float | None = None
        self._restores: dict[tuple[ServiceKey, str], _Restore] = {}
        self._reading: asyncio.Task[None] | None = None

    def read(self, requests: Iterable[TrafficRequest], now: float, reachable: bool = True) -> Restored:
        """Read on if Prometheus is `reachable`, and return what has come; restores of deleted services are dropped."""
        self._started_at = now if self._started_at is None else self._started_at
        self._restores = {(request.key, request.uid): self._restore(request) for request in requests}
        open_ = [each for each in self._restores.values() if not each.learned]
        due = [each for each in open_ if each.history is None and each.due_at <= self._monotonic()]
        if due and reachable and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(sorted(due, key=lambda each: each.failures)))
        return Restored(
            {each.request.key: each.history for each in open_ if each.history is not None},
            {each.request.key: MissingHistory(each.failure) for each in open_ if each.history is None},
        )

    def learned(self, used: Mapping[ServiceKey, History]) -> None:
        """A decision has used these histories: they are dropped, and never read again."""
        for each in self._restores.values():
            if each.history is not None and used.get(each.request.key) is each.history:
                each.history, each.learned = None, True

    def _restore(self, request: TrafficRequest) -> _Restore:
        known = self._restores.get((request.key, request.uid))
        if known is not None and (known.learned or known.request.slo == request.slo):
            return known  # under another SLO, other requests were good
        born_at, started_at = request.born_at, self._started_at
        lasting = replace(request, replicas=())  # histories are read by name; replicas would be retained for ever
        return _Restore(lasting, learned=born_at is not None and started_at is not None and born_at >= started_at)

    async def _read(self, due: Sequence[_Restore]) -> None:
        for portion in _portions(due[:_MOST_PER_TICK]):
            found, failure = await self._history([each.request for each in portion])
            for each in portion:
                each.take(found.get(each.request.key), failure, self._monotonic())

    async def _history(self, requests: Sequence[TrafficRequest]) -> tuple[Mapping[ServiceKey, History], str]:
        """Return what could be read, and why the rest could not."""
        try:
            return await self._metrics.history(requests, self._wall()), _PARTIAL
        except QueryError as error:
            failure = str(error)
        except Exception as error:  # a bug of ours, or an answer that nobody expected: it must not end the restore
            failure = f"{type(error).__name__}: {error}"
            _LOG.exception("reading a history failed")
        _LOG.warning("reading the history of %d services failed; it is repeated: %s", len(requests), failure)
        return {}, failure


def _portions(due: Sequence[_Restore]) -> Iterator[Sequence[_Restore]]:
    """Portions of services that failed equally often, in this order; each failure makes them smaller."""
    first = 0
    while first < len(due):
        failures = due[first].failures
        most = max(1, _PORTION // _SMALLER**failures)
        portion = [each for each in due[first : first + most] if each.failures == failures]
        yield portion
        first += len(portion)
