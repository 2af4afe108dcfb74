"""What is good, what is lost, and when an objective held."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.load import verdict
from e2e.load.records import Record, Status
from e2e.load.verdict import Objectives, Span

OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.9)


def record(
    at: float = 0.0, ttft: float = 0.5, tpot: float = 0.02, tokens: int = 11, status: Status = "ok", late: float = 0.0
) -> Record:
    """Build the record of one request; good unless told otherwise."""
    first = at + ttft
    return Record(
        index=0,
        scheduled_at=at,
        sent_at=at + late,
        first_token_at=None if status == "rejected" else first,
        finished_at=first + tpot * (tokens - 1),
        prompt_tokens=100,
        output_tokens_asked=tokens,
        output_tokens=tokens,
        status=status,
    )


def test_a_request_inside_both_objectives_is_good() -> None:
    assert verdict.is_good(record(), OBJECTIVES)


@pytest.mark.parametrize(
    "bad",
    [
        record(ttft=1.01),
        record(tpot=0.051),
        record(status="rejected"),
        record(status="error"),
        record(status="truncated"),
        dataclasses.replace(record(), first_token_at=None),
    ],
)
def test_everything_else_that_arrived_is_bad(bad: Record) -> None:
    assert not verdict.is_good(bad, OBJECTIVES)


def test_a_bound_on_the_whole_request_is_honoured_where_given() -> None:
    assert not verdict.is_good(record(), dataclasses.replace(OBJECTIVES, e2e_seconds=0.6))


def test_one_token_has_no_time_between_tokens() -> None:
    single = dataclasses.replace(record(tokens=1), finished_at=99.0)
    assert verdict.tpot_seconds(single) == 0.0


def test_time_counts_from_the_schedule_so_that_a_late_client_cannot_flatter() -> None:
    assert verdict.ttft_seconds(record(ttft=1.2, late=0.9)) == pytest.approx(1.2)


def test_rejected_is_bad_and_not_lost_and_aborted_is_no_arrival() -> None:
    result = verdict.judge(
        [record(status="rejected"), record(status="aborted"), record(), record(status="truncated")],
        OBJECTIVES,
        Span(0, 30),
    )
    assert (result.arrivals, result.good, result.rejected, len(result.lost)) == (3, 1, 1, 1)


def test_an_empty_window_is_named_and_is_neither_a_pass_nor_a_failure() -> None:
    result = verdict.judge([record(at=1.0), record(at=65.0)], OBJECTIVES, Span(0, 90))
    assert [window.attainment for window in result.windows] == [1.0, None, 1.0]
    assert [window.span.start for window in result.empty] == [30.0]
    assert not result.failing
    assert result.holds


def test_a_run_without_arrivals_holds_nothing() -> None:
    result = verdict.judge([], OBJECTIVES, Span(0, 90))
    assert result.attainment is None
    assert not result.holds
    assert math.isnan(result.lateness_p99_seconds)


def test_a_bad_window_inside_the_excuse_is_shown_and_forgiven_and_one_outside_is_not() -> None:
    seen = [record(at=float(second), ttft=5.0 if 60 <= second < 100 else 0.1) for second in range(180)]
    forgiven = verdict.judge(seen, OBJECTIVES, Span(0, 180), excused=[Span(60, 100)])
    assert forgiven.holds
    assert [window.good for window in forgiven.windows if window.excused] == [0, 0]
    strict = verdict.judge(seen, OBJECTIVES, Span(0, 180), excused=[Span(60, 90)])
    assert [window.span.start for window in strict.failing] == [90.0]
    assert not strict.holds


def test_one_lost_request_is_enough_to_fail() -> None:
    seen = [record(at=float(second)) for second in range(60)]
    seen[5] = record(at=5.0, status="truncated")
    result = verdict.judge(seen, OBJECTIVES, Span(0, 60))
    assert not result.failing
    assert not result.holds


def test_a_client_that_sends_late_says_so() -> None:
    assert verdict.judge([record(late=0.5)], OBJECTIVES, Span(0, 30)).client_overloaded
    assert not verdict.judge([record()], OBJECTIVES, Span(0, 30)).client_overloaded


def test_exactly_the_objective_is_enough() -> None:
    seen = [record(at=0.1 * k, ttft=9.0 if k < 1 else 0.1) for k in range(20)]
    assert verdict.judge(seen, dataclasses.replace(OBJECTIVES, share=0.95), Span(0, 30)).holds


times = st.floats(0, 300, allow_nan=False)
spans = st.tuples(times, times).map(lambda pair: Span(min(pair), max(pair)))


@given(starts=st.lists(times, max_size=40), excused=st.lists(spans, max_size=3), width=st.floats(5, 60))
def test_windows_cover_the_run_and_each_is_wholly_excused_or_wholly_not(
    starts: list[float], excused: list[Span], width: float
) -> None:
    seen = [record(at=at) for at in starts]
    windows = verdict.attainment_windows(seen, OBJECTIVES, Span(0, 300), excused, width)
    for at in starts:
        assert at == 300 or any(window.span.start <= at < window.span.end for window in windows)
    for window in windows:
        assert window.span.end - window.span.start <= width + 1e-6
        assert 0 <= window.good <= window.arrivals
        if not window.excused:
            assert not any(
                min(excuse.end, window.span.end) - max(excuse.start, window.span.start) > 1e-6 for excuse in excused
            )


@given(bad=st.integers(0, 30), more=st.integers(1, 10))
def test_more_bad_requests_never_turn_a_failure_into_a_success(bad: int, more: int) -> None:
    def holds(count: int) -> bool:
        seen = [record(at=0.5 * k, ttft=9.0 if k < count else 0.1) for k in range(59)]
        return verdict.judge(seen, OBJECTIVES, Span(0, 30)).holds

    assert holds(bad) or not holds(bad + more)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_one_of_the_values_and_at_least_that_share_lies_below(values: list[float], q: float) -> None:
    found = verdict.percentile(values, q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values) - 1e-9
