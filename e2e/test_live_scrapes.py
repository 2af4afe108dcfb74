"""What only a Prometheus that scrapes can show: staleness markers, and the first samples of a new engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.tsdb import CHAT, SCRAPE_CONFIG, SLO, TARGET, Exporter, prometheus, ready
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.observe.client import PrometheusAddress
from holdfast.observe.prometheus import PrometheusSource
from holdfast.observe.traffic import TrafficRequest

pytestmark = pytest.mark.cluster


def h100(traffic: Traffic) -> AcceleratorTraffic:
    return dict(traffic.by_accelerator)["h100"]


async def test_live_scrapes_count_new_engines_whole_and_miss_a_dead_one_within_seconds(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    engines = {pod: Exporter() for pod in ("chat-0", "chat-1")}
    config = SCRAPE_CONFIG + "".join(TARGET % {"address": e.address, "pod": pod} for pod, e in engines.items())
    with prometheus(tmp_path / "data", config) as url:
        source = PrometheusSource(PrometheusAddress(url), tick_seconds=1.0, scrape_seconds=1.0)

        async def until(accepts: Callable[[Traffic], bool]) -> Traffic:
            deadline = time.monotonic() + 60.0
            while time.monotonic() < deadline:
                request = TrafficRequest(CHAT, SLO, (ready("chat-0"), ready("chat-1")))
                traffic = (await source.observe([request], time.time()))[CHAT]
                if accepts(traffic):
                    return traffic
                await asyncio.sleep(0.2)
            raise AssertionError(f"last seen: {traffic}")

        both = await until(lambda traffic: traffic.fresh)
        age = time.time() - engines["chat-0"].born_at
        assert h100(both).finished <= 2 * 10 * (age + 1.0)
        settled = await until(lambda traffic: h100(traffic).finished > 2 * 10 * (source.window.interval_seconds - 1.5))
        assert settled.fresh, settled.detail
        engines.pop("chat-1").close()
        one = await until(lambda traffic: not traffic.fresh)
        assert (one.state, one.detail) == (SignalState.PARTIAL, "1 of 2 ready replicas do not report: chat-1")
        assert h100(one).engines == 1
        await source.close()
    engines["chat-0"].close()
