"""One process that answers Prometheus for the engines of all pods: python -m benchmarks.scale.exporter.

It knows the pods from a watch. Counters move in whole scrapes of constant load, so that load is constant to the last
digit whenever Prometheus comes; only the series that the operator's queries read are there, with the bucket edges that
real engines are started with.

    GET  /targets             for Prometheus's HTTP service discovery: one target per service
    GET  /metrics/SERVICE     the engines of one service
    GET  /state               {"pods": how many are Ready, "stepped": {service: when Prometheus first saw its step}}
    POST /load?varying=0.5    the last half of the services get a load that is drawn anew for every scrape
    POST /step?service=NAME   the service's load is stepped, from its last scrape on
"""

from __future__ import annotations

import argparse
import math
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.scale.fleet import ACCELERATOR, NAMESPACE, OUTPUT_TOKENS, PROMPT_TOKENS, Member, members
from e2e.cluster.apiclient import ApiClient
from holdfast.observe.series import queries
from holdfast.rendered import buckets

_PROMPT_EDGES = _OUTPUT_EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
_GOOD = 0.999  # share of requests within any objective, of each kind


@dataclass(slots=True)
class Pod:
    """One engine: what it finished, and its answer with a gap for every value."""

    template: str
    born_at: float
    finished: float = 0.0


@dataclass(slots=True)
class Service:
    """One service's engines and load."""

    member: Member
    pods: dict[str, Pod] = field(default_factory=dict)
    scraped_at: float | None = None
    step: bool = False


class Exporter:
    """All engines; pods come and go on the watch's thread, everything else happens on the server's."""

    def __init__(self, services: tuple[Member, ...], scrape_seconds: float, seed: int) -> None:
        self._services = {member.name: Service(member) for member in services}
        self._scrape_seconds = scrape_seconds
        self._chance = random.Random(seed)
        self._varying: frozenset[str] = frozenset()
        self._stepped: dict[str, float] = {}
        self._series = {member.name: tuple(_series(member)) for member in services}

    def notice(self, pod: dict[str, Any]) -> None:
        """Take in what the API server says of a pod."""
        meta = pod["metadata"]
        service = self._services.get(meta["labels"].get("holdfast_service", ""))
        if service is None:
            return
        name = meta["name"]
        if not _is_ready(pod):
            service.pods.pop(name, None)
        elif name not in service.pods:
            series = self._series[service.member.name]
            template = "".join(f'vllm:{head},pod="{name}"}} %s\n' for head, _ in series)
            service.pods[name] = Pod(template, time.time())

    def answer(self, name: str) -> str:
        """The metrics of one service: every call is one scrape."""
        service, now = self._services[name], time.time()
        pods = list(service.pods.values())
        passed = 0.0
        if service.scraped_at is not None:  # in whole scrapes, however late Prometheus comes
            passed = self._scrape_seconds * max(1, round((now - service.scraped_at) / self._scrape_seconds))
        service.scraped_at = now
        rate = service.member.step_rps if service.step else service.member.rate_rps
        if name in self._varying:
            rate *= self._chance.uniform(0.7, 1.3)
        for pod in pods:
            pod.finished += rate * passed / len(pods)
        if service.step:
            self._stepped.setdefault(name, now)
        running = rate / max(1, len(pods)) * service.member.tpot_seconds * OUTPUT_TOKENS
        return "".join(pod.template % self._values(name, pod, running) for pod in pods)

    def _values(self, name: str, pod: Pod, running: float) -> tuple[str, ...]:
        known = {"running": running, "born": pod.born_at, "zero": 0.0, "usage": 0.3}
        return tuple(
            repr(known[factor] if isinstance(factor, str) else factor * pod.finished)
            for _, factor in self._series[name]
        )

    def routes(self) -> list[web.RouteDef]:
        """The HTTP interface."""
        return [
            web.get("/targets", self._targets),
            web.get("/metrics/{service}", self._metrics),
            web.get("/state", self._state),
            web.post("/load", self._load),
            web.post("/step", self._step),
        ]

    async def _targets(self, request: web.Request) -> web.Response:
        labels = {"namespace": NAMESPACE, "holdfast_accelerator": ACCELERATOR}
        return web.json_response(
            [
                {
                    "targets": [request.host],
                    "labels": {**labels, "holdfast_service": name, "__metrics_path__": f"/metrics/{name}"},
                }
                for name in self._services
            ]
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        body = self.answer(request.match_info["service"])
        return web.Response(text=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _state(self, _: web.Request) -> web.Response:
        pods = sum(len(service.pods) for service in list(self._services.values()))
        return web.json_response({"pods": pods, "stepped": self._stepped})

    async def _load(self, request: web.Request) -> web.Response:
        names = sorted(self._services)
        self._varying = frozenset(names[round((1.0 - float(request.query["varying"])) * len(names)) :])
        return web.Response()

    async def _step(self, request: web.Request) -> web.Response:
        self._services[request.query["service"]].step = True
        return web.Response()


def _series(member: Member) -> Iterator[tuple[str, float | str]]:
    """Each series of an engine as its name with all labels but `pod`, and its value per finished request or a word."""
    same = 'engine="0",model_name="m"'
    words = {"num_requests_running": "running", "num_requests_waiting": "zero", "kv_cache_usage_perc": "usage"}
    for name, word in words.items():
        yield f"{name}{{{same}", word
    for reason in ("stop", "length", "abort", "error", "repetition"):
        yield f'{queries.SUCCESS}{{{same},finished_reason="{reason}"', 1.0 if reason == "stop" else "zero"
        yield f'request_success_created{{{same},finished_reason="{reason}"', "born"
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
        yield f'{queries.REJECTIONS}{{model_name="m",reason="{reason}"', "zero"
    totals = {"prompt_tokens_total": PROMPT_TOKENS, "generation_tokens_total": OUTPUT_TOKENS}
    for name, each in totals.items():
        yield f"{name}{{{same}", each
    yield f'{queries.CACHE_CONFIG}{{{same},block_size="16",num_gpu_blocks="20000"', "zero"  # only its labels are read
    for name in ("prefix_cache_hits_total", "num_preemptions_total"):
        yield f"{name}{{{same}", "zero"
    latencies = (
        (queries.TTFT, buckets.TTFT_SECONDS, member.ttft_seconds, 0.3 * member.ttft_seconds),
        (queries.TPOT, buckets.TPOT_SECONDS, member.objective_tpot_seconds, member.tpot_seconds),
        (queries.E2E, buckets.E2E_SECONDS, member.e2e_seconds or 30.0, OUTPUT_TOKENS * member.tpot_seconds),
    )
    for family, grid, objective, mean in latencies:
        edges = sorted({*grid, objective})
        shares = [(edge, _GOOD if edge >= objective else _GOOD * (edge >= mean)) for edge in edges]
        yield from _histogram(family, same, shares, mean)
    for family, tokens, mean in (
        (queries.PROMPT_LENGTH, _PROMPT_EDGES, PROMPT_TOKENS),
        (queries.OUTPUT_LENGTH, _OUTPUT_EDGES, OUTPUT_TOKENS),
    ):
        # Exponential lengths, which vary as much as the engine model assumes.
        yield from _histogram(family, same, [(edge, 1.0 - math.exp(-edge / mean)) for edge in tokens], mean)


def _histogram(
    family: str, labels: str, shares: list[tuple[float, float]], mean: float
) -> Iterator[tuple[str, float | str]]:
    for edge, share in (*shares, (float("inf"), 1.0)):
        yield f'{family}_bucket{{{labels},le="{"+Inf" if edge == float("inf") else float(edge)}"', share
    yield f"{family}_sum{{{labels}", mean
    yield f"{family}_count{{{labels}", 1.0


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _watch(exporter: Exporter) -> None:
    api = ApiClient(Path(os.environ["KUBECONFIG"]))
    while True:  # a busy API server ends the watch of a slow reader; the next one begins with all pods
        for pod in api.watch(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=holdfast_service", 7200.0):
            exporter.notice(pod)


def main() -> None:
    parser = argparse.ArgumentParser(description="the synthetic exporter of the scale benchmark")
    for flag, kind in (("services", int), ("replicas", int), ("seed", int), ("port", int), ("scrape", float)):
        parser.add_argument(f"--{flag}", type=kind, required=True)
    options = parser.parse_args()
    exporter = Exporter(members(options.services, options.replicas, options.seed), options.scrape, options.seed)
    threading.Thread(target=_watch, args=(exporter,), daemon=True).start()
    application = web.Application()
    application.add_routes(exporter.routes())
    web.run_app(application, host="127.0.0.1", port=options.port, print=lambda *_: None, access_log=None)


if __name__ == "__main__":
    main()
