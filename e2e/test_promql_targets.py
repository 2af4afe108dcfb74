"""The queries for Deployments of somebody else, asked of a real Prometheus: the same answers as for engines of ours.

Each test stores the samples of one engine twice: with Holdfast's labels, and with nothing but namespace and pod.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from e2e.tsdb import (
    CHAT,
    LONG_AGO,
    NOW,
    SCRAPE,
    SLO,
    Engine,
    Reader,
    Tsdb,
    constant,
    prometheus_address,
    ready,
    scrapes,
    steady,
)
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.observe.adoption.adopted_metrics import SplitSource, TargetsClient
from holdfast.observe.series.client import PrometheusClient
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest

pytestmark = pytest.mark.cluster

THEIRS = ServiceKey("prod", "adopted")
POD = "my-vllm-7d9f8c6b5d-x2x4z"
UNLABELLED = {"holdfast_service": "", "holdfast_accelerator": ""}
NOTICED = ("state", "by_accelerator", "hung", "ttft", "prompt_lengths", "facts")


class Both:
    """Reads a service with engines of ours and one with a target from the same Prometheus."""

    def __init__(self, folder: Path) -> None:
        self._reader, self._source = Reader(folder), None

    def source(self, tsdb: Tsdb) -> SplitSource:
        own = self._reader.open(tsdb)
        address = prometheus_address(self._reader.url)
        client = TargetsClient(PrometheusClient(address))
        self._targets = PrometheusSource(address, 5.0, SCRAPE, client=client)
        return SplitSource(own, self._targets, client)

    async def observe(self, tsdb: Tsdb, born_at: float = LONG_AGO, slo: object = SLO) -> tuple[Traffic, Traffic]:
        requests, source = asked(born_at, slo), self.source(tsdb)
        for _ in range(2):
            await source.observe(requests, NOW)
            for each in (self._reader.open(tsdb), self._targets):
                await each.settle()
        seen = await source.observe(requests, NOW)
        return seen[CHAT], seen[THEIRS]

    async def close(self) -> None:
        await self._reader.close()


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    found = Both(tmp_path)
    yield found
    await found.close()


def asked(born_at: float = LONG_AGO, slo: object = SLO) -> list[TrafficRequest]:
    return [
        TrafficRequest(CHAT, slo, (ready("chat-0", at=born_at),)),
        TrafficRequest(THEIRS, slo, (ready(POD, at=born_at),), target="my-vllm", accelerator="h100"),
    ]


def twice(tsdb: Tsdb, record: Callable[[Engine], None], born_at: float = LONG_AGO) -> None:
    record(Engine(tsdb, "chat-0", born_at))
    record(Engine(tsdb, POD, born_at, **UNLABELLED))


def busy(times: Sequence[float], since: float = LONG_AGO) -> Callable[[Engine], None]:
    def record(engine: Engine) -> None:
        engine.scraped(
            times,
            request_success_total=steady(2.0, since),
            time_to_first_token_seconds_count=steady(2.0, since),
            generation_tokens_total=steady(400.0, since),
            running=lambda _: 6.0,
            waiting=lambda _: 2.0,
        )
        for edge, rate in (("0.5", 1.5), ("0.25", 1.0), ("+Inf", 2.0)):
            engine.add("time_to_first_token_seconds_bucket", times, steady(rate, since), le=edge)
        engine.add("request_prompt_tokens_bucket", times, steady(2.0, since), le="+Inf")
        engine.add("request_prompt_tokens_bucket", times, steady(1.0, since), le="1000.0")
        engine.add("cache_config_info", times, constant(1.0), kv_cache_size_tokens="640000")

    return record


def assert_same(ours: Traffic, theirs: Traffic) -> None:
    for name in NOTICED:
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.by_accelerator, "nothing was seen"


async def test_a_target_shows_what_engines_of_ours_would(both: Both) -> None:
    tsdb = Tsdb()
    twice(tsdb, busy(scrapes(NOW - 1800, NOW)))
    ours, theirs = await both.observe(tsdb)
    assert_same(ours, theirs)
    assert dict(theirs.by_accelerator)["h100"].ttft_within == pytest.approx(67.5, abs=1.0)
    assert theirs.ttft.p50_seconds is not None


async def test_a_new_engine_of_a_target_counts_whole(both: Both) -> None:
    tsdb, born = Tsdb(), NOW - 25.0
    twice(tsdb, busy(scrapes(NOW - 14, NOW), since=born), born)
    ours, theirs = await both.observe(tsdb, born)
    assert_same(ours, theirs)
    assert dict(theirs.by_accelerator)["h100"].finished > 0.0


async def test_an_end_to_end_objective_of_a_target_is_judged(both: Both) -> None:
    slo, times, tsdb = dataclasses.replace(SLO, e2e_seconds=10.0), scrapes(NOW - 1800, NOW), Tsdb()

    def record(engine: Engine) -> None:
        busy(times)(engine)
        for name, labels in (("bucket", {"le": "10.0"}), ("count", {})):
            engine.add(f"e2e_request_latency_seconds_{name}", times, steady(2.0), **labels)

    twice(tsdb, record)
    ours, theirs = await both.observe(tsdb, slo=slo)
    assert_same(ours, theirs)
    assert dict(theirs.by_accelerator)["h100"].e2e_within > 0.0


async def test_a_stalled_engine_of_a_target_is_named(both: Both) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 1800, NOW)

    def record(engine: Engine) -> None:
        engine.scraped(times, generation_tokens_total=constant(7.0), running=lambda _: 3.0)

    twice(tsdb, record)
    ours, theirs = await both.observe(tsdb)
    assert ours.hung == ("chat-0",)
    assert theirs.hung == (POD,)


async def test_an_engine_of_a_target_that_only_defers_requests_and_ends_others_with_errors_fails(both: Both) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 1800, NOW)

    def record(engine: Engine) -> None:
        engine.scraped(times, generation_tokens_total=constant(7.0), waiting=lambda _: 1.0)
        engine.add("num_requests_waiting_by_reason", times, constant(1.0), reason="deferred")
        for reason, rate in (("error", 3.0), ("stop", 1.0)):
            engine.add("request_success_total", times, steady(rate), finished_reason=reason)

    twice(tsdb, record)
    ours, theirs = await both.observe(tsdb)
    assert (ours.hung, ours.failing) == ((), ("chat-0",))
    assert (theirs.hung, theirs.failing) == ((), (POD,))


async def test_series_of_others_are_not_those_of_a_target(both: Both) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 1800, NOW)
    twice(tsdb, busy(times))
    strangers = (
        ("prod", "my-vllm-b-7d9f8c6b5d-x2x4z"),  # of a Deployment whose name begins alike
        ("prod", "not-my-vllm-7d9f8c6b5d-x2x4z"),
        ("prod", "my-vllm-0"),  # of a StatefulSet
        ("other", POD),
    )
    for namespace, pod in strangers:
        busy(times)(Engine(tsdb, pod, namespace=namespace, **UNLABELLED))
    ours, theirs = await both.observe(tsdb)
    assert_same(ours, theirs)
    assert dict(theirs.by_accelerator)["h100"].engines == 1


async def test_history_and_running_requests_of_a_target_are_those_of_engines_of_ours(both: Both) -> None:
    tsdb = Tsdb()
    twice(tsdb, busy(scrapes(NOW - 1800, NOW)))
    source, requests = both.source(tsdb), asked()
    await source.observe(requests, NOW)
    history = await source.history(requests, NOW)
    assert history[THEIRS].samples == history[CHAT].samples
    assert history[THEIRS].samples
    running = await source.running_by_pod([CHAT, THEIRS], NOW)
    assert running == {CHAT: {"chat-0": 8.0}, THEIRS: {POD: 8.0}}
