"""Goodput from the records of vLLM's own load generator."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.engine_overload.cells import Slo, Window
from benchmarks.engine_overload.goodput import RecordsError, figures
from benchmarks.engine_overload.trace import Arrival

SLO = Slo(ttft_seconds=1.0, tpot_seconds=0.05)
WINDOW = Window(warm_up_seconds=10.0, seconds=20.0, tail_seconds=5.0)


def request(at: float, ttft: float = 0.5, tpot: float = 0.04, tokens: int = 11, error: str = "") -> dict[str, Any]:
    """A record; the client's clock began at 5000 s."""
    return {
        "start_times": 5000.0 + at,
        "ttfts": ttft,
        "latencies": ttft + tpot * (tokens - 1),
        "output_lens": tokens,
        "errors": error,
    }


def judge(*records: dict[str, Any], planned: list[float] | None = None) -> Any:
    names = ("start_times", "ttfts", "latencies", "output_lens", "errors")
    found: dict[str, Any] = {name: [record[name] for record in records] for name in names}
    found |= {"completed": len(records), "duration": 40.0, "request_goodput": 0.25}
    moments = planned or [record["start_times"] - 5000.0 for record in records]
    return figures(found, [Arrival(at, 8, 8) for at in moments], SLO, WINDOW)


def test_only_what_arrived_in_the_window_counts_per_second_of_it() -> None:
    found = judge(request(0.0), request(9.99), request(10.0), request(29.99), request(30.0), request(34.0))
    assert (found.arrived, found.good) == (2, 2)
    assert found.goodput_rps == pytest.approx(0.1)
    assert found.vllm_goodput_rps == 0.25


def test_a_good_request_keeps_both_bounds() -> None:
    found = judge(
        request(0.0),
        request(11.0, ttft=1.0, tpot=0.0499),
        request(12.0, ttft=1.01),
        request(13.0, tpot=0.051),
        request(14.0, tokens=1, tpot=9.0),
    )
    assert (found.arrived, found.good, found.failed) == (4, 2, 0)


@pytest.mark.parametrize(
    "failed",
    [
        request(12.0, ttft=0.0, tokens=0, error="Service Unavailable"),
        request(12.0, error="the stream broke"),
        request(12.0, ttft=0.0, tokens=0),
        request(12.0, ttft=math.nan),
    ],
)
def test_a_request_without_a_whole_answer_arrived_and_is_not_good(failed: dict[str, Any]) -> None:
    found = judge(request(0.0), request(11.0), failed)
    assert (found.arrived, found.good, found.failed) == (2, 1, 1)
    assert found.ttft_p50_seconds == 0.5


def test_medians_of_nothing_are_no_numbers() -> None:
    found = judge(request(0.0), request(12.0, ttft=0.0, tokens=0, error="Service Unavailable"))
    assert math.isnan(found.ttft_p50_seconds)
    assert math.isnan(found.tpot_p50_seconds)


def test_a_late_client_is_told() -> None:
    found = judge(request(0.0), request(12.0), request(13.4), planned=[0.0, 12.0, 13.0])
    assert found.lag_seconds == pytest.approx(0.4)


def test_a_first_request_that_is_not_at_zero_moves_no_window() -> None:
    assert judge(request(9.5), request(10.5), planned=[9.5, 10.5]).arrived == 1


def test_records_of_other_requests_are_refused() -> None:
    with pytest.raises(RecordsError, match="start_times does not hold 2 requests"):
        judge(request(0.0), planned=[0.0, 1.0])
