"""Which services are asked about in a tick: all of them while they are few, else each once in a scrape interval.

Engines are scraped more rarely than decisions are made, and what was not scraped anew has nothing new to say. A service
whose pulse shows more load than when it was last asked about is asked about out of turn, so that a rise is seen in the
tick after its scrape however many services there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey
from holdfast.observe.samples import Sample, usable
from holdfast.observe.slow import service_key
from holdfast.observe.traffic import TrafficRequest

MOST_ENGINES = 500
"""Engines that one tick asks about without taking turns."""

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
class _Asked:
    tick: int
    request: TrafficRequest
    pulse: Pulse


class Rota:
    """Remembers who was asked about when; `most_turns` are the ticks of one scrape interval."""

    def __init__(self, most_turns: int) -> None:
        self._most_turns = max(1, most_turns)
        self._tick = 0
        self._asked: dict[ServiceKey, _Asked] = {}

    def turns(self, requests: Iterable[TrafficRequest]) -> int:
        """In how many ticks everybody has had a turn."""
        engines = sum(len(request.replicas) for request in requests)
        return min(self._most_turns, max(1, math.ceil(engines / MOST_ENGINES)))

    def due(self, requests: Sequence[TrafficRequest], pulses: Mapping[ServiceKey, Pulse]) -> list[TrafficRequest]:
        """Return whose turn it is, who is new or changed, and whose load rose the most: half a turn of them."""
        turns = self.turns(requests)
        self._tick += 1
        due, rises = [], []
        for place, request in enumerate(sorted(requests, key=lambda request: request.key)):
            last = self._asked.get(request.key)
            has_turn = place % turns == self._tick % turns
            if has_turn or last is None or last.request != request or self._tick - last.tick >= turns:
                due.append(request)
            elif (rise := pulses.get(request.key, Pulse()).rise(last.pulse)) > RISE:
                rises.append((rise, request))
        rises.sort(key=lambda pair: (-pair[0], pair[1].key))
        return due + [request for _, request in rises[: math.ceil(len(requests) / (2 * turns))]]

    def answered(
        self,
        requests: Iterable[TrafficRequest],
        pulses: Mapping[ServiceKey, Pulse],
        everybody: Iterable[TrafficRequest],
    ) -> None:
        """Remember who was asked about with success, and forget who is gone."""
        for request in requests:
            self._asked[request.key] = _Asked(self._tick, request, pulses.get(request.key, Pulse()))
        for gone in self._asked.keys() - {request.key for request in everybody}:
            del self._asked[gone]


def read_pulses(samples: Iterable[Sample]) -> dict[ServiceKey, Pulse]:
    """Return the pulse of every service that has one; what makes no sense is left out."""
    found: dict[ServiceKey, dict[str, float]] = {}
    for sample in samples:
        if usable(sample.value):
            found.setdefault(service_key(sample), {})[sample.label("metric")] = sample.value
    return {key: Pulse(seen.get("started", 0.0), seen.get("waiting", 0.0)) for key, seen in found.items()}


def _deviation(now: float, then: float) -> float:
    return (now - then) / math.sqrt(max(now + then, 1.0))
