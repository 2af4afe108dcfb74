"""What the page knows: the newest tick, two hours of figures and the last changes; each answer worked out once a tick.

Nothing is worked out while nobody looks. A tick only records, which takes microseconds a service.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.page import model
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Halves, Track
from holdfast.page.model import Change, Moment

MOST_CHANGES = 12
_SAME_CHANGE_SECONDS = 60.0
_MOST_PAGES = 64  # of single services, in one tick
_MISSED = COLUMNS.index("missed_share")

Shown = Mapping[ServiceKey, tuple[ServiceParts, Decision]]


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """JSON as it is sent; the tag names the tick."""

    tag: str
    body: bytes
    zipped: bytes

    @classmethod
    def of(cls, tag: str, told: Mapping[str, Any]) -> JsonResponse:
        body = json.dumps(told, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        return cls(tag, body, gzip.compress(body, compresslevel=4))


@dataclass(slots=True)
class _Tick:
    """One tick and the answers made of it so far."""

    tag: str
    at: float
    services: Shown = field(default_factory=dict)
    invalid: Sequence[Invalid] = ()
    api_outage: str = ""
    fleet: asyncio.Task[JsonResponse] | None = None
    pages: dict[ServiceKey, JsonResponse] = field(default_factory=dict)


class Board:
    """The loop writes it, the page's server reads it; both on one event loop.

    `api_outage` says why the API server does not answer, and nothing while it does.
    """

    def __init__(self, api_outage: Callable[[], str] = str) -> None:
        self.api_outage = api_outage
        self._boot = secrets.token_hex(4)
        self._ticks = 0
        self.shown = asyncio.Event()
        """Set by the first tick."""
        self._tick: _Tick | None = None
        self._since = 0.0
        self.leads_since = 0.0
        """When the first tick was shown; 0 before it."""
        self._tracks: dict[ServiceKey, Track] = {}
        self._changes: dict[ServiceKey, deque[Change]] = {}

    @property
    def blank(self) -> bool:
        """Whether no tick has been shown yet: this replica does not lead, or not for long."""
        return self._tick is None

    @property
    def keys(self) -> frozenset[ServiceKey]:
        """The services that have a history."""
        return frozenset(self._tracks)

    def recall(self, key: ServiceKey, at: float, figures: Mapping[str, float | None]) -> None:
        """Remember what was so before this process led; what its own ticks showed stays."""
        track = self._tracks.get(key)
        if track is not None and track.recall(at, figures):
            self._since = min(self._since, at)

    def pictured(self, services: Shown, invalid: Sequence[Invalid], at: float) -> None:
        """Show this tick from now on; what is remembered of services that are gone is forgotten."""
        self._ticks += 1
        self._since = max(self._since or at, at - POINTS * SPAN_SECONDS)
        self.leads_since = self.leads_since or at
        self._tick = _Tick(f"{self._boot}-{self._ticks}", at, services, invalid, self.api_outage())
        kept = services.keys() | {entry.key for entry in invalid}
        self._tracks = {key: track for key, track in self._tracks.items() if key in kept}
        self._changes = {key: changes for key, changes in self._changes.items() if key in kept}
        for key, (part, decision) in services.items():
            self._tracks.setdefault(key, Track()).record(at, model.figures(part, decision))
            if key not in self._changes and (last := Change.told_by(part.service.status)):
                self._changes[key] = deque([last], maxlen=MOST_CHANGES)  # of the leader before this process
        self.shown.set()

    def decided(self, decision: Decision, at: float) -> None:
        """Remember a change; one that is decided again before it is seen is the same one."""
        verdict = decision.verdict
        changes = self._changes.setdefault(decision.key, deque(maxlen=MOST_CHANGES))
        last = changes[-1] if changes else None
        change = Change(at, verdict.action.value, str(verdict.reason), verdict.message, verdict.replicas)
        if last and _same(last, change) and at - last.at < _SAME_CHANGE_SECONDS:
            return
        changes.append(change)

    async def fleet(self) -> JsonResponse | None:
        """Return all services; None before the first tick. Concurrent requests wait for the same answer."""
        tick = self._tick
        if tick is None:
            return None
        if tick.fleet is None:
            # What the thread reads is picked here, so that a tick that comes meanwhile does not change it.
            missed = {key: track.until(tick.at)[_MISSED] for key, track in self._tracks.items()}
            tick.fleet = asyncio.create_task(asyncio.to_thread(_fleet, tick, missed, self._moment(tick)))
        return await asyncio.shield(tick.fleet)

    def service(self, key: ServiceKey) -> JsonResponse | None:
        """Return one service; None where it is not decided on here."""
        tick = self._tick
        found = None if tick is None else tick.services.get(key)
        if tick is None or found is None:
            return None
        if key not in tick.pages:
            if len(tick.pages) >= _MOST_PAGES:
                tick.pages.clear()
            tick.pages[key] = self._page(tick, key, *found)
        return tick.pages[key]

    def _page(self, tick: _Tick, key: ServiceKey, part: ServiceParts, decision: Decision) -> JsonResponse:
        track, changes = self._tracks[key].until(tick.at), tuple(self._changes.get(key, ()))
        return JsonResponse.of(tick.tag, model.service(part, decision, track, changes, self._moment(tick)))

    def _moment(self, tick: _Tick) -> Moment:
        return Moment(tick.at, self._since, self.leads_since, tick.api_outage)


def _fleet(tick: _Tick, missed: Mapping[ServiceKey, Halves], moment: Moment) -> JsonResponse:
    return JsonResponse.of(tick.tag, model.fleet(tick.services, tick.invalid, missed, moment))


def _same(one: Change, other: Change) -> bool:
    return (one.action, one.reason, one.replicas) == (other.action, other.reason, other.replicas)
