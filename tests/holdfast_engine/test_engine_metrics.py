from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast_engine.objectives.rules import SERVICE_CLASS
from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.engine_info import INFO_LABELS, Identity
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import FIELDS, Mode
from holdfast_engine.stats.statsfile import StatsWriter
from holdfast_engine.versions import is_supported

LABELS = {"model_name": "tiny", "engine": "0"}
BY_CLASS = tuple(f"requests_{each}" for each in ("arrived", "good", "bad", "withdrawn", "unjudged"))


class Scrape:
    """An engine's file and what /metrics makes of it."""

    def __init__(self, path: Path) -> None:
        self.collector = EngineCollector(Identity("tiny", "0.1.0", "0.32.0"), {0: path})
        self._path = path
        self._registry = CollectorRegistry()
        self._registry.register(self.collector)

    def write(self, **numbers: float) -> None:
        record_now = dict.fromkeys(FIELDS, 0.0) | numbers
        StatsWriter(self._path, len(FIELDS)).write([record_now[name] for name in FIELDS])

    def value(self, name: str, **labels: str) -> float | None:
        given = {**LABELS, **({"class": ""} if name.startswith(BY_CLASS) else {}), **labels}
        return self._registry.get_sample_value(f"holdfast:{name}", given)

    @property
    def text(self) -> str:
        return generate_latest(self._registry).decode()


@pytest.fixture
def scrape(tmp_path: Path) -> Scrape:
    return Scrape(tmp_path / "engine-0.stats")


def test_counters_appear_with_the_labels_of_vllm(scrape: Scrape) -> None:
    scrape.write(mode=Mode.ACTIVE, arrived=10, good=7, bad_ttft=1, bad_tpot=1, withdrawn=1, steps_prefill=2.5)
    assert scrape.value("requests_arrived_total") == 10
    assert scrape.value("requests_good_total") == 7
    assert scrape.value("requests_bad_total", cause="ttft") == 1
    assert scrape.value("requests_bad_total", cause="e2e") == 0
    assert scrape.value("requests_withdrawn_total") == 1
    assert scrape.value("step_sums_total", term="prefill") == 2.5
    assert scrape.value("plugin_info", version="0.1.0", vllm_version="0.32.0", mode="active") == 1


def test_how_vllm_was_started_is_told_even_where_the_plugin_is_off(tmp_path: Path) -> None:
    identity = Identity("tiny", "0.1.0", "0.32.0", {"max_model_len": "4096", "dtype": "bfloat16"})
    registry = CollectorRegistry()
    registry.register(EngineCollector(identity, {0: tmp_path / "none", 1: tmp_path / "neither"}))
    unknown = dict.fromkeys(INFO_LABELS, "")
    for engine in ("0", "1"):
        labels = {"model_name": "tiny", "engine": engine} | unknown | identity.facts
        assert registry.get_sample_value("holdfast:engine_info", labels) == 1


def test_rejected_requests_arrived_and_are_bad(scrape: Scrape) -> None:
    scrape.write(mode=Mode.ACTIVE, arrived=10, good=10)
    scrape.collector.rejected[SERVICE_CLASS] = 4
    assert scrape.value("requests_arrived_total") == 14
    assert scrape.value("requests_bad_total", cause="rejected") == 4


def test_each_of_several_api_servers_tells_what_all_of_them_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StatsWriter(tmp_path / "engine-0.stats", len(FIELDS)).write([0.0] * len(FIELDS))
    pages = []
    for number, rejected in enumerate((3, 2, 0)):
        monkeypatch.setattr("os.getpid", lambda number=number: 100 + number)
        collector = EngineCollector(Identity("tiny", "0.1.0", "0.32.0"), {0: tmp_path / "engine-0.stats"}, tmp_path)
        for _ in range(rejected):
            collector.reject()
        pages.append(CollectorRegistry())
        pages[-1].register(collector)
    found = [
        page.get_sample_value("holdfast:requests_bad_total", {**LABELS, "class": "", "cause": "rejected"})
        for page in pages
    ]
    assert found == [5.0, 5.0, 5.0]


def test_a_refusal_that_cannot_be_written_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    identity = Identity("tiny", "0.1.0", "0.32.0")
    EngineCollector(identity, {0: tmp_path / "engine-0.stats"}, tmp_path / "file").reject()
    assert "a refusal is in no count" in caplog.text


def test_an_engine_without_a_file_is_off_and_counts_nothing(scrape: Scrape) -> None:
    assert scrape.value("plugin_info", version="0.1.0", vllm_version="0.32.0", mode="off") == 1
    assert "requests_arrived" not in scrape.text


def test_an_engine_that_stood_down_keeps_its_counts_and_claims_no_limits(scrape: Scrape) -> None:
    before = dict.fromkeys(FIELDS, 1.0) | {"mode": float(Mode.ACTIVE), "arrived": 5.0}
    off = dict(zip(FIELDS, stats_fields.off(list(before.values())), strict=True))
    scrape.write(**off)
    assert scrape.value("requests_arrived_total") == 5
    assert scrape.value("step_sums_total", term="one") == 1
    assert scrape.value("plugin_info", version="0.1.0", vllm_version="0.32.0", mode="off") == 1
    assert "holdfast:limits{" not in scrape.text


def test_where_numbers_cannot_be_told_the_plugin_is_off_and_the_page_stays(
    scrape: Scrape, caplog: pytest.LogCaptureFixture
) -> None:
    scrape.write(mode=7.0, arrived=10)
    for _ in range(3):
        assert scrape.value("plugin_info", version="0.1.0", vllm_version="0.32.0", mode="off") == 1
        assert scrape.value("requests_arrived_total") is None
    assert len([each for each in caplog.records if "no counters on /metrics" in each.message]) == 1
    scrape.write(mode=Mode.ACTIVE, arrived=10)
    assert scrape.value("requests_arrived_total") == 10


def test_what_is_unknown_is_left_out(scrape: Scrape) -> None:
    scrape.write(mode=Mode.ACTIVE, law_error=math.inf, prefill_tps=math.nan, limit_e2e_seconds=math.nan)
    assert "nan" not in scrape.text.lower()
    assert "inf" not in scrape.text.lower().replace("_info", "").replace('le="+inf"', "")


def test_the_front_end_lag_is_a_histogram_for_each_token(scrape: Scrape) -> None:
    lags = {"lag_first_0.02": 3, "lag_first_5": 1, "lag_first_inf": 1, "lag_first_sum": 20.5}
    scrape.write(mode=Mode.ACTIVE, client_times=1, **lags)
    name = "front_end_lag_seconds"
    buckets = [
        scrape.value(f"{name}_bucket", token="first", le=edge) for edge in ("0.01", "0.02", "2.0", "5.0", "+Inf")
    ]
    assert buckets == [0, 3, 3, 4, 5]
    assert (scrape.value(f"{name}_count", token="first"), scrape.value(f"{name}_sum", token="first")) == (5, 20.5)
    assert scrape.value(f"{name}_count", token="last") == 0
    assert scrape.value("client_times") == 1


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.32.0", True),
        ("0.32.1+cpu", True),
        ("0.33.0rc1", True),
        ("0.34.0", False),
        ("1.0", False),
        ("dev", False),
    ],
)
def test_only_releases_that_were_read_are_supported(version: str, known: bool) -> None:
    assert is_supported(version) is known
