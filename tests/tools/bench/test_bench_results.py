"""Windows, the summary, and files of records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.bench.figures import window
from holdfast.tools.bench.figures.engine import EngineSample, reported
from holdfast.tools.bench.figures.results import as_json, measure
from holdfast.tools.bench.figures.thresholds import Threshold
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.load_generator import Client, LatencyBounds
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.pages import page, report
from holdfast.tools.bench.pages.picture import headline, reach
from holdfast.twin.scenarios.inputs import BadInput
from tests.tools.bench.bench_builders import record, steady


def warming(count: int = 200, slow: int = 40) -> list[RequestRecord]:
    """The first answers take five times as long."""
    return [record([1.0] if number < slow else [0.2], at=0.1 * number, index=number) for number in range(count)]


def test_a_run_without_a_token_tells_no_price_of_one() -> None:
    refused = [record((), RequestOutcome.OVERLOADED, at=0.1 * number, index=number) for number in range(60)]
    found = measure(refused, LatencyBounds(), dollars_per_hour=2.0)
    assert "a dollar" not in dict(report.rates(found))


def test_a_warm_up_is_found_and_cut_by_arrival() -> None:
    cut = window.choose(warming(), None, 0.0)
    assert cut.begin == pytest.approx(4.0)
    assert cut.steady
    assert all(each.scheduled_at >= 4.0 for each in cut.of(warming()))


def test_what_never_becomes_steady_is_told() -> None:
    rising = [record([0.2 + 0.05 * number], at=0.1 * number, index=number) for number in range(200)]
    assert not window.choose(rising, None, 0.0).steady


def test_the_cool_down_is_one_median_of_e2e() -> None:
    cut = window.choose(steady(100), 0.0, None)
    assert cut.end == pytest.approx(9.9 - 0.7)


def test_cuts_by_hand_are_kept_and_none_is_the_whole_run_with_its_drain() -> None:
    cut = window.choose(steady(100), 2.0, 3.0)
    assert (cut.begin, cut.end) == (pytest.approx(2.0), pytest.approx(6.9))
    whole = window.choose(steady(100), 0.0, 0.0)
    assert whole.whole
    assert whole.seconds == pytest.approx(9.9 + 0.7)


@given(st.lists(st.floats(0.0, 1e3), min_size=0, max_size=60))
def test_the_search_cuts_half_at_most(values: list[float]) -> None:
    assert 0 <= window.stationary_from(np.array(values)) <= len(values) // 2


def test_rates_of_a_whole_run_are_vllms() -> None:
    found = measure(steady(100), LatencyBounds(), 0.0, 0.0)
    seconds = 9.9 + 0.7
    assert found.request_rps == pytest.approx(100 / seconds)
    assert found.output_tokens_per_second == pytest.approx(300 / seconds)
    assert found.total_tokens_per_second == pytest.approx(1300 / seconds)


def test_rates_of_a_cut_run_are_of_what_was_finished_in_it_and_not_of_what_arrived() -> None:
    """Ten arrive a second, and each takes 0.1 s longer than the one before: five a second are finished."""
    behind = [record([0.1 * number, 0.1 * number + 0.01], at=0.1 * number, index=number) for number in range(200)]
    found = measure(behind, LatencyBounds(ttft_seconds=1.0), 4.0, 4.0)
    assert found.arrival_rps == pytest.approx(10.0, rel=0.02)
    assert found.request_rps == pytest.approx(5.0, rel=0.05)
    assert found.output_tokens_per_second == pytest.approx(2 * found.request_rps, rel=0.05)
    prompts = found.total_tokens_per_second - found.output_tokens_per_second
    assert prompts == pytest.approx(behind[0].prompt_tokens * found.request_rps, rel=0.05)


@given(
    st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.01, 30.0)), min_size=1, max_size=60),
    st.floats(0.0, 8.0),
    st.floats(0.0, 8.0),
)
def test_no_more_requests_are_good_than_finish(
    given: list[tuple[float, float]], warm_up: float, cool_down: float
) -> None:
    records = [record([at, at + 0.9 * took], at=at, index=index) for index, (at, took) in enumerate(sorted(given))]
    try:
        found = measure(records, LatencyBounds(ttft_seconds=1.0), warm_up, cool_down)
    except BadInput:
        return
    assert not found.goodput_rps > found.request_rps


def test_good_requests_that_finish_after_the_window_are_none_of_its_goodput() -> None:
    """Each request takes 5 s, longer than what is cut at the end: more arrive in the window than finish in it."""
    slow = [record([0.1, 5.0], at=0.1 * number, index=number) for number in range(60)]
    found = measure(slow, LatencyBounds(ttft_seconds=1.0), 0.0, 1.0)
    assert found.attainment == 1.0
    assert found.goodput_rps == found.request_rps
    assert found.request_rps < found.arrival_rps


@pytest.mark.parametrize(("looks", "told"), [(1, True), (2, False)])
def test_one_look_at_an_engine_is_told_not_to_be_its_peaks(looks: int, told: bool) -> None:
    seen = [EngineSample(0.0, 0.0, 0.0, 0.0, 1000.0)] * looks
    notes = report.notes(replace(measure(steady(3), LatencyBounds()), engine=reported(seen)))
    assert any("looked at once" in note for note in notes) == told


def test_a_server_that_refuses_most_does_not_look_good() -> None:
    given = [*steady(10), *steady(90, outcome=RequestOutcome.OVERLOADED, tokens_at=(), http_status=503)]
    found = measure(given, LatencyBounds(ttft_seconds=1.0), 0.0, 0.0)
    assert found.attainment == pytest.approx(0.1)
    assert found.ttft.count == 10
    assert "90 refused with 503 (90.00 %)" in report.badput(found)
    assert not found.attains(0.99)


@pytest.mark.parametrize("given", [[record(outcome=RequestOutcome.UNREACHABLE, tokens_at=())], [record([math.nan])]])
def test_nothing_to_measure_is_unknown_and_no_crash(given: list[RequestRecord], tmp_path: Path) -> None:
    found = measure(given, LatencyBounds(ttft_seconds=1.0))
    assert found.attainment == 0.0
    assert math.isnan(found.ttft.p50)
    told = as_json(found, "x", "holdfast", 0.99, "")
    assert json.loads(json.dumps(told, allow_nan=False))["results"]["ttft"]["p50"] is None
    assert all(cell in ("-", "", "≤ 1,000") for row in report.latencies(found) for cell in row.cells)
    page.write([tmp_path / "page.html"], found, given, "x", 0.99)


def test_every_cause_has_words() -> None:
    causes = {*(str(outcome) for outcome in RequestOutcome), "late_ttft", "late_tpot", "late_e2e", "impossible_times"}
    assert causes - {"finished"} == set(report.CAUSES)


def test_the_page_needs_nothing_else_and_escapes_what_servers_say(tmp_path: Path) -> None:
    given = [*steady(60), record(outcome=RequestOutcome.HTTP_ERROR, tokens_at=(), error="<script>alert(1)</script>")]
    asked = [Threshold("mean", "TTFT", 1.0), Threshold("p100", "E2E", 1.0)]
    found = measure(given, LatencyBounds(ttft_seconds=1.0), dollars_per_hour=2.0, thresholds=asked)
    page.write([tmp_path / "page.html"], found, given, "<b>", 0.99)
    text = (tmp_path / "page.html").read_text()
    assert '<p class="held">pass: mean TTFT' in text
    assert '<p class="missed">FAIL: p100 E2E' in text
    assert "<script" not in text
    assert "http://" not in text
    assert "data:image/png;base64," in text
    page.write([tmp_path / "page.png"], found, given, "x", 0.99)
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (Client(0.001, 0.002, 0.9, 0.5), ""),
        (Client(0.0061, 0.0, 0.0, 0.5), "requests left 6.1 ms late (p99)"),
        (Client(0.0, 0.02, 0.0, 1.0), "events were read 20.0 ms late (p99)"),
        (Client(0.0, 0.02, 0.0, 1.0, kernel_times=True), ""),
        (Client(0.0, 0.04, 0.0, 1.0, kernel_times=True), "events were read 40.0 ms late (p99)"),
    ],
)
def test_a_client_that_is_late_refuses_its_own_result(client: Client, told: str) -> None:
    assert client.overloaded(0.005, 0.03) == told


def test_a_refused_result_has_no_figures() -> None:
    told = as_json(measure(steady(3), LatencyBounds()), "x", "holdfast", 0.99, "too slow")
    assert (told["results"], told["refused"], told["attained"]) == (None, "too slow", False)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    given = [*steady(3), record((), RequestOutcome.TIMED_OUT, index=3, error="späť")]
    records.write(tmp_path / "r.jsonl", given)
    assert records.read(tmp_path / "r.jsonl") == given


def lines_of(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_records_that_are_none_are_refused_with_their_line(tmp_path: Path) -> None:
    records.write(tmp_path / "good.jsonl", steady(1))
    good = (tmp_path / "good.jsonl").read_text().strip()
    for name, broken in {
        "text": "hello",
        "list": "[]",
        "missing": "{}",
        "outcome": good.replace("finished", "wonderful"),
        "time": good.replace('"sent_at":0.0', '"sent_at":"soon"'),
        "tokens": good.replace('"token_at":[0.5', '"token_at":["x"'),
        "moment": good.replace('"token_at":[0.5', f'"token_at":[{10**400}'),
        "later": good.replace('"scheduled_at":0.0', f'"scheduled_at":{10**400}'),
        "number": good.replace('"index":0', '"index":[0]'),
        "asked": good.replace('"asked_tokens":3', '"asked_tokens":"3"'),
        "half": good.replace('"output_tokens":3', '"output_tokens":Infinity'),
        "many": good.replace('"prompt_tokens":10', f'"prompt_tokens":{10**30}'),
        "error": good.replace('"error":""', '"error":["x"]'),
        "status": good.replace('"http_status":null', '"http_status":[]'),
        "counted": good.replace('"counted":true', '"counted":"yes"'),
        "sizes": good.replace('"prompt_tokens":10,', "").replace('"output_tokens":3,', ""),
        "deep": "[" * 100_000,
    }.items():
        assert broken != good
        path = lines_of(tmp_path / name, [good.replace('"index":0', '"index":7'), broken])
        with pytest.raises(BadInput, match=":2: not a record"):
            records.read(path)


def test_records_without_sizes_say_what_is_missing_and_why_it_matters(tmp_path: Path) -> None:
    records.write(tmp_path / "r.jsonl", steady(1))
    text = (tmp_path / "r.jsonl").read_text().replace('"prompt_tokens":10,', "").replace('"output_tokens":3,', "")
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(BadInput, match=r":1: .*no prompt_tokens and no output_tokens, and without sizes no TPOT"):
        records.read(tmp_path / "r.jsonl")


def test_answers_that_tell_no_number_of_tokens_are_noted_and_never_zero() -> None:
    found = measure(steady(3, output_tokens=0), LatencyBounds(), 0.0, 0.0)
    assert found.user_tokens_per_second.count == found.itl_llmperf.count == 0
    assert math.isnan(found.system_tokens_per_second)
    assert "3 answers without a number of tokens: TPOT and tokens/s of them are unknown" in report.notes(found)


def test_the_table_shows_both_speeds_of_a_user_and_the_latencies_of_other_tools() -> None:
    merged = [record([0.4, 0.6], at=0.1 * number, index=number, output_tokens=3) for number in range(10)]
    found = measure(merged, LatencyBounds(), 0.0, 0.0)
    cells = {row.name: row.cells[0] for row in report.latencies(found)}
    assert cells["tokens/s of a user"] == "5"
    assert cells["1 / TPOT, tokens/s"] == "10"
    assert [cells[f"ITL{tool}, ms"] for tool in ("", " of Inference Perf", " of LLMPerf")] == ["200", "100", "200"]
    assert dict(report.rates(found))["output, system"].startswith("20 tokens/s, first request to last response")


def test_a_request_that_stands_twice_is_refused(tmp_path: Path) -> None:
    records.write(tmp_path / "r.jsonl", [record(), record()])
    with pytest.raises(BadInput, match=r":2: request 0 stands in line 1 too"):
        records.read(tmp_path / "r.jsonl")


def test_a_file_of_records_that_is_empty_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no records in it"):
        records.read(lines_of(tmp_path / "empty", []))
    with pytest.raises(BadInput, match="cannot be read"):
        records.read(tmp_path / "missing")


def test_requests_under_way_are_weighed_by_how_long_they_were_so_many() -> None:
    """One for 8 s, and nine for 2 s: their mean over the moments of arrivals would be far higher."""
    records = [record((10.0,)), *(record((2.0,), at=4.0) for _ in range(8))]
    found = measure(records, LatencyBounds(), 0.0, 0.0).under_way
    assert found.mean == pytest.approx((1 * 8.0 + 9 * 2.0) / 10.0)
    assert (found.p50, found.p90, found.most) == (1.0, 9.0, 9.0)


def test_without_a_sane_moment_nobody_is_known_to_be_under_way() -> None:
    assert math.isnan(measure([record((1.0,), ended_at=math.nan)], LatencyBounds(), 0.0, 0.0).under_way.mean)


def test_the_picture_says_what_arrived_and_the_verdict() -> None:
    late = [record([2.0], at=50.0 + number, index=100 + number) for number in range(2)]
    found = measure([*steady(98, gap=0.5), *late], LatencyBounds(ttft_seconds=1.0), 0.0, 0.0)
    assert headline(found, 0.99).endswith("98 of 100 requests good (98 %, objective 99 %)")
    assert "req/s: " in headline(found, 0.99)
    assert headline(measure([], LatencyBounds()), 0.99) == "0 of 0 requests good (none)"


@pytest.mark.parametrize(
    ("values", "limit", "top"),
    [
        ([100.0] * 999 + [9000.0], math.inf, 125.0),
        ([100.0] * 100, 180.0, 198.0),
        ([100.0] * 100, 500.0, 125.0),
        ([], 500.0, 550.0),
        ([], math.inf, 1.0),
        ([math.nan, math.inf], math.inf, 1.0),
        ([0.0] * 10, math.inf, 1.0),
    ],
)
def test_an_axis_reaches_the_99th_percentile_and_a_bound_that_is_near(
    values: list[float], limit: float, top: float
) -> None:
    assert reach(np.array(values), limit) == pytest.approx(top)
