"""Classes in a benchmark: drawn by lot, claimed in a header, judged by bounds of their own, and kept in records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from holdfast.tools.bench.figures.results import as_json, measure
from holdfast.tools.bench.generators.endpoint import found_at
from holdfast.tools.bench.generators.requests import RequestBuilder, class_by_lot
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.load_generator import ClassShare, Endpoint, LatencyBounds, Planned
from holdfast.tools.bench.pages import report
from holdfast.twin.scenarios.inputs import BadInput
from holdfast_engine.objectives.rules import Limits, Objectives, RequestClass
from tests.emulator.emulator_builders import engine
from tests.tools.bench.bench_builders import record
from tests.tools.bench.test_bench_command import CALM, bench

KINDS = ("arrived", "good")
WHOLE = ("--warm-up", "0s", "--cool-down", "0s")
SHARES = (ClassShare("tight", 0.3, LatencyBounds(ttft_seconds=0.05)), ClassShare("bulk", 0.5))


def test_requests_have_their_classes_by_lot_and_the_same_for_the_same_seed() -> None:
    drawn = [class_by_lot(SHARES, 1, index) for index in range(4000)]
    shares = {name: count / 4000 for name, count in Counter(drawn).items()}
    assert shares == pytest.approx({"tight": 0.3, "bulk": 0.5, "": 0.2}, abs=0.03)
    assert drawn == [class_by_lot(SHARES, 1, index) for index in range(4000)]
    assert drawn != [class_by_lot(SHARES, 2, index) for index in range(4000)]
    assert {class_by_lot((ClassShare("all", 1.0),), 1, index) for index in range(500)} == {"all"}


async def test_requests_for_an_adapter_name_it_as_their_model_and_claim_nothing() -> None:
    async with engine(served_names=("chat",), adapters=("sql", "plain")) as client:
        found = await found_at(Endpoint(client.base, "", classes=(ClassShare("sql", 0.5), ClassShare("paid", 0.5))))
    assert (found.model, found.adapters) == ("chat", {"sql", "plain"})
    builder = RequestBuilder(found)
    drawn = {builder.slo_class(index): index for index in range(100)}
    for name, model in (("sql", "sql"), ("paid", "chat")):
        body = builder.build(drawn[name], Planned(0.0, 20, 4))
        assert json.loads(body)["model"] == model
        assert (b"X-SLO-Class: paid" in builder.framed(builder.url, drawn[name], body)) == (name == "paid")


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
async def test_an_engine_counts_as_many_requests_of_each_class_as_the_client(tmp_path: Path, adapter: bool) -> None:
    limits, raw, out = tmp_path / "limits", tmp_path / "raw.jsonl", tmp_path / "out.json"
    easy = Objectives(60.0, 60.0)
    classes = (RequestClass("tight", Objectives(1e-9, 60.0)), RequestClass("bulk", easy, adapter=adapter))
    limits.write_text(Limits(1, easy, classes=classes).to_json())
    load = ("--concurrency", "8", "--requests", "80", "--prompt-tokens", "20", "--output-tokens", "4", *CALM)
    given = ("--class", "tight=30%:ttft=0.001ms", "--class", "bulk=50%", "--slo", "ttft=60s")
    async with engine(engine_limits=(str(limits),), adapters=("bulk",) * adapter) as client:
        wanted = (*load, *given, "--objective", "50%", "--records", str(raw), *WHOLE, "--json", str(out))
        assert await bench("--url", client.base, *wanted) == 0
        counted = {
            name: [await client.value(f"holdfast:requests_{kind}_total", **{"class": name}) for kind in KINDS]
            for name in ("tight", "bulk", "")
        }
    found = json.loads(out.read_text())["results"]
    seen = {name: [each["requests"], each["verdicts"].get("good", 0)] for name, each in found["classes"].items()}
    assert seen == counted
    assert sum(each.slo_class == "tight" for each in records.read(raw)) == counted["tight"][0] > 0
    assert found["verdicts"] == {"good": 80 - counted["tight"][0], "late_ttft": counted["tight"][0]}


def test_each_class_is_judged_by_its_bounds_and_the_rest_by_those_of_all() -> None:
    made = [record(index=index, slo_class=("tight", "bulk", "")[index % 3]) for index in range(9)]
    found = measure(made, LatencyBounds(ttft_seconds=60.0), 0.0, 0.0, classes=SHARES)
    assert list(found.classes) == ["tight", "bulk", ""]
    assert [each.attainment for each in found.classes.values()] == [0.0, 1.0, 1.0]
    assert found.verdicts == {"good": 6, "late_ttft": 3}
    rows = [row.name for row in report.latencies(found)]
    assert rows[-2:] == ["TTFT without a class, ms", "TPOT without a class, ms"]
    told = report.told(found, 0.99)
    assert "0 of 3 requests of tight good, 0.00 %: finished, TTFT ≤ 50 ms" in told
    whole = "6 of 9 requests good, 66.67 % (objective 99 %): finished, TTFT ≤ 60000 ms"
    assert f"{whole}; classes by their own bounds" in told


def test_bounds_of_a_class_alone_ask_for_something() -> None:
    found = measure([record(slo_class="tight")], LatencyBounds(), 0.0, 0.0, classes=SHARES)
    assert not found.attains(0.99)
    assert found.classes["bulk"].requests == 0
    assert as_json(found, "", "", 0.99, "")["results"]["classes"]["bulk"]["attainment"] is None


def test_a_run_without_classes_shows_none() -> None:
    found = measure([record()], LatencyBounds(), 0.0, 0.0)
    assert found.classes == {}
    assert report.classes(found) == []


def test_records_keep_the_class_and_refuse_what_cannot_be_one(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    records.write(path, [record(slo_class="tight"), record(index=1)])
    assert [each.slo_class for each in records.read(path)] == ["tight", ""]
    path.write_text(path.read_text().replace('"tight"', '"\\u001b[2J"'))
    with pytest.raises(BadInput, match="slo_class is no DNS label"):
        records.read(path)
