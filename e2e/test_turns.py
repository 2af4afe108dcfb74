"""Many services on a real Prometheus: whatever way one is asked about, the same is seen of it.

Where services are few, all signals are one query; where they are many, and between ticks, two. Those whose load rises
are asked about in one. Needs `prometheus` and `promtool` on PATH.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from e2e.tsdb import NOW, SLO, Engine, Reader, Tsdb, prometheus_address, ready, scrapes, steady
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import UNKNOWN_CONCURRENCY, LatencyQuantiles, LengthHistogram, Traffic
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest

pytestmark = pytest.mark.cluster

NAMES = [f"s{number:02}" for number in range(30)]
STEPPED, HUNG, TWICE, OFF = NAMES[5], NAMES[6], NAMES[7], NAMES[8]
STEP_AT = NOW - 20.0


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def request(name: str) -> TrafficRequest:
    """One replica that serves, and many that start: so a few engines make many services."""
    starting = [Replica(f"{name}-{n}", "h100", ReplicaPhase.STARTING, NOW) for n in range(1, 20)]
    return TrafficRequest(ServiceKey("prod", name), SLO, (ready(f"{name}-0"), *starting))


REQUESTS = [request(name) for name in NAMES]


def samples() -> Tsdb:
    """An engine for each service: one whose load has just stepped, and one of each kind of trouble."""
    tsdb, times = Tsdb(), scrapes(NOW - 600, NOW)
    for number, name in enumerate(NAMES):
        rate = 1.0 + 0.1 * number
        for job in ("pods", "podmonitor") if name == TWICE else ("pods",):
            engine = Engine(tsdb, f"{name}-0", holdfast_service=name, job=job)
            moves = steady(0.0) if name == HUNG else _stepping(rate) if name == STEPPED else steady(rate)
            engine.scraped(
                times,
                request_success_total=moves,
                time_to_first_token_seconds_count=moves,
                request_time_per_output_token_seconds_count=moves,
                prompt_tokens_total=lambda at, moves=moves: 1000.0 * moves(at),  # type: ignore[misc]
                generation_tokens_total=lambda at, moves=moves: 200.0 * moves(at),  # type: ignore[misc]
                running=lambda at: 3.0,
            )
            for edge in ("0.5", "0.75", "+Inf"):
                engine.add("time_to_first_token_seconds_bucket", times, moves, le=edge)
        if name == OFF:
            engine.plugin(times, "off")
        elif number > 8:
            engine.plugin(times, requests_arrived_total=steady(rate), requests_good_total=steady(rate))
    return tsdb


def _stepping(rate: float):  # type: ignore[no-untyped-def]
    return lambda at: steady(rate)(at) + (steady(20.0, since=STEP_AT)(at) if at > STEP_AT else 0)


def fast(traffic: Traffic) -> Traffic:
    """Without what is asked once a minute."""
    nothing = LatencyQuantiles()
    return dataclasses.replace(
        traffic,
        ttft=nothing,
        tpot=nothing,
        concurrency=UNKNOWN_CONCURRENCY,
        prompt_lengths=LengthHistogram(),
        output_lengths=LengthHistogram(),
    )


async def seen_alone(source: PrometheusSource) -> dict[str, Traffic]:
    """Each service as a source shows it that knows no other."""
    url = source._client._client.url
    alone = PrometheusSource(prometheus_address(url), tick_seconds=5.0, scrape_seconds=15.0)
    found = {one.key.name: fast((await alone.observe([one], NOW))[one.key]) for one in REQUESTS}
    await alone.settle()
    await alone.close()
    return found


def by_name(seen: Mapping[ServiceKey, Traffic]) -> dict[str, Traffic]:
    return {key.name: fast(traffic) for key, traffic in seen.items()}


async def test_turns_between_ticks_show_what_each_service_shows_alone(reader: Reader) -> None:
    source = reader.open(samples())
    expected = await seen_alone(source)
    assert len({traffic.state for traffic in expected.values()}) >= 2
    assert expected[HUNG].hung == (f"{HUNG}-0",)
    assert expected[NAMES[9]].by_accelerator[0][1].exact is not None
    before = await source.observe(REQUESTS, NOW - 40)
    for _ in range(2):  # 600 engines: two turns
        await source.observe(REQUESTS, NOW)
        source.catch_up()
        await source.settle()
    after = await source.observe(REQUESTS, NOW)
    assert all(after[key] is not before[key] for key in after)
    assert by_name(after) == expected


async def test_a_step_is_seen_at_once_and_as_if_it_were_the_only_service(reader: Reader) -> None:
    source = reader.open(samples())
    expected = await seen_alone(source)
    before = await source.observe(REQUESTS, NOW - 30)
    assert dict(before[ServiceKey("prod", STEPPED)].by_accelerator)["h100"].finished < 100.0
    after = await source.observe(REQUESTS, NOW)
    assert [key.name for key in after if after[key] is not before[key]] == [STEPPED]
    assert fast(after[ServiceKey("prod", STEPPED)]) == expected[STEPPED]
    assert dict(expected[STEPPED].by_accelerator)["h100"].finished > 100.0
