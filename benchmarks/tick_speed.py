"""What one whole tick costs the operator: read Prometheus' JSON, decide and act for N services at constant load.

Everything is the operator's own code but for two servers: Prometheus' answers are made up and handed to the HTTP client
as bytes, and the API server is a dict. CPU is that of the process, all threads.

.venv/bin/python benchmarks/tick_speed.py [--services 1000] [--ticks 12] [--settling 24] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import cProfile
import io
import json
import pstats
import re
import statistics
import sys
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import requests
import urllib3

from benchmarks.act_speed import Cluster, Quiet
from benchmarks.decide_speed import INTERVAL_SECONDS, SCRAPE_SECONDS, TICK_SECONDS, Fleet
from holdfast.control.tick.loop import Loop
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.signals import AcceleratorTraffic, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.policy.settings import PolicySettings
from holdfast.render import RenderSettings
from tests.builders import NOW, traffic

_EDGES = {
    "time_to_first_token_seconds_bucket": ("0.5", "0.75", "1"),
    "request_time_per_output_token_seconds_bucket": ("0.025", "0.045", "0.05"),
}
_NAMES = re.compile(r'holdfast_service=~"([^"]*)"')


class Answers(requests.adapters.BaseAdapter):
    """Prometheus behind the HTTP client: rows of every service, for those that a query names.

    With `remembers` it has an hour of history, else none.
    """

    def __init__(self, cluster: Cluster, remembers: bool = False) -> None:
        super().__init__()
        self._cluster, self._remembers = cluster, remembers
        self.asked = 0
        self.seconds = 0.0

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Answer one query; the time that takes is not the operator's."""
        began = time.thread_time()
        self.asked += 1
        form = urllib.parse.parse_qs(str(request.body))
        promql, now = form["query"][0], float(form.get("time", ["0"])[0])
        named = {name for found in set(_NAMES.findall(promql)) for name in found.split("|")}
        asked = [(index, name) for index, name in enumerate(self._cluster.names) if not named or name in named]
        if "query_range" in str(request.url):
            start, end, step = (float(form[name][0].removesuffix("s")) for name in ("start", "end", "step"))
            rows = [text for index, name in asked for text in self._past(index, name, start, end, step)]
            body = '{"status":"success","data":{"resultType":"matrix","result":[' + ",".join(rows) + "]}}"
        else:
            rows = self._vector(promql, asked, now)
            body = '{"status":"success","data":{"resultType":"vector","result":[' + ",".join(rows) + "]}}"
        response = requests.Response()
        response.status_code, response.url, response.request = 200, str(request.url), request
        response.raw = urllib3.HTTPResponse(io.BytesIO(body.encode()), preload_content=False, status=200)
        self.seconds += time.thread_time() - began
        return response

    def close(self) -> None: ...

    def _past(self, index: int, name: str, start: float, end: float, step: float) -> Iterator[str]:
        """Range rows of the history query: requests that finished, and those within each edge."""
        if not self._remembers:
            return
        count = repr(self._cluster.fleet.rates[index] * step)
        values = ",".join(f'[{start + place * step:.3f},"{count}"]' for place in range(int((end - start) / step) + 1))
        rows = [{"metric": "request_success_total", "finished_reason": "stop"}]
        rows += [{"metric": metric, "le": edge} for metric, edges in _EDGES.items() for edge in edges]
        for row in rows:
            labels = json.dumps({**row, "holdfast_service": name, "namespace": "prod"}, separators=(",", ":"))
            yield f'{{"metric":{labels},"values":[{values}]}}'

    def _vector(self, promql: str, asked: Sequence[tuple[int, str]], now: float) -> list[str]:
        """Rows of these services. What a query asks for is looked for once: it names thousands of services."""
        columns, fleet = _columns(promql), self._cluster.fleet
        pods = _template({"metric": "sampled_at", "pod": _POD, **_GROUP}) if "pod) (timestamp(" in promql else ""
        rows = []
        for index, name in asked:
            seen = dict(fleet.shown[index].by_accelerator)["h100"]
            rows += [f'{row.replace(_SERVICE, name)}[{now},"{value(seen)}"]}}' for row, value in columns]
            for pod in fleet.pods[index] if pods else ():
                rows.append(f'{pods.replace(_SERVICE, name).replace(_POD, pod.name)}[{now},"{now - 5.0}"]}}')
        return rows


_Value = Callable[[AcceleratorTraffic], float]
_SERVICE, _POD = "(service)", "(pod)"
_GROUP = {"holdfast_accelerator": "h100", "holdfast_service": _SERVICE, "namespace": "prod"}
_SHORT = {"holdfast_service": _SERVICE, "namespace": "prod"}
_VALUES: Mapping[str, _Value] = {
    "request_success_total": attrgetter("finished"),
    "time_to_first_token_seconds_count": attrgetter("ttft_count"),
    "request_time_per_output_token_seconds_count": attrgetter("ttft_count"),
    "begun": attrgetter("ttft_count"),
    "most_begun": lambda seen: seen.ttft_count / 4.0,
    "prompt_tokens_total": attrgetter("prompt_tokens"),
    "generation_tokens_total": attrgetter("output_tokens"),
    "request_prompt_tokens_sum": attrgetter("prompt_length_sum"),
    "request_prompt_tokens_count": attrgetter("length_samples"),
    "request_generation_tokens_sum": attrgetter("output_length_sum"),
    "request_time_per_output_token_seconds_typical": attrgetter("tpot_typical_seconds"),
    "num_requests_running": attrgetter("running"),
    "kv_usage": lambda _: 0.3,
}
_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


def _template(labels: Mapping[str, str]) -> str:
    """A row up to its value, with a placeholder for the service."""
    return f'{{"metric":{json.dumps(dict(sorted(labels.items())), separators=(",", ":"))},"value":'


def _columns(promql: str) -> list[tuple[str, _Value]]:
    """Rows that each service has in the answer."""
    if '"metric", "started"' in promql:
        return [(_template({"metric": "started", **_SHORT}), attrgetter("ttft_count"))]
    if "[5m]" in promql or "[10m]" in promql:
        shares = [(str(float(edge)), (place + 1) / 14.0) for place, edge in enumerate(_BUCKETS)] + [("+Inf", 1.0)]
        return [(_template({"le": edge, **_SHORT}), partial(_share, share)) for edge, share in shares]
    rows: list[tuple[dict[str, str], _Value]] = []
    for metric, value in _VALUES.items():
        reason = {"finished_reason": "stop"} if metric == "request_success_total" else {}
        rows += [({"metric": metric, **reason}, value)] if _asks_for(promql, metric) else []
    for metric, edges in _EDGES.items():
        found = edges if _asks_for(promql, metric) else ()
        rows += [({"metric": metric, "le": edge}, attrgetter("ttft_count")) for edge in found]
    return [(_template({**labels, **_GROUP}), value) for labels, value in rows]


def _asks_for(promql: str, metric: str) -> bool:
    return f'"{metric}", "", "")' in promql


def _share(share: float, seen: AcceleratorTraffic) -> float:
    return share * seen.ttft_count


class Even(Fleet):
    """Load that is constant but for what rounding makes of it, as the exporter of benchmarks/scale has it."""

    def _counted(self, index: int) -> Traffic:
        mean = self.rates[index] * INTERVAL_SECONDS * self.chance.gauss(1.0, 0.0005)
        prompt, output = self.lengths[index]
        sums = {"prompt_length_sum": mean * prompt, "output_length_sum": mean * output}
        return traffic(mean / INTERVAL_SECONDS, seconds=INTERVAL_SECONDS, **sums)


class Shown:
    """What the watches show, for nothing: kopf's indices are not part of this."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def services(self) -> tuple[ServiceParts, ...]:
        return tuple(self._cluster.parts)

    def invalid(self) -> tuple[Invalid, ...]:
        return ()

    def nodes(self) -> tuple[NodeOffer, ...]:
        return self._cluster.nodes


class Times(Quiet):
    """Telemetry of the loop: seconds by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, list[float]] = defaultdict(list)

    def phase(self, name: str, seconds: float) -> None:
        self.phases[name].append(seconds)

    def tick(self, seconds: float, services: int) -> None:
        self.phases["tick"].append(seconds)


class Inline(concurrent.futures.ThreadPoolExecutor):
    """Runs everything at once and on the caller's thread, where a profile sees it."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Call and return what came of it."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


async def measure(options: argparse.Namespace, profile: cProfile.Profile) -> Mapping[str, list[float]]:
    """Return seconds of each tick after sizes have come to rest: CPU of all, wall of each phase."""
    cluster = Cluster((Fleet if options.noisy else Even)(options.services, options.seed, different=False), options.seed)
    quiet, times = Quiet(), Times()
    settings = RenderSettings({"launcher.py": ""}, b"plugin")
    source = PrometheusSource(PrometheusAddress("http://prometheus"), TICK_SECONDS, SCRAPE_SECONDS)
    if options.profile:
        source._executor = Inline()
        asyncio.get_running_loop().set_default_executor(Inline())
    answers = Answers(cluster)
    source._client._session.mount("http://prometheus", answers)
    acting = Actuator(cluster.api, source, quiet, settings, lambda: True)  # type: ignore[arg-type]
    await cluster.create(acting)
    clock = [NOW]
    loop = Loop(
        cluster=Shown(cluster),
        metrics=source,
        actuator=acting,
        telemetry=times,
        timing=Timing(TICK_SECONDS, SCRAPE_SECONDS),
        policy_settings=PolicySettings(),
        monotonic=time.perf_counter,
        wall=lambda: clock[0],
    )
    for tick in range(options.settling + options.ticks):
        cluster.show()
        cluster.fleet.snapshot(tick * TICK_SECONDS)
        clock[0], measured = NOW + tick * TICK_SECONDS, tick >= options.settling
        if tick == options.settling:
            times.phases.clear()
        if options.profile and measured:
            profile.enable()
        answers.seconds, answers.asked, began = 0.0, 0, time.process_time()
        await loop.run_once()
        in_tick = time.process_time() - began - answers.seconds
        await source.settle()
        profile.disable()
        if measured:
            times.phases["CPU of the tick"].append(in_tick)
            times.phases["CPU in all"].append(time.process_time() - began - answers.seconds)
            times.phases["queries"].append(answers.asked / 1e3)
    await source.close()
    return times.phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--settling", type=int, default=24, help="ticks before those")
    parser.add_argument("--noisy", action="store_true", help="requests arrive at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print where the time of the event loop's thread goes")
    options, profile = parser.parse_args(), cProfile.Profile()
    began = time.process_time()
    sum(i * i for i in range(1_000_000))
    speed = time.process_time() - began
    for name, seconds in asyncio.run(measure(options, profile)).items():
        print(f"{name:16} median {statistics.median(seconds) * 1e3:6.0f}   worst {max(seconds) * 1e3:6.0f}")
    print(f"milliseconds; a million multiplications take {speed * 1e3:.0f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
