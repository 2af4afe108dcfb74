"""What only a Prometheus that scrapes can show: staleness markers, and the first samples of a new engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from e2e.patience import patient
from e2e.tsdb import CHAT, SCRAPE_CONFIG, SLO, TARGET, Exporter, prometheus, prometheus_address, ready
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest
from tests.emulator.emulator_builders import FAST, Client, engine

pytestmark = pytest.mark.cluster


def h100(traffic: Traffic) -> AcceleratorTraffic:
    return dict(traffic.by_accelerator)["h100"]


@contextlib.contextmanager
def scraped(folder: Path, config: str = SCRAPE_CONFIG, /, **addresses: str) -> Iterator[str]:
    """Prometheus over engines by the names of their pods, scraped every second; yields its URL."""
    (folder / "data").mkdir()
    targets = (TARGET % {"address": address, "pod": pod.replace("_", "-")} for pod, address in addresses.items())
    with prometheus(folder / "data", config + "".join(targets)) as url:
        yield url


@contextlib.asynccontextmanager
async def scraping(folder: Path, config: str = SCRAPE_CONFIG, /, **addresses: str) -> AsyncIterator[PrometheusSource]:
    with scraped(folder, config, **addresses) as url:
        async with reading(url) as source:
            yield source


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[PrometheusSource]:
    source = PrometheusSource(prometheus_address(url), tick_seconds=1.0, scrape_seconds=1.0)
    try:
        yield source
    finally:
        await source.close()


async def until(source: PrometheusSource, accepts: Callable[[Traffic], bool], *pods: str) -> Traffic:
    """The first traffic of these pods that is accepted."""
    deadline = time.monotonic() + patient(60.0)
    while time.monotonic() < deadline:
        request = TrafficRequest(CHAT, SLO, tuple(map(ready, pods)))
        traffic = (await source.observe([request], time.time()))[CHAT]
        if accepts(traffic):
            return traffic
        await asyncio.sleep(0.2)
    raise AssertionError(f"last seen: {traffic}")


async def test_live_scrapes_count_new_engines_whole_and_miss_a_dead_one_within_seconds(tmp_path: Path) -> None:
    one, other = Exporter(), Exporter()
    pods = ("chat-0", "chat-1")
    async with scraping(tmp_path, chat_0=one.address, chat_1=other.address) as source:
        both = await until(source, lambda traffic: traffic.fresh, *pods)
        age = time.time() - one.born_at
        assert h100(both).finished <= 2 * 10 * (age + 1.0)
        most = 2 * 10 * (source.window.interval_seconds - 1.5)
        # A scrape that comes late makes the picture stale for a moment.
        await until(source, lambda traffic: traffic.fresh and h100(traffic).finished > most, *pods)
        other.close()
        missed = (SignalState.PARTIAL, "1 of 2 ready replicas reports no metrics: chat-1")
        left = await until(source, lambda traffic: (traffic.state, traffic.detail) == missed, *pods)
        assert h100(left).engines == 1
    one.close()


async def test_what_the_plugin_counts_arrives_and_the_limits_in_force_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "limits"
    limits = {"ttftSeconds": SLO.ttft_seconds, "tpotSeconds": SLO.tpot_seconds, "version": 7, "activeSequences": 4}
    file.write_text(json.dumps(limits), encoding="utf-8")
    async with (
        engine(FAST, engine_limits=(str(file),)) as client,
        scraping(tmp_path, chat_0=client.base.removeprefix("http://")) as source,
        asyncio.TaskGroup() as clients,
    ):
        load = clients.create_task(offer(client))
        seen = await until(source, lambda traffic: traffic.fresh and arrived(traffic) > 20.0, "chat-0")
        exact = h100(seen).exact
        assert exact is not None
        # Judged and arrived may be a request apart, for each end of the interval.
        assert exact.good + exact.bad + exact.withdrawn == pytest.approx(exact.arrived, abs=2.5)
        assert exact.good_tokens == pytest.approx(4.0 * exact.good, rel=0.01)
        assert exact.engines == 1
        (state,) = seen.plugins
        assert state == EngineState("chat-0", PluginMode.ACTIVE, 7, 4.0, state.tokens_per_step)
        file.write_text(json.dumps(limits | {"version": 8, "activeSequences": 3}), encoding="utf-8")
        followed = await until(source, lambda traffic: version(traffic) == 8, "chat-0")
        assert followed.plugins[0].active_sequences == 3.0
        load.cancel()


NATIVE = "scrape_interval: 1s, scrape_native_histograms: true, convert_classic_histograms_to_nhcb: true"
BOTH = f"{NATIVE}, always_scrape_classic_histograms: true"
DROPPED = """
    metric_relabel_configs:
      - {source_labels: [__name__], regex: "vllm:.*_bucket", action: drop}
    static_configs:"""


@pytest.mark.parametrize(
    "stored", ["scrape_interval: 1s", NATIVE, BOTH], ids=["classic histograms", "native histograms", "both"]
)
async def test_histograms_count_the_same_however_prometheus_stores_them(stored: str, tmp_path: Path) -> None:
    """Case C03: verdicts, lengths and percentiles, of old and of new engines."""
    exporter = Exporter()
    config = SCRAPE_CONFIG.replace("scrape_interval: 1s", stored)
    with scraped(tmp_path, config, chat_0=exporter.address) as url:
        async with reading(url) as source:
            await until(source, lambda traffic: traffic.fresh and h100(traffic).busiest == 1.0, "chat-0")
        async with reading(url) as source:  # its first slow queries find two scrapes
            seen = await until(source, lambda traffic: traffic.fresh and bool(lengths(traffic)), "chat-0")
            rates = (await source.history([TrafficRequest(CHAT, SLO)], time.time()))[CHAT].samples
    exporter.close()
    counts = h100(seen)
    requests = pytest.approx(counts.finished, rel=1e-6)
    assert (counts.ttft_count, counts.tpot_count, counts.length_samples) == (requests, requests, requests)
    assert counts.ttft_within == pytest.approx(0.9 * counts.finished, abs=1.5)
    assert counts.tpot_within == pytest.approx(0.8 * counts.finished, abs=1.5)
    assert counts.tpot_typical_seconds == pytest.approx(0.05, rel=0.01)
    assert counts.prompt_length_sum == pytest.approx(200.0 * counts.finished, rel=0.01)
    assert counts.output_length_sum == pytest.approx(50.0 * counts.finished, rel=0.01)
    assert counts.busiest == 1.0
    assert (seen.ttft.p95_seconds, seen.ttft.p99_seconds) == pytest.approx((0.75, 0.95), rel=0.15)
    assert seen.prompt_lengths.cumulative[-1] == pytest.approx(2.0 * seen.prompt_lengths.cumulative[0], rel=0.1)
    assert sum(rate.bad for rate in rates) == pytest.approx(0.3 * sum(rate.good + rate.bad for rate in rates), rel=0.2)


async def test_buckets_that_prometheus_does_not_keep_are_named(tmp_path: Path) -> None:
    """Case C11."""
    async with engine(FAST) as client, asyncio.TaskGroup() as clients:
        load = clients.create_task(offer(client))
        address = client.base.removeprefix("http://")
        (tmp_path / "kept").mkdir()
        async with scraping(tmp_path / "kept", chat_0=address) as source:
            await until(source, lambda traffic: traffic.fresh and h100(traffic).ttft_count > 0.0, "chat-0")
        config = SCRAPE_CONFIG.replace("\n    static_configs:", DROPPED)
        async with scraping(tmp_path, config, chat_0=address) as source:
            seen = await until(source, lambda traffic: traffic.state is SignalState.INCOMPLETE, "chat-0")
            assert "have vllm:time_to_first_token_seconds_bucket, " in seen.detail
        load.cancel()


def lengths(traffic: Traffic) -> tuple[float, ...]:
    return traffic.output_lengths.edges_tokens


async def offer(client: Client) -> None:
    """One request after the other, until cancelled."""
    while True:
        await client.post(prompt="hello there", max_tokens=4)


def arrived(traffic: Traffic) -> float:
    exact = h100(traffic).exact
    return 0.0 if exact is None else exact.arrived


def version(traffic: Traffic) -> int | None:
    return traffic.plugins[0].limits_version if traffic.plugins else None
