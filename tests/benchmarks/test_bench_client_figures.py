"""What the benchmark of the client makes of its records, and when it says that a bar is missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bench_client import LEAST_CHUNKS, figures, measure, missed
from holdfast.tools.bench.load.records import RequestOutcome
from tests.tools.bench.bench_builders import record, steady

KEPT: dict[str, Any] = {
    "added_ttft_p99_ms": 0.02,
    "chunks_per_second": LEAST_CHUNKS,
    "not_finished": 0,
    "refused": "",
}


def test_a_first_token_is_compared_with_the_moment_that_the_engine_wrote_it() -> None:
    records = steady(100, tokens_at=(0.5, 0.6))
    written = {each.index: each.token_at[0] - 0.001 * each.index for each in records}
    found = figures(records, written)
    assert found["chunks_per_second"] == pytest.approx(20.0, rel=0.05)
    assert 0 < found["first_tokens_compared"] <= 55, "neither the beginning nor the end"
    assert found["added_ttft_p50_ms"] == pytest.approx(45.0, abs=6.0)
    assert found["added_ttft_most_ms"] < 75.0


def test_what_did_not_finish_is_counted_though_no_token_of_it_is_compared() -> None:
    lost = record(tokens_at=(), outcome=RequestOutcome.HTTP_ERROR, index=100)
    records = steady(100)
    found = figures([*records, lost], {each.index: each.token_at[0] for each in records})
    assert (found["requests"], found["not_finished"]) == (101, 1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"added_ttft_p99_ms": 5.1}, "5 ms"),
        ({"chunks_per_second": 3300.0}, "5000 chunks/s"),
        ({"not_finished": 1}, "every request"),
        ({"refused": "events were read 613.0 ms late (p99)"}, "trusts"),
    ],
)
def test_each_bar_is_told_where_it_is_missed(wrong: dict[str, Any], named: str) -> None:
    assert missed(KEPT) == []
    (bar,) = missed(KEPT | wrong)
    assert named in bar


@pytest.mark.slow
def test_every_request_of_an_emulated_engine_is_answered_and_its_first_token_compared() -> None:
    found = measure(streams=20, chunks_per_second=400.0, seconds=2.0)
    assert found["not_finished"] == 0
    assert found["first_tokens_compared"] > 10
    assert found["added_ttft_p50_ms"] > 0.0
    assert 0.0 < found["chunks_per_second"] < 500.0
