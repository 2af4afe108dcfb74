"""The operator's own health endpoints and metrics; every replica of the operator serves them, leader or not."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import aiohttp.web
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.control.status.explanation import explained
from holdfast.control.status.report import iso
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.listener import refusals
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.page.board import Board
from holdfast.runtime.figures import LastChange, Picture, ServiceGauges

_LOG = logging.getLogger(__name__)
_SAME_TEXT_SECONDS = 1.0
"""The text of 1,000 services takes megabytes: clients that read slowly share it."""
_MOST_OWN_BYTES = 256 * 1024
_TICK_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Telemetry:
    """Counters and gauges of one operator process, on a registry of its own, and the newest decisions.

    The explanation of a decision is text (messages, candidates) and therefore no metric: `holdfast explain` reads it
    per service.
    """

    def __init__(self, wall: Callable[[], float] = time.time, board: Board | None = None) -> None:
        self._wall = wall
        self._board = board
        self.registry = CollectorRegistry()
        self._figures = ServiceGauges()
        self.registry.register(self._figures)
        prometheus_client.ProcessCollector(registry=self.registry)
        self._phase = Histogram(
            "holdfast_tick_phase_seconds", "Duration of one phase of a tick.", ["phase"],
            buckets=_TICK_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._tick = Histogram(
            "holdfast_tick_seconds", "Duration of a tick over all services.",
            buckets=_TICK_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._leader = Gauge("holdfast_leader", "1 while this process leads.", registry=self.registry)
        self._services = Gauge(
            "holdfast_services", ("Number of LLMServices that the operator controls."), registry=self.registry
        )
        self._decisions = Counter(
            "holdfast_decisions", "Number of decisions that changed something.",
            ["namespace", "service", "action", "reason"], registry=self.registry,
        )  # fmt: skip
        self._errors = Counter("holdfast_errors", "Number of failures by phase.", ["phase"], registry=self.registry)
        self._crd_fields = Gauge(
            "holdfast_crd_missing_fields", "Fields that the CRD in the cluster lacks, and this version has.",
            ["crd"], registry=self.registry,
        )  # fmt: skip
        self.refusals = refusals.counter(self.registry, "holdfast")

    def leading(self, value: bool) -> None:
        self._leader.set(value)

    def phase(self, name: str, seconds: float) -> None:
        self._phase.labels(name).observe(seconds)

    def tick(self, seconds: float, services: int) -> None:
        self._tick.observe(seconds)
        self._services.set(services)

    def error(self, phase: str) -> None:
        self._errors.labels(phase).inc()

    def missing_fields(self, crd: str, count: int) -> None:
        self._crd_fields.labels(crd).set(count)

    def pictured(
        self,
        services: Sequence[ServiceParts],
        decisions: Sequence[Decision],
        invalid: Sequence[Invalid],
        nodes: Sequence[NodeOffer],
        traffic: Mapping[ServiceKey, Traffic] = MappingProxyType({}),
    ) -> None:
        """Publish the decisions of a tick with their inputs; a service that is missing here is no longer shown."""
        parts = {part.spec.key: part for part in services}
        known = {decision.key: (parts[decision.key], decision) for decision in decisions}
        unusable = {entry.key: str(entry.reason) for entry in invalid}
        at = self._wall()
        self._figures.show(Picture(known, unusable, tuple(nodes), at, traffic))
        self._on_board(lambda board: board.pictured(known, invalid, at))

    def decided(self, decision: Decision) -> None:
        """Count a change; holds are not counted."""
        verdict, key = decision.verdict, decision.key
        if verdict.action is not Action.HOLD:
            action, reason = verdict.action.value, str(verdict.reason)
            self._decisions.labels(*key.labels, action, reason).inc()
            at = self._wall()
            self._figures.note(key, LastChange(action, reason, at))
            self._on_board(lambda board: board.decided(decision, at))

    def _on_board(self, put: Callable[[Board], None]) -> None:
        """Update the status page, if there is one; a failure there must not stop the operator from acting."""
        if self._board is None:
            return
        try:
            put(self._board)
        except Exception:
            self.error("page")
            _LOG.exception("updating the status page failed")

    def decision(self, namespace: str, service: str) -> dict[str, Any] | None:
        """Return the newest decision of a service with its explanation, holds included; None if there is none."""
        picture = self._figures.picture
        found = picture.services.get(ServiceKey(namespace, service))
        if found is None:
            return None
        (_, decision), at = found, picture.at
        told = explained(decision.verdict, decision, iso(at)).to_dict()
        if decision.recommendation is not None:
            told["recommendation"] = explained(decision.recommendation, decision, iso(at)).to_dict()
        return told


class MetricsText:
    """The metrics as text, rendered at most once a second, however many clients ask.

    Names restrict the text to their samples while that makes it small; each client has such a text of its own.
    """

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._shared: asyncio.Task[bytes] | None = None
        self._rendered_at = -math.inf
        self._restricting = asyncio.Lock()

    async def text(self, names: Sequence[str] = ()) -> bytes:
        """Return the text; requests that come while it is rendered wait for the same one."""
        if names and (own := await self._restricted(names)) is not None:
            return own
        is_old = self._monotonic() - self._rendered_at >= _SAME_TEXT_SECONDS
        if self._shared is None or (self._shared.done() and is_old):
            self._shared = asyncio.create_task(self._render())
        return await asyncio.shield(self._shared)

    async def _restricted(self, names: Sequence[str]) -> bytes | None:
        async with self._restricting:
            found = await asyncio.to_thread(generate_latest, self._registry.restricted_registry(names))
        return found if len(found) <= _MOST_OWN_BYTES else None

    async def _render(self) -> bytes:
        """Render on a thread: metrics of thousands of services take longer than the renewal of the Lease may wait."""
        found = await asyncio.to_thread(generate_latest, self._registry)
        self._rendered_at = self._monotonic()
        return found


def health_application(alive: Callable[[], bool]) -> aiohttp.web.Application:
    """Return the app for the kubelet: /healthz (the loop is not stuck) and /readyz."""

    async def healthz(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text="ok") if alive() else aiohttp.web.Response(status=503, text="loop is stuck")

    async def readyz(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text="ok")

    application = aiohttp.web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    return application


def http_application(telemetry: Telemetry, alive: Callable[[], bool]) -> aiohttp.web.Application:
    """Return the app with /metrics and /decisions/NAMESPACE/NAME, and health, which older charts probe here."""
    shown = MetricsText(telemetry.registry)

    async def metrics(request: aiohttp.web.Request) -> aiohttp.web.Response:
        body = await shown.text(request.query.getall("name[]", []))
        return aiohttp.web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def decision(request: aiohttp.web.Request) -> aiohttp.web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = telemetry.decision(namespace, name)
        if found is None:
            message = (
                f"no decision on {namespace}/{name} in this process: only the leader decides, from its first tick on"
            )
            return aiohttp.web.json_response({"message": message}, status=404)
        return aiohttp.web.json_response(found)

    application = health_application(alive)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/decisions/{namespace}/{name}", decision)
    return application
