"""What a tick waits for when it looks at N services in a real Prometheus, and what is asked beside: seconds and CPU.

Samples of 4 engines a service are written as blocks: nothing is scraped meanwhile. Load is constant; in the last tick
that of 50 services has risen. Needs `prometheus` and `promtool` on PATH.

.venv/bin/python benchmarks/observe_speed.py [--services 1000] [--ticks 6]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.tsdb import LONG_AGO, NOW, SCRAPE, Tsdb, prometheus, ready
from holdfast.domain.service import ServiceKey, Slo
from holdfast.observe.series import queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.signals.poll_scheduler import Pulse
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest

TICK, ENGINES, RISEN = 5.0, 4, 50
SLOS = (Slo(0.5, 0.03, 0.99, 3600.0), Slo(1.0, 0.05, 0.99, 3600.0))
GAUGES = {"num_requests_running": 3.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.3}
PER_REQUEST = {
    **dict.fromkeys((f"{queries.TTFT}_count", f"{queries.TPOT}_count", f"{queries.E2E}_count"), 1.0),
    f"{queries.PROMPT_LENGTH}_count": 1.0,
    f"{queries.PROMPT_LENGTH}_sum": 1155.0,
    f"{queries.OUTPUT_LENGTH}_sum": 211.0,
    "prompt_tokens_total": 1155.0,
    "generation_tokens_total": 211.0,
    f"{queries.TPOT}_sum": 0.02,
    "prefix_cache_hits_total": 0.0,
    "num_preemptions_total": 0.0,
}
EDGES = {
    queries.TTFT: ("0.4", "0.5", "0.75", "1.0", "2.5", "+Inf"),
    queries.TPOT: ("0.02", "0.025", "0.03", "0.05", "+Inf"),
}


def samples(services: int) -> Tsdb:
    """Every series that the queries of a tick read."""
    tsdb, times = Tsdb(), [NOW - 140.0 + SCRAPE * index for index in range(10)]
    for number in range(services):
        finished = [math.floor((1.0 + number % 40 / 10.0) * (at - LONG_AGO)) for at in times]
        for engine in range(ENGINES):
            pod = f"s{number:04}-{engine}"
            labels = {"namespace": "scale", "holdfast_service": f"s{number:04}", "holdfast_accelerator": "h100"}
            labels |= {"pod": pod, "instance": pod, "engine": "0", "model_name": "m"}
            for name, more, factor in _series():
                values = [GAUGES[name]] * len(times) if name in GAUGES else [factor * count for count in finished]
                tsdb.add(f"vllm:{name}", labels | more, list(zip(times, values, strict=True)))
    return tsdb


def _series() -> Iterator[tuple[str, dict[str, str], float]]:
    for name in GAUGES:
        yield name, {}, 0.0
    for reason in ("stop", "length", "abort", "error", "repetition"):
        yield queries.SUCCESS, {"finished_reason": reason}, float(reason == "stop")
    for name, each in PER_REQUEST.items():
        yield name, {}, each
    for family, edges in EDGES.items():
        for edge in edges:
            yield f"{family}_bucket", {"le": edge}, 1.0


def cpu_seconds() -> float:
    """CPU of Prometheus so far: it is the one child there is."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


async def measure(url: str, services: int, ticks: int) -> None:
    """Print a line for each tick."""
    requests = [
        TrafficRequest(
            ServiceKey("scale", f"s{number:04}"),
            SLOS[number % 2],
            tuple(ready(f"s{number:04}-{engine}") for engine in range(ENGINES)),
        )
        for number in range(services)
    ]
    source = PrometheusSource(PrometheusAddress(url), TICK, SCRAPE)
    for tick in range(ticks):
        if tick == ticks - 1:
            _rise(source, requests[:RISEN])
        own, theirs, began = time.process_time(), cpu_seconds(), time.perf_counter()
        await source.observe(requests, NOW - TICK * (ticks - tick))
        print(f"tick {tick}: {_spent('waited', own, theirs, began)}", end="; ")
        own, theirs, began = time.process_time(), cpu_seconds(), time.perf_counter()
        source.catch_up()
        await source.settle()
        print(_spent("beside", own, theirs, began))
    await source.close()


def _rise(source: PrometheusSource, requests: list[TrafficRequest]) -> None:
    """Let these seem to have had no load when they were last asked about."""
    for request in requests:
        source._rota._asked[request.key] = dataclasses.replace(source._rota._asked[request.key], pulse=Pulse())


def _spent(what: str, own: float, theirs: float, began: float) -> str:
    seconds, cpu = time.perf_counter() - began, time.process_time() - own
    return f"{what} {seconds:.2f} s (CPU {cpu:.2f} s, Prometheus {cpu_seconds() - theirs:.2f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        url = stack.enter_context(prometheus(samples(options.services).write(Path(folder))))
        asyncio.run(measure(url, options.services, options.ticks))


if __name__ == "__main__":
    main()
