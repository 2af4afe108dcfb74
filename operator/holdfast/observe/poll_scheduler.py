"""Which services are asked about in a tick: all of them while they are few, else each once in a scrape interval.

Engines are scraped more rarely than decisions are made, and what was not scraped anew has nothing new to say. Of many
services a tick waits only for those that press: new ones, and those whose pulse shows more load than when they were
last asked about, so that a rise is seen in the tick after its scrape however many services there are. All others are
asked about in turns between the ticks, and decided on in the next one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey
from holdfast.observe.samples import Sample, usable
from holdfast.observe.slow_queries import service_key
from holdfast.observe.traffic import TrafficRequest

MOST_ENGINES = 500
"""Engines that one tick asks about without taking turns."""

MOST_PRESSING = 200
"""Engines of services whose load has risen that one tick waits for: those of the others have the next turn."""

RISE = 2.0
"""Standard deviations of Poisson noise above which a pulse counts as risen: less than any decision asks for."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """First tokens of one service over the counting interval, and requests that wait now."""

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


class Rota:
    """Remembers who was asked about when.

    `most_turns` are the ticks of one scrape interval, `trust_seconds` how long an answer may stand for a service.
    """

    def __init__(self, most_turns: int, trust_seconds: float) -> None:
        self._most_turns = max(1, most_turns)
        self._trust_seconds = trust_seconds
        self._asked: dict[ServiceKey, _PolledService] = {}

    def turns(self, requests: Iterable[TrafficRequest]) -> int:
        """In how many ticks everybody has had a turn."""
        return min(self._most_turns, max(1, math.ceil(engines(requests) / MOST_ENGINES)))

    def pressing(
        self, requests: Iterable[TrafficRequest], pulses: Mapping[ServiceKey, Pulse], now: float
    ) -> list[TrafficRequest]:
        """Return who is new or was last seen too long ago, and those whose load rose the most."""
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
        """Return whose turn it is beside those that press: who has changed, then who was asked about longest ago."""
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
        """Remember who was asked about with success, and forget who is gone."""
        for request in requests:
            self._asked[request.key] = _PolledService(at, request, pulses.get(request.key, Pulse()))
        for gone in self._asked.keys() - {request.key for request in everybody}:
            del self._asked[gone]

    def is_newer(self, key: ServiceKey, at: float) -> bool:
        """Whether a service has been asked about since then."""
        last = self._asked.get(key)
        return last is not None and last.at > at

    def _place(self, request: TrafficRequest) -> tuple[bool, float, ServiceKey]:
        last = self._asked.get(request.key)
        return (True, last.at, request.key) if last and last.request == request else (False, 0.0, request.key)


def engines(requests: Iterable[TrafficRequest]) -> int:
    """How many replicas these services have."""
    return sum(len(request.replicas) for request in requests)


def read_pulses(samples: Iterable[Sample]) -> dict[ServiceKey, Pulse]:
    """Return the pulse of every service that has one; what makes no sense is left out."""
    found: dict[ServiceKey, dict[str, float]] = {}
    for sample in samples:
        if usable(sample.value):
            found.setdefault(service_key(sample), {})[sample.label("metric")] = sample.value
    return {key: Pulse(seen.get("started", 0.0), seen.get("waiting", 0.0)) for key, seen in found.items()}


def _up_to(most: int, requests: Sequence[TrafficRequest]) -> list[TrafficRequest]:
    """The first of these services that have no more engines together; one at least."""
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
