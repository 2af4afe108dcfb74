"""Thresholds of a run: what passes, what fails, and what nobody knows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.tools.bench.figures.definitions import LatencyBounds
from holdfast.tools.bench.figures.results import as_json, measure
from holdfast.tools.bench.figures.thresholds import Threshold, judged
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.pages import report
from tests.tools.bench.bench_builders import record

STEADY = [record([0.1 + 0.001 * number], at=0.01 * number, index=number) for number in range(101)]
"""TTFT and E2E from 100 to 200 ms: the p99 is 199 ms and the mean 150 ms."""


def refused(count: int) -> list[RequestRecord]:
    return [record((), RequestOutcome.OVERLOADED, index=1000 + number) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p99 E2E <= 500 ms", "p99 E2E ≤ 500 ms"),
        ("mean tpot<=20ms", "mean TPOT ≤ 20 ms"),
        ("  P99.9 ttft ≤ 1.5 s ", "p99.9 TTFT ≤ 1500 ms"),
        ("p100 ITL <= 2s", "p100 ITL ≤ 2000 ms"),
    ],
)
def test_a_threshold_is_read_as_people_write_it(text: str, told: str) -> None:
    assert str(Threshold.parse(text)) == told


@pytest.mark.parametrize(
    "text",
    [
        *("", "p99 E2E", "E2E <= 500 ms", "p99 E2E <= 500", "p99 E2E < 500 ms", "p99 E2E >= 500 ms"),
        *("p101 E2E <= 5 s", "p-1 E2E <= 5 s", "median E2E <= 5 s", "p99 RPS <= 5 s", "mean TPOT <= 0 ms"),
        *(
            "mean TPOT <= nan ms",
            "mean TPOT <= -3 ms",
            "p99 E2E <= 500 ms, mean TPOT <= 20 ms",
            f"p{'9' * 400} E2E <= 5 s",
        ),
    ],
)
def test_what_is_no_threshold_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 'p99 E2E <= 500 ms'"):
        Threshold.parse(text)


@pytest.mark.parametrize(
    ("text", "measured", "passed"),
    [
        ("p99 E2E <= 199.1 ms", 0.199, True),
        ("p99 E2E <= 198.9 ms", 0.199, False),
        ("mean TTFT <= 150.1 ms", 0.150, True),
        ("mean TTFT <= 149.9 ms", 0.150, False),
        ("p0 TTFT <= 100.1 ms", 0.100, True),
    ],
)
def test_a_threshold_passes_up_to_its_bound(text: str, measured: float, passed: bool) -> None:
    found = judged(Threshold.parse(text), STEADY)
    assert found.seconds == pytest.approx(measured)
    assert found.passed is passed


def test_refusing_requests_is_no_way_to_pass_a_percentile() -> None:
    asked = Threshold.parse("p99 E2E <= 300 ms")
    assert judged(asked, STEADY).passed
    found = judged(asked, [*STEADY, *refused(5)])
    assert (found.seconds, found.passed) == (math.inf, False)
    assert not judged(asked, refused(3)).passed


def test_one_refused_request_of_many_moves_a_percentile_and_does_not_decide_it() -> None:
    found = judged(Threshold.parse("p95 E2E <= 300 ms"), [*STEADY, *refused(1)])
    assert found.seconds == pytest.approx(0.1 + 0.95 * 0.101)
    assert found.passed


def test_what_has_no_figure_is_unknown_and_does_not_pass() -> None:
    """Answers of one token have no TPOT."""
    for text in ("mean TPOT <= 20 ms", "p99 TPOT <= 20 ms", "p99 ITL <= 20 ms"):
        found = judged(Threshold.parse(text), STEADY)
        assert math.isnan(found.seconds)
        assert not found.passed
    assert math.isnan(judged(Threshold.parse("p50 E2E <= 1 s"), []).seconds)


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=40), st.integers(0, 5), st.integers(0, 100))
def test_a_percentile_with_lost_requests_is_numpys_of_the_rest_and_infinity(
    seconds: list[float], lost: int, percent: int
) -> None:
    given = [record([each], index=number) for number, each in enumerate(seconds)]
    found = judged(Threshold("p" + str(percent), "E2E", 1.0), [*given, *refused(lost)]).seconds
    later = np.sort([*seconds, *[1e9] * lost])
    expected = float(np.percentile(later, percent))
    assert (found == pytest.approx(expected)) if expected <= max(seconds) else (found == math.inf)


def test_a_run_fails_with_any_of_its_thresholds_and_says_which() -> None:
    asked = [Threshold.parse(text) for text in ("mean TTFT <= 1 s", "p99 E2E <= 150 ms")]
    assert measure(STEADY, LatencyBounds(), 0.0, 0.0, thresholds=asked[:1]).attains(0.99)
    found = measure([*STEADY, *refused(1)], LatencyBounds(), 0.0, 0.0, thresholds=asked)
    assert not found.attains(0.5)
    lines = report.thresholds(found)
    assert lines[0] == "pass: mean TTFT ≤ 1000 ms: 150 ms; 1 of 102 requests have no answer"
    assert lines[1].startswith("FAIL: p99 E2E ≤ 150 ms: 200 ms")
    assert [line in report.told(found, 0.99) for line in lines] == [True, True]
    told = json.loads(json.dumps(as_json(found, "x", "holdfast", 0.99, ""), allow_nan=False))["results"]["thresholds"]
    assert [(each["threshold"], each["passed"]) for each in told] == [(str(asked[0]), True), (str(asked[1]), False)]


def test_lines_say_when_nothing_is_known_and_when_too_many_have_no_answer() -> None:
    asked = [Threshold.parse(text) for text in ("mean TPOT <= 20 ms", "p99 E2E <= 1 s")]
    lines = report.thresholds(measure([*STEADY, *refused(9)], LatencyBounds(), 0.0, 0.0, thresholds=asked))
    assert "unknown, no request has this figure; 9 of 110 requests have no answer" in lines[0]
    assert "not kept by any bound; 9 of 110 requests have no answer, and count as later than any" in lines[1]


@pytest.mark.parametrize(("bound", "code"), [("1 s", 0), ("1 ms", 1)])
def test_the_exit_code_tells_of_thresholds(
    bound: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records.write(tmp_path / "r.jsonl", STEADY)
    given = ("--from", str(tmp_path / "r.jsonl"), "--threshold", f"p99 E2E <= {bound}", "--threshold", "mean E2E<=9s")
    assert main(["bench", *given]) == code
    shown = capsys.readouterr().out
    assert ("FAIL: p99 E2E" in shown) == bool(code)
    assert "pass: mean E2E ≤ 9000 ms" in shown


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--rate", "1", "--threshold", "p99 e2e < 5ms"), "argument --threshold: 'p99 e2e < 5ms': give a statistic"),
        (("--sweep", "--threshold", "p99 e2e <= 5ms"), "--threshold cannot be combined with --sweep"),
    ],
)
def test_a_threshold_that_cannot_be_used_is_told_in_one_line(
    given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["bench", "--url", "http://127.0.0.1:9", "--model", "m", *given])
    except SystemExit as ended:
        code = int(str(ended.code))
    shown = capsys.readouterr().err
    assert (code, len(shown.splitlines())) == (2, 1)
    assert told in shown
