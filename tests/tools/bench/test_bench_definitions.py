"""The formulas, on records made by hand and on any record that can be."""

from __future__ import annotations

import itertools
import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.catalog import find_model
from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord, impossible
from tests.tools.bench.bench_builders import record

NUMBERS = st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf, -math.inf])
RECORDS = st.builds(
    RequestRecord,
    index=st.integers(0, 5),
    scheduled_at=NUMBERS,
    sent_at=NUMBERS,
    ended_at=NUMBERS,
    outcome=st.sampled_from(list(RequestOutcome)),
    token_at=st.lists(NUMBERS, max_size=5).map(lambda values: array("d", values)),
    prompt_tokens=st.integers(-2, 100),
    output_tokens=st.integers(-2, 100),
)


def test_ttft_is_from_sending_to_the_first_text() -> None:
    assert definitions.ttft_seconds(record([0.25, 0.5], at=100.0)) == pytest.approx(0.25)


def test_itl_is_every_gap_and_e2e_ends_with_the_last_text() -> None:
    late_end = record([0.5, 0.6, 0.9], ended_at=2.0)
    assert definitions.itl_seconds(late_end) == pytest.approx([0.1, 0.3])
    assert definitions.e2e_seconds(late_end) == pytest.approx(0.9)


def test_tpot_divides_by_the_tokens_after_the_first_whatever_events_they_came_in() -> None:
    merged = record([0.5, 0.9], output_tokens=5)
    assert definitions.tpot_seconds(merged) == pytest.approx(0.4 / 4)
    assert definitions.interactivity(merged) == pytest.approx(10.0)


def test_what_a_user_gets_holds_the_wait_for_the_first_token_and_one_by_tpot_does_not() -> None:
    """The numbers of a public run: 147 by TPOT alone where 131 tokens a second came."""
    tpot = 1.0 / 147.0
    ttft = 128 / 131.0 - 127 * tpot
    one = record([ttft + tpot * number for number in range(128)])
    assert definitions.user_tokens_per_second(one) == pytest.approx(131.0)
    assert definitions.interactivity(one) == pytest.approx(147.0)


@pytest.mark.parametrize("few", [record([]), record([0.0]), record(output_tokens=0)])
def test_tokens_of_a_user_without_tokens_or_time_are_unknown_and_not_zero(few: RequestRecord) -> None:
    assert math.isnan(definitions.user_tokens_per_second(few))


def test_inter_token_latencies_of_other_tools_are_theirs() -> None:
    """Five tokens in two events. Inference Perf: four gaps, three of them 0. LLMPerf: E2E / tokens, with the TTFT."""
    merged = record([0.5, 0.9], output_tokens=5)
    assert definitions.itl_seconds(merged) == pytest.approx([0.4])
    assert sorted(definitions.itl_inference_perf_seconds(merged)) == pytest.approx([0.0, 0.0, 0.0, 0.4])
    assert definitions.itl_llmperf_seconds(merged) == pytest.approx(0.9 / 5)


@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.integers(1, 6)), min_size=1, max_size=12), st.integers(0, 10**9))
def test_inter_token_latencies_are_those_of_the_other_tools_own_loops(
    events: list[tuple[float, int]], seed: int
) -> None:
    """Written out as in Inference Perf's report and LLMPerf's client, from moments and tokens of each chunk."""
    moments = np.cumsum([gap for gap, _ in events]).tolist()
    tokens = sum(count for _, count in events)
    one = record(moments, at=float(seed % 7), output_tokens=tokens)
    chunk_times = [one.sent_at + moment for moment in moments]
    times = [at for at, (_, count) in zip(chunk_times, events, strict=True) for _ in range(count)]
    deltas = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sorted(definitions.itl_inference_perf_seconds(one)) == pytest.approx(sorted(deltas), abs=1e-9)
    to_next = [later - earlier for earlier, later in itertools.pairwise([one.sent_at, *chunk_times])]
    assert definitions.itl_llmperf_seconds(one) == pytest.approx(sum(to_next) / tokens)


def test_without_merged_events_inference_perf_has_our_gaps() -> None:
    assert definitions.itl_inference_perf_seconds(record()) == pytest.approx(definitions.itl_seconds(record()))


@pytest.mark.parametrize("few", [record([]), record(output_tokens=0)])
def test_an_answer_without_tokens_has_no_latency_of_llmperf(few: RequestRecord) -> None:
    assert math.isnan(definitions.itl_llmperf_seconds(few))
    assert not any(gap == 0.0 for gap in definitions.itl_inference_perf_seconds(few))


def test_the_tokens_of_a_system_are_from_the_first_request_to_the_last_response() -> None:
    """Sent at 0 and 1 s, the last token at 4 s; what failed at 600 s is no response, and its tokens are none."""
    lost = record([0.5], RequestOutcome.TIMED_OUT, at=1.0, ended_at=600.0, output_tokens=1)
    given = [record([1.0, 2.0]), record([1.0, 3.0], at=1.0, ended_at=9.0), lost]
    assert definitions.system_tokens_per_second(given) == pytest.approx(4 / 4.0)
    assert math.isnan(definitions.system_tokens_per_second([lost]))
    assert math.isnan(definitions.system_tokens_per_second([record(output_tokens=0)]))
    assert math.isnan(definitions.system_tokens_per_second([]))


@pytest.mark.parametrize("moments", [(), (0.5,)])
def test_an_answer_of_no_or_of_one_token_has_no_time_per_token(moments: tuple[float, ...]) -> None:
    few = record(moments)
    assert math.isnan(definitions.tpot_seconds(few))
    assert math.isnan(definitions.interactivity(few))
    assert len(definitions.itl_seconds(few)) == 0


def test_an_answer_without_text_has_no_times() -> None:
    assert math.isnan(definitions.ttft_seconds(record([])))
    assert math.isnan(definitions.e2e_seconds(record([])))


def test_one_token_cannot_miss_the_time_per_token() -> None:
    assert definitions.verdict(record([0.5]), LatencyBounds(ttft_seconds=1.0, tpot_seconds=1e-9)) == "good"


@pytest.mark.parametrize(
    ("slo", "cause"),
    [
        (LatencyBounds(), "good"),
        (LatencyBounds(ttft_seconds=0.5, tpot_seconds=0.1000001, e2e_seconds=0.7), "good"),
        (LatencyBounds(ttft_seconds=0.4, tpot_seconds=0.01, e2e_seconds=0.1), "late_ttft"),
        (LatencyBounds(tpot_seconds=0.01, e2e_seconds=0.1), "late_tpot"),
        (LatencyBounds(e2e_seconds=0.1), "late_e2e"),
    ],
)
def test_a_request_has_one_cause_the_first(slo: LatencyBounds, cause: str) -> None:
    assert definitions.verdict(record(), slo) == cause


@pytest.mark.parametrize("outcome", [outcome for outcome in RequestOutcome if outcome is not RequestOutcome.FINISHED])
def test_what_did_not_finish_is_never_good_however_fast(outcome: RequestOutcome) -> None:
    assert definitions.verdict(record(outcome=outcome), LatencyBounds()) == outcome


@pytest.mark.parametrize(
    "broken",
    [
        record([0.5, 0.4, 0.6]),
        record([math.nan]),
        record(sent_at=math.inf),
        record(ended_at=0.1),
        record([]),
        record(output_tokens=-1),
    ],
)
def test_times_that_cannot_be_are_a_cause_of_their_own_and_enter_no_percentile(broken: RequestRecord) -> None:
    assert definitions.verdict(broken, LatencyBounds()) == "impossible_times"
    assert definitions.timed([broken, record()]) == [record()]


@given(st.lists(RECORDS, max_size=8), st.builds(LatencyBounds, *[st.none() | st.floats(0.0, 10.0)] * 3))
def test_every_request_counts_once_whatever_it_looks_like(records: list[RequestRecord], slo: LatencyBounds) -> None:
    counts = definitions.verdicts(records, slo)
    assert counts.total() == len(records)
    assert not records or 0.0 <= definitions.attainment(counts) <= 1.0
    assert all(math.isfinite(definitions.e2e_seconds(each)) for each in definitions.timed(records))
    assert definitions.peak_resident_tokens(records) >= 0.0
    definitions.span_seconds(records)


@given(
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20), st.integers(1, 60), st.floats(0.0, 10.0), st.floats(0, 0.5)
)
def test_the_figures_of_a_request_fit_together(gaps: list[float], tokens: int, first: float, late: float) -> None:
    moments = (first + np.cumsum(gaps)).tolist()
    one = record(moments, output_tokens=tokens, ended_at=moments[-1] + late)
    assert not impossible(one)
    ttft, e2e, tpot = (figure(one) for figure in _FIGURES)
    assert ttft <= e2e
    assert definitions.itl_seconds(one).sum() == pytest.approx(e2e - ttft, abs=1e-9)
    if tokens > 1:
        assert tpot * (tokens - 1) + ttft == pytest.approx(e2e)


_FIGURES = (definitions.ttft_seconds, definitions.e2e_seconds, definitions.tpot_seconds)


def test_tokens_within_a_window_share_out_what_events_merged() -> None:
    merged = record([1.0, 2.0, 3.0], output_tokens=9)
    assert definitions.tokens_within([merged], 1.0, 3.0) == pytest.approx(6.0)
    assert definitions.tokens_within([merged], -math.inf, math.inf) == pytest.approx(9.0)


def test_tokens_per_dollar_by_hand() -> None:
    assert definitions.tokens_per_dollar(1000.0, 3.6) == pytest.approx(1e6)
    assert math.isnan(definitions.tokens_per_dollar(1000.0, 0.0))


def test_kv_cache_by_formula() -> None:
    llama = find_model("meta-llama/Llama-3.1-8B")
    assert llama is not None
    assert definitions.kv_bytes_per_token(llama) == 2 * 32 * 8 * 128 * 2


def test_the_peak_of_resident_tokens_is_where_answers_overlap() -> None:
    first, second = record([1.0, 2.0, 3.0], prompt_tokens=100), record([2.5, 4.0], prompt_tokens=50)
    # At 2.5 s: 100 + 2 of the first and 50 + 1 of the second; at 3 s one more of the first.
    assert definitions.peak_resident_tokens([first, second]) == pytest.approx(154.0)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_percentiles_are_numpys_as_vllm_takes_them(values: list[float], share: float) -> None:
    assert definitions.percentile(np.array(values), share) == pytest.approx(np.percentile(values, 100 * share))
