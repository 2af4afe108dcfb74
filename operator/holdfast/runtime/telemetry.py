"""The operator's own health endpoints and metrics; both replicas serve them, leader or not."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp.web
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.control.explanation import explained
from holdfast.control.report import iso
from holdfast.domain.decision import Action, Decision

_TICK_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Telemetry:
    """Counters and gauges of one operator process, on a registry of its own, and the newest decisions.

    Decisions are no metrics: reasons and candidates are text, and numbers of 5,000 services would be series that
    nobody asks for. They are answered one by one, to `holdfast explain`.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._newest: dict[tuple[str, str], tuple[Decision, float]] = {}
        self._this_tick: dict[tuple[str, str], tuple[Decision, float]] = {}
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self._phase = Histogram(
            "holdfast_tick_phase_seconds", "Time of one phase of one tick.", ["phase"],
            buckets=_TICK_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._tick = Histogram(
            "holdfast_tick_seconds", "Time of one tick over all services.",
            buckets=_TICK_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._leader = Gauge("holdfast_leader", "1 while this process leads.", registry=self.registry)
        self._services = Gauge("holdfast_services", "LLMServices under control.", registry=self.registry)
        self._decisions = Counter(
            "holdfast_decisions", "Decisions that changed something.",
            ["namespace", "service", "action", "reason"], registry=self.registry,
        )  # fmt: skip
        self._errors = Counter("holdfast_errors", "Failures by where they happened.", ["phase"], registry=self.registry)
        self._attainment = Gauge(
            "holdfast_slo_attainment_ratio", "Share of judged requests that were good over the window.",
            ["namespace", "service"], registry=self.registry,
        )  # fmt: skip

    def leading(self, value: bool) -> None:
        self._leader.set(value)

    def phase(self, name: str, seconds: float) -> None:
        self._phase.labels(name).observe(seconds)

    def tick(self, seconds: float, services: int) -> None:
        self._tick.observe(seconds)
        self._services.set(services)
        for gone in self._newest.keys() - self._this_tick.keys():
            with contextlib.suppress(KeyError):  # a service that was never judged has no attainment
                self._attainment.remove(*gone)
        self._newest, self._this_tick = self._this_tick, {}

    def error(self, phase: str) -> None:
        self._errors.labels(phase).inc()

    def decided(self, decision: Decision) -> None:
        """Count a change, publish attainment and keep the decision; holding is not counted."""
        key = decision.key
        self._this_tick[key] = (decision, self._wall())
        if decision.slo.attainment is not None:
            self._attainment.labels(key.namespace, key.name).set(decision.slo.attainment)
        if decision.verdict.action is not Action.HOLD:
            verdict = decision.verdict
            self._decisions.labels(key.namespace, key.name, verdict.action.value, str(verdict.reason)).inc()

    def decision(self, namespace: str, service: str) -> dict[str, Any] | None:
        """Return the newest decision of a service with all that is behind it, holds included; None where none is."""
        found = self._newest.get((namespace, service))
        if found is None:
            return None
        decision, at = found
        told = explained(decision.verdict, decision, iso(at)).to_dict()
        if decision.recommendation is not None:
            told["recommendation"] = explained(decision.recommendation, decision, iso(at)).to_dict()
        return told


def http_application(telemetry: Telemetry, alive: Callable[[], bool]) -> aiohttp.web.Application:
    """Return the app with /healthz (the loop is not stuck), /readyz, /metrics and /decisions/NAMESPACE/NAME."""

    async def healthz(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text="ok") if alive() else aiohttp.web.Response(status=503, text="loop is stuck")

    async def readyz(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text="ok")

    async def metrics(_: aiohttp.web.Request) -> aiohttp.web.Response:
        body = prometheus_client.generate_latest(telemetry.registry)
        return aiohttp.web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def decision(request: aiohttp.web.Request) -> aiohttp.web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = telemetry.decision(namespace, name)
        if found is None:
            message = f"no decision on {namespace}/{name} here: only the leader decides, from its first tick on"
            return aiohttp.web.json_response({"message": message}, status=404)
        return aiohttp.web.json_response(found)

    application = aiohttp.web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/decisions/{namespace}/{name}", decision)
    return application


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        fields["message"] = record.getMessage()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logging(level: str, style: str) -> None:
    """Send records to stderr; called once, by the command."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("aiohttp.access", "kopf.objects"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
