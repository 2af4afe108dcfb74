"""`holdfast savings` of a day that a real Prometheus has recorded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ports import free_port
from e2e.tsdb import Tsdb, stored_by_prometheus
from holdfast.cli import reading, savings
from holdfast.cli.main import build_parser
from holdfast.monitoring import series
from holdfast.runtime.settings import OF_PROMETHEUS, read_settings
from tests.fakes import FakeApi

pytestmark = pytest.mark.cluster

DAY_SECONDS = 86_400
REPLICAS = 4.0
SPEC = {
    "model": {"uri": "meta-llama/Llama-3.1-8B"},
    "slo": {"ttft": "1s", "tpot": "80ms", "objective": "95%"},
    "accelerators": [{"name": "l40s", "costPerHour": 2.0}],
    "mode": "Recommend",
    "engine": {"plugin": "Disabled"},
}


def rate(at: float) -> float:
    """Requests per second: few at night."""
    return 0.3 - 0.2 * math.cos(2.0 * math.pi * at / DAY_SECONDS)


def a_day() -> Tsdb:
    """What the rules record every minute of a service with four replicas all day."""
    tsdb, now = Tsdb(), time.time() // 60.0 * 60.0
    times = [now - DAY_SECONDS + 60.0 * minute for minute in range(DAY_SECONDS // 60 + 1)]
    chat = {"namespace": "prod", "holdfast_service": "chat"}
    for name in (series.ARRIVED, series.FINISHED, series.GOOD, series.JUDGED):
        tsdb.add(name, chat, [(at, rate(at - now)) for at in times])
    for kind, tokens in (("prompt", 1000.0), ("generation", 100.0)):
        tsdb.add(series.TOKENS, chat | {"kind": kind}, [(at, tokens * rate(at - now)) for at in times])
    for name in (series.REPLICAS, series.GPUS):
        labels = chat | {"holdfast_accelerator": "l40s", "state": "ready"}
        tsdb.add(name, labels, [(at, REPLICAS) for at in times])
    return tsdb


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with stored_by_prometheus(a_day(), folder) as found:
        yield found


async def told(url: str, name: str = "chat", *more: str) -> int:
    api = FakeApi()
    body = {"metadata": {"namespace": "prod", "name": name, "uid": "1", "generation": 1}, "spec": SPEC}
    api.put_object(reading.services_path("prod", name), body)
    words = ["savings", f"prod/{name}", "--since", "1d", "--prometheus-url", url, *more]
    given = build_parser(("savings",)).parse_args(words)
    return await savings.told(api, given, read_settings(given, {}, OF_PROMETHEUS))


async def test_a_recorded_day_tells_what_was_used_and_what_would_have_been(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await told(url, "chat", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    used, ours, _ = found["runs"]
    assert found["known_share"] > 0.99
    assert found["measured_attainment"] == 1.0
    assert found["recorded_gpu_hours"]["l40s"] == pytest.approx(24.0 * REPLICAS, rel=0.01)
    assert used["gpu_hours"] == pytest.approx(24.0 * REPLICAS, rel=0.01)
    assert ours["gpu_hours"] < 0.5 * used["gpu_hours"]
    assert found["no_saving_because"] is None


async def test_a_service_that_was_not_recorded_is_told_in_one_line(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await told(url, "unknown") == 2
    said = capsys.readouterr().err
    assert "Prometheus has no arrivals of prod/unknown in this time" in said
    assert said.count("\n") == 1


async def test_a_prometheus_that_does_not_answer_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told(f"http://127.0.0.1:{free_port()}") == 1
    assert capsys.readouterr().err.count("\n") == 1
