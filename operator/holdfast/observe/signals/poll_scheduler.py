"""Which services a tick queries: all of them if they are few, else each once per scrape interval.

Engines are scraped less often than decisions are made, and without a new scrape there is nothing new to read. With
many services, a tick waits only for the pressing ones: new services, and services whose pulse shows more load than at
their last query. So a rise is seen in the tick after its scrape, however many services there are. All other services
are queried in turns between the ticks, and the next tick decides on them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey
from holdfast.observe.series.samples import Sample, service_key, usable
from holdfast.observe.signals.traffic import TrafficRequest

MOST_ENGINES = 500
"""Engines that one tick queries without taking turns."""

MOST_PRESSING = 200
"""Maximum engines of services with risen load that one tick waits for; the remaining services get the next turn."""

RISE = 2.0
"""Standard deviations of Poisson noise above which a pulse counts as risen: less than any decision requires."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """First tokens of one service over the counting interval, and requests waiting now."""

    started: float = 0.0
    waiting: float = 0.0

    def rise(self, then: Pulse) -> float:
        """Standard deviations by which the load is higher than it was then."""
        return max(_deviation(self.started, then.started), _deviation(self.waiting, then.waiting))


@dataclass(frozen=True, slots=True)
class _PolledService:
    at: float
    request: TrafficRequest
    pulse: Pulse


class PollScheduler:
    """Remembers when each service was queried.

    `most_turns` is the number of ticks in one scrape interval, `trust_seconds` how long an answer stays valid.
    """

    def __init__(self, most_turns: int, trust_seconds: float) -> None:
        self._most_turns = max(1, most_turns)
        self._trust_seconds = trust_seconds
        self._asked: dict[ServiceKey, _PolledService] = {}

    def turns(self, requests: Iterable[TrafficRequest]) -> int:
        """Number of ticks in which every service gets one turn."""
        return min(self._most_turns, max(1, math.ceil(engines(requests) / MOST_ENGINES)))

    def pressing(
        self, requests: Iterable[TrafficRequest], pulses: Mapping[ServiceKey, Pulse], now: float
    ) -> list[TrafficRequest]:
        """Return services that are new or whose answer is too old, and those whose load rose the most."""
        unknown, rises = [], []
        for request in requests:
            last = self._asked.get(request.key)
            if last is None or now - last.at > self._trust_seconds:
                unknown.append(request)
            elif (rise := pulses.get(request.key, Pulse()).rise(last.pulse)) > RISE:
                rises.append((rise, request))
        rises.sort(key=lambda pair: (-pair[0], pair[1].key))
        return unknown + _up_to(MOST_PRESSING, [request for _, request in rises])

    def due(self, requests: Sequence[TrafficRequest], pressing: Collection[TrafficRequest]) -> list[TrafficRequest]:
        """Return services due besides the pressing ones: changed services first, then those queried longest ago."""
        asked = {request.key for request in pressing}
        waiting = [request for request in requests if request.key not in asked]
        share = math.ceil(len(requests) / self.turns(requests))
        return sorted(waiting, key=self._place)[: max(0, share - len(pressing))]

    def answered(
        self,
        requests: Iterable[TrafficRequest],
        pulses: Mapping[ServiceKey, Pulse],
        everybody: Iterable[TrafficRequest],
        at: float,
    ) -> None:
        """Record successful queries, and forget deleted services."""
        for request in requests:
            self._asked[request.key] = _PolledService(at, request, pulses.get(request.key, Pulse()))
        for gone in self._asked.keys() - {request.key for request in everybody}:
            del self._asked[gone]

    def is_newer(self, key: ServiceKey, at: float) -> bool:
        """Whether the service was queried after that time."""
        last = self._asked.get(key)
        return last is not None and last.at > at

    def _place(self, request: TrafficRequest) -> tuple[bool, float, ServiceKey]:
        last = self._asked.get(request.key)
        return (True, last.at, request.key) if last and last.request == request else (False, 0.0, request.key)


def engines(requests: Iterable[TrafficRequest]) -> int:
    """How many replicas these services have."""
    return sum(len(request.replicas) for request in requests)


def read_pulses(samples: Iterable[Sample]) -> dict[ServiceKey, Pulse]:
    """Return the pulse of every service that has one; invalid samples are omitted."""
    found: dict[ServiceKey, dict[str, float]] = {}
    for sample in samples:
        if usable(sample.value):
            found.setdefault(service_key(sample), {})[sample.label("metric")] = sample.value
    return {key: Pulse(seen.get("started", 0.0), seen.get("waiting", 0.0)) for key, seen in found.items()}


def _up_to(most: int, requests: Sequence[TrafficRequest]) -> list[TrafficRequest]:
    """The first of these services with at most this many engines in total; at least one service."""
    taken: list[TrafficRequest] = []
    total = 0
    for request in requests:
        total += max(1, len(request.replicas))
        if taken and total > most:
            break
        taken.append(request)
    return taken


def _deviation(now: float, then: float) -> float:
    return (now - then) / math.sqrt(max(now + then, 1.0))
