"""A real Prometheus over exactly known samples, and engines that it can scrape: for tests of PromQL."""

from __future__ import annotations

import contextlib
import http.server
import math
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from e2e.cluster.toolset import VICTORIA_METRICS
from e2e.patience import patient
from e2e.ports import free_port
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import Traffic
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.queries import E2E, OUTPUT_LENGTH, PROMPT_LENGTH, TPOT, TTFT
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest

NOW = 1_700_000_000.0
SCRAPE = 15.0
CHAT = ServiceKey("prod", "chat")
SLO = Slo(ttft_seconds=0.5, tpot_seconds=0.03, objective=0.99, window_seconds=3600.0)
LONG_AGO = NOW - 7200.0

Points = Sequence[tuple[float, float]]
Store = Callable[["Tsdb", Path], contextlib.AbstractContextManager[str]]


class Tsdb:
    """Collects samples, then becomes the data folder of a Prometheus."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self.engines: list[Engine] = []

    def add(self, name: str, labels: Mapping[str, str], points: Points) -> None:
        text = ",".join(f'{key}="{value}"' for key, value in labels.items())
        lines = self._lines.setdefault(name, [])
        lines.extend(f"{name}{{{text}}} {value!r} {at:.3f}" for at, value in points)

    def complete(self) -> None:
        for engine in self.engines:
            engine.complete()

    def exposed(self) -> str:
        """All samples as VictoriaMetrics imports them: times are milliseconds."""
        self.complete()
        rows = (line.rsplit(" ", 1) for lines in self._lines.values() for line in lines)
        return "".join(f"{sample} {float(at) * 1000:.0f}\n" for sample, at in rows)

    def write(self, folder: Path) -> Path:
        self.complete()
        source = folder / "samples.om"
        with source.open("w", encoding="utf-8") as file:
            for lines in self._lines.values():
                file.write("\n".join(lines) + "\n")
            file.write("# EOF\n")
        data = folder / "data"
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(data)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=patient(120.0))
        return data


class Engine:
    """Writes one engine's series as Prometheus would store them: every counter starts at zero when it is born."""

    def __init__(self, tsdb: Tsdb, pod: str = "chat-0", born_at: float | None = LONG_AGO, **labels: str) -> None:
        self._tsdb = tsdb
        self._labels = {
            "namespace": "prod",
            "holdfast_service": "chat",
            "holdfast_accelerator": "h100",
            "pod": pod,
            "instance": f"{pod}:8000",
            "job": "pods",
            "engine": "0",
            "model_name": "m",
        } | labels
        self._born_at = born_at
        self._times: Sequence[float] = ()
        self._added: set[str] = set()
        tsdb.engines.append(self)

    def complete(self) -> None:
        """Add what no test named: an engine has all series from its start on, and they are zero."""
        for name in {"request_success_total"} - self._added:
            self.add(name, self._times, constant(0.0), finished_reason="stop")
        for family in (TTFT, TPOT, E2E, PROMPT_LENGTH, OUTPUT_LENGTH):
            for part in {"count", "sum"} - {name.removeprefix(f"{family}_") for name in self._added}:
                self.add(f"{family}_{part}", self._times, constant(0.0))
            if f"{family}_bucket+Inf" not in self._added:
                self.add(f"{family}_bucket", self._times, constant(0.0), le="+Inf")

    def scraped(self, times: Sequence[float], **counters: Callable[[float], float]) -> None:
        """Record requests in flight (none unless given), the birth, and each counter as a function of time."""
        self._times = times
        self.add("num_requests_running", times, counters.pop("running", lambda _: 0.0))
        self.add("num_requests_waiting", times, counters.pop("waiting", lambda _: 0.0))
        if self._born_at is not None:
            born_at = self._born_at
            self.add("request_success_created", times, lambda _: born_at, finished_reason="stop")
        for name, value in counters.items():
            reason = {"finished_reason": "stop"} if name == "request_success_total" else {}
            self.add(name, times, value, **reason)

    def add(
        self, name: str, times: Sequence[float], value: Callable[[float], float], /, of: str = "vllm", **labels: str
    ) -> None:
        self._added.add(name + labels.get("le", ""))
        present = {key: text for key, text in (self._labels | labels).items() if text}
        self._tsdb.add(f"{of}:{name}", present, [(at, value(at)) for at in times])

    def plugin(
        self,
        times: Sequence[float],
        mode: str = "active",
        /,
        *,
        client_times: bool = True,
        **counters: Callable[[float], float],
    ) -> None:
        """Record the plugin's mode, its objectives, and its counters; `bad_ttft` counts bad requests of that cause."""
        info = {"mode": mode, "version": "0.1.0", "vllm_version": "0.32.0"}
        self.add("plugin_info", times, lambda _: 1.0, of="holdfast", **info)
        self.add("client_times", times, constant(float(client_times)), of="holdfast")
        if mode == "active":
            self.limits(times, ttft_seconds=SLO.ttft_seconds, tpot_seconds=SLO.tpot_seconds)
        for name, value in counters.items():
            counted, _, cause = name.partition("bad_")
            labels = {"cause": cause} if cause else {}
            self.add("requests_bad_total" if cause else counted, times, value, of="holdfast", **labels)

    def limits(self, times: Sequence[float], **limits: float) -> None:
        """Record the limits in force."""
        for name, value in limits.items():
            self.add("limits", times, constant(value), of="holdfast", name=name)


def scrapes(start: float, end: float, phase: float = 2.0) -> list[float]:
    """Scrape times in [start, end], one every SCRAPE seconds."""
    first = math.ceil((start - phase) / SCRAPE) * SCRAPE + phase
    return [first + SCRAPE * i for i in range(int((end - first) // SCRAPE) + 1)]


def steady(rate: float, since: float = LONG_AGO) -> Callable[[float], float]:
    return lambda at: math.floor(rate * (at - since))


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


def ready(pod: str, accelerator: str = "h100", at: float = LONG_AGO) -> Replica:
    return Replica(pod, accelerator, ReplicaPhase.READY, created_at=at, ready_at=at)


@contextlib.contextmanager
def prometheus(data: Path, config: str = "") -> Iterator[str]:
    """Serve the folder; yields the URL."""
    binary = shutil.which("prometheus")
    assert binary is not None, "prometheus and promtool must be on PATH: see e2e/cluster"
    config_file = data.parent / "prometheus.yml"
    config_file.write_text(config or "{}", encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    log = (data.parent / "prometheus.log").open("w")
    command = [binary, f"--config.file={config_file}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
    process = subprocess.Popen([*command, "--storage.tsdb.retention.time=20y"], stdout=log, stderr=log)
    try:
        _wait_until_ready(f"http://{address}", process, data.parent / "prometheus.log")
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()
        log.close()


@contextlib.contextmanager
def stored_by_prometheus(tsdb: Tsdb, folder: Path) -> Iterator[str]:
    """Prometheus with the samples of a test; yields the URL."""
    with prometheus(tsdb.write(folder)) as url:
        yield url


@contextlib.contextmanager
def victoria_metrics(folder: Path, *flags: str) -> Iterator[str]:
    """VictoriaMetrics; yields the URL."""
    url, log = f"http://127.0.0.1:{free_port()}", folder / "victoria-metrics.log"
    command = [VICTORIA_METRICS.built_program("victoria-metrics"), f"-httpListenAddr={url.removeprefix('http://')}"]
    command += [f"-storageDataPath={folder / 'data'}", "-search.maxQueryLen=10MB", *flags]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        _wait_until_ready(url, process, log, "/health")
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def stored_by_victoria_metrics(tsdb: Tsdb, folder: Path) -> Iterator[str]:
    """VictoriaMetrics with the samples of a test; yields the URL."""
    with victoria_metrics(folder, "-retentionPeriod=100y") as url:
        for path, body in (("/api/v1/import/prometheus", tsdb.exposed().encode()), ("/internal/force_flush", b"")):
            with urllib.request.urlopen(f"{url}{path}", data=body, timeout=patient(30.0)) as answer:
                assert answer.status < 300
        yield url


def prometheus_address(url: str) -> PrometheusAddress:
    """Where it is, for tests of what it answers: how fast it does is its own affair."""
    return PrometheusAddress(url, timeout_seconds=patient(20.0))


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, path: str = "/-/ready") -> None:
    deadline = time.monotonic() + patient(30.0)
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}{path}", timeout=patient(1.0)):
            return
        time.sleep(0.05)
    raise AssertionError("the store did not become ready: " + log.read_text(encoding="utf-8"))


class Reader:
    """Asks the adapter about the samples of one test."""

    def __init__(self, folder: Path, store: Store = stored_by_prometheus) -> None:
        self._folder = folder
        self._store = store
        self._stack = contextlib.ExitStack()
        self.source: PrometheusSource | None = None
        self.url = ""

    def open(self, tsdb: Tsdb) -> PrometheusSource:
        if self.source is None:
            self.url = self._stack.enter_context(self._store(tsdb, self._folder))
            self.source = PrometheusSource(prometheus_address(self.url), tick_seconds=5.0, scrape_seconds=SCRAPE)
        return self.source

    async def observe(
        self, tsdb: Tsdb, *replicas: Replica, slo: Slo = SLO, now: float = NOW, settle: bool = False
    ) -> Traffic:
        source = self.open(tsdb)
        request = TrafficRequest(CHAT, slo, replicas)
        for _ in range(3 if settle else 0):  # so many ticks until each slow query had its turn
            await source.observe([request], now)
            await source.settle()
        return (await source.observe([request], now))[CHAT]

    async def close(self) -> None:
        if self.source is not None:
            await self.source.close()
        self._stack.close()


SCRAPE_CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: pods
    static_configs:
"""
TARGET = """
      - targets: ["%(address)s"]
        labels: {namespace: prod, holdfast_service: chat, holdfast_accelerator: h100, pod: %(pod)s}
"""


SHARES = {
    TTFT: {0.1: 0.5, 0.5: 0.9, 1.0: 1.0},
    TPOT: {0.02: 0.6, 0.03: 0.8, 0.05: 1.0},
    E2E: {10.0: 0.7, 20.0: 1.0},
    PROMPT_LENGTH: {100.0: 0.5, 200.0: 1.0},
    OUTPUT_LENGTH: {50.0: 1.0},
}
"""Of the requests of an Exporter, by upper edge."""


def _exported(family: str, engine: str, requests: int) -> str:
    """A classic histogram whose every observation is at the largest finite edge, by its sum."""
    edges = SHARES[family] | {math.inf: 1.0}
    lines = [f"# TYPE vllm:{family} histogram"]
    for edge, share in edges.items():
        lines.append(
            f'vllm:{family}_bucket{{{engine},le="{"+Inf" if edge == math.inf else edge}"}} {requests * share:.0f}'
        )
    lines += [
        f"vllm:{family}_count{{{engine}}} {requests}",
        f"vllm:{family}_sum{{{engine}}} {requests * max(SHARES[family])}",
    ]
    return "\n".join(lines) + "\n"


class Exporter:
    """An engine's /metrics, alive: ten requests finish every second, so that their shares are whole numbers."""

    def __init__(self) -> None:
        self.born_at = time.time()
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(exporter.text().encode())

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def text(self) -> str:
        engine = 'engine="0",model_name="m"'
        finished = 10 * int(time.time() - self.born_at)
        told = (
            f"vllm:num_requests_running{{{engine}}} 1\nvllm:num_requests_waiting{{{engine}}} 0\n"
            f'vllm:request_success_total{{{engine},finished_reason="stop"}} {finished}\n'
            f'vllm:request_success_created{{{engine},finished_reason="stop"}} {self.born_at!r}\n'
        )
        return told + "".join(_exported(family, engine, finished) for family in SHARES)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
