from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.law import arithmetic
from holdfast_engine.law.arithmetic import Law, Mix
from holdfast_engine.objectives import rules
from holdfast_engine.objectives.rules import (
    Ending,
    Limits,
    LimitsError,
    Objectives,
    Overload,
    RejectionReason,
    RequestVerdict,
    parse_limits,
)

BOUNDS = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, e2e_seconds=10.0)
LAW = Law(0.004, 5e-5, 2e-4, 1e-7, 1e-9)
MINIMAL = {"version": 1, "ttftSeconds": 1.0, "tpotSeconds": 0.05}

positive = st.floats(1e-6, 1e6)
coefficient = st.floats(0.0, 1.0)
laws = st.builds(Law, coefficient, coefficient, coefficient, coefficient, coefficient)


def judged(ending: Ending, ttft: float | None, e2e: float, tokens: int) -> RequestVerdict:
    return rules.judge(BOUNDS, ending, ttft_seconds=ttft, e2e_seconds=e2e, output_tokens=tokens)


def test_a_request_inside_its_bounds_is_good() -> None:
    assert judged(Ending.FINISHED, 1.0, 1.0 + 0.05 * 9, 10) is RequestVerdict.GOOD


def test_one_token_has_no_time_per_token() -> None:
    assert judged(Ending.FINISHED, 0.5, 0.9, 1) is RequestVerdict.GOOD


@pytest.mark.parametrize(
    ("ttft", "e2e", "tokens", "cause"),
    [
        (1.1, 1.2, 10, RequestVerdict.TTFT),
        (0.5, 2.5, 10, RequestVerdict.TPOT),
        (0.5, 10.5, 1000, RequestVerdict.E2E),
        (math.nan, 1.0, 10, RequestVerdict.TTFT),
        (0.5, math.nan, 10, RequestVerdict.TPOT),
    ],
)
def test_a_bad_request_names_the_first_bound_it_broke(
    ttft: float, e2e: float, tokens: int, cause: RequestVerdict
) -> None:
    assert judged(Ending.FINISHED, ttft, e2e, tokens) is cause


def test_a_request_aborted_in_time_before_its_first_token_is_withdrawn() -> None:
    assert judged(Ending.ABORTED, None, 0.9, 0) is RequestVerdict.WITHDRAWN
    assert judged(Ending.ABORTED, None, 1.1, 0) is RequestVerdict.TTFT


def test_a_request_aborted_later_is_judged_by_what_it_got() -> None:
    assert judged(Ending.ABORTED, 0.5, 0.6, 5) is RequestVerdict.GOOD
    assert judged(Ending.ABORTED, 0.5, 1.5, 5) is RequestVerdict.TPOT


def test_a_failed_request_is_an_error_whatever_its_times() -> None:
    assert judged(Ending.FAILED, 0.1, 0.2, 5) is RequestVerdict.ERROR


def test_limits_survive_the_way_through_json() -> None:
    limits = Limits(7, BOUNDS, 64, 2048, False, Overload.REJECT, 1000, 30.0, LAW)
    assert parse_limits(limits.to_json()) == limits
    assert parse_limits(json.dumps(MINIMAL)) == Limits(1, Objectives(1.0, 0.05))


def test_unknown_keys_are_passed_over() -> None:
    assert parse_limits(json.dumps({**MINIMAL, "laterIdea": {"a": 1}})).version == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": None},
        {"version": 0},
        {"version": 1.5},
        {"version": True},
        {"version": "7"},
        {"ttftSeconds": 0},
        {"ttftSeconds": -1},
        {"ttftSeconds": None},
        {"tpotSeconds": "50ms"},
        {"tpotSeconds": math.nan},
        {"tpotSeconds": math.inf},
        {"e2eSeconds": 0},
        {"activeSequences": 0},
        {"activeSequences": 2**60},
        {"tokensPerStep": 3.5},
        {"adapt": "yes"},
        {"overload": "Panic"},
        {"overload": 3},
        {"maxQueuedSeconds": -5},
        {"stepLaw": [1, 2, 3]},
        {"stepLaw": [1, 2, 3, 4, -1]},
        {"stepLaw": [1, 2, 3, 4, True]},
        {"stepLaw": "fast"},
        {"stepLaw": [10**400, 0, 0, 0, 0]},
        {"ttftSeconds": 10**400},
        {"activeSequences": 10**400},
    ],
)
def test_limits_with_one_bad_field_are_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(LimitsError, match=next(iter(change))):
        parse_limits(json.dumps({**MINIMAL, **change}))


@given(
    st.text()
    | st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists).map(json.dumps)
)
def test_any_other_text_is_refused_and_nothing_else_is_raised(text: str) -> None:
    with pytest.raises(LimitsError):
        parse_limits(text)


@given(laws, positive, st.integers(0, 2000), st.floats(0, 1e8), st.floats(0, 1e6), st.integers(1, 100_000))
def test_tokens_per_step_stay_within_what_was_compiled(
    law: Law, tpot: float, decodes: int, kv: float, pairs: float, most: int
) -> None:
    found = arithmetic.tokens_per_step(law, tpot, decodes=decodes, kv_tokens=kv, pairs_per_prefill=pairs, most=most)
    assert 1 <= found <= most
    assert found >= min(most, decodes + 1)


def test_the_prefill_of_a_step_keeps_the_decoding_sequences_in_time() -> None:
    tokens = arithmetic.tokens_per_step(LAW, 0.05, decodes=20, kv_tokens=10_000, pairs_per_prefill=500, most=8192)
    prefill = tokens - 20
    assert LAW.seconds(prefill, 20, 10_000, prefill * 500) <= 0.05
    assert LAW.seconds(prefill * 1.2, 20, 10_000, prefill * 600) > 0.05 * arithmetic.MARGIN


def test_prefill_never_stops() -> None:
    slow = Law(0.001, 1.0, 0.004, 0.0, 0.0)
    tokens = arithmetic.tokens_per_step(slow, 0.05, decodes=10, kv_tokens=0, pairs_per_prefill=0, most=8192)
    assert tokens == 10 + arithmetic.LEAST_PREFILL_TOKENS


def test_a_step_without_decodes_is_as_large_as_it_can_be() -> None:
    assert arithmetic.tokens_per_step(LAW, 0.001, decodes=0, kv_tokens=0, pairs_per_prefill=0, most=8192) == 8192


@given(laws, positive, st.builds(Mix, st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 1e5)), st.integers(1, 4096))
def test_active_sequences_stay_between_one_and_the_compiled_maximum(law: Law, tpot: float, mix: Mix, most: int) -> None:
    assert 1 <= arithmetic.active_sequences(law, tpot, mix, most) <= most


def test_balanced_sequences_fill_the_objective_in_steady_state() -> None:
    mix = Mix(prefill_per_decode=4.0, kv_per_decode=300.0, pairs_per_prefill=128.0)
    balanced = arithmetic.balanced_sequences(LAW, 0.05, mix, 1000)
    decoding = balanced - arithmetic.PREFILLING_SEQUENCES
    step = LAW.seconds(4.0 * decoding, decoding, 300.0 * decoding, 4.0 * decoding * 128.0)
    assert 0.85 * 0.05 <= step <= LAW.c0 + arithmetic.MARGIN * (0.05 - LAW.c0)


def test_active_sequences_fill_the_objective_while_prefill_is_at_its_least() -> None:
    active = arithmetic.active_sequences(LAW, 0.05, Mix(40.0, 300.0, 128.0), 1000)
    decoding = active - arithmetic.PREFILLING_SEQUENCES
    least = arithmetic.LEAST_PREFILL_TOKENS
    step = LAW.seconds(least, decoding, 300.0 * decoding, least * 128.0)
    assert 0.85 * 0.05 <= step <= LAW.c0 + arithmetic.MARGIN * (0.05 - LAW.c0)


@given(laws, positive, st.builds(Mix, st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 1e5)), st.integers(1, 4096))
def test_no_fewer_sequences_are_active_than_balanced(law: Law, tpot: float, mix: Mix, most: int) -> None:
    balanced = arithmetic.balanced_sequences(law, tpot, mix, most)
    assert 1 <= balanced <= arithmetic.active_sequences(law, tpot, mix, most) <= most


def test_answers_that_bring_less_than_the_least_prefill_are_as_many_as_are_balanced() -> None:
    mix = Mix(prefill_per_decode=0.1, kv_per_decode=300.0, pairs_per_prefill=128.0)
    assert arithmetic.active_sequences(LAW, 0.05, mix, 1000) == arithmetic.balanced_sequences(LAW, 0.05, mix, 1000)


@given(st.floats(0.006, 1.0), st.floats(1.0, 2.0))
def test_a_looser_objective_never_lowers_a_limit(tpot: float, factor: float) -> None:
    mix = Mix(4.0, 300.0, 128.0)
    assert arithmetic.active_sequences(LAW, tpot, mix, 1000) <= arithmetic.active_sequences(
        LAW, tpot * factor, mix, 1000
    )

    def tokens(bound: float) -> int:
        return arithmetic.tokens_per_step(LAW, bound, decodes=9, kv_tokens=900, pairs_per_prefill=64, most=8192)

    assert tokens(tpot) <= tokens(tpot * factor)


def test_an_objective_that_nothing_can_keep_limits_nothing() -> None:
    mix = Mix(4.0, 300.0, 128.0)
    assert arithmetic.active_sequences(LAW, 0.004, mix, 256) == 256
    assert arithmetic.tokens_per_step(LAW, 0.004, decodes=9, kv_tokens=900, pairs_per_prefill=64, most=8192) == 8192


def test_prompts_are_computed_while_others_decode_however_long_they_are() -> None:
    assert arithmetic.balanced_sequences(LAW, 0.05, Mix(10_000.0, 300.0, 128.0), 256) == arithmetic.PREFILLING_SEQUENCES


def test_a_long_prompt_needs_several_steps_until_its_first_token() -> None:
    assert arithmetic.first_token_seconds(100, 1000, 0.05) == pytest.approx(0.1)
    assert arithmetic.first_token_seconds(4000, 1000, 0.05) == pytest.approx(0.25)


REJECT = rules.Terms(ttft_seconds=1.0, overload=Overload.REJECT)


def backlog(tokens: float, requests: float = 1.0, tps: float = 1000.0, step: float = 0.05) -> rules.Backlog:
    return rules.Backlog(requests, tokens, tps, step)


def test_a_request_that_would_be_late_is_refused_until_the_queue_is_gone() -> None:
    refused = rules.admission(REJECT, backlog(5000), 100)
    assert refused.refused is RejectionReason.LATE
    assert refused.retry_after_seconds == math.ceil(5.1 + 0.05 - 1.0)
    assert rules.admission(REJECT, backlog(500), 100).admitted


def test_what_finds_free_sequences_waits_only_for_its_tokens() -> None:
    roomy = replace(backlog(5000), room_tokens=6000.0, burst_tps=10_000.0)
    assert rules.admission(REJECT, roomy, 100).admitted
    assert roomy.first_token_seconds(2000) == pytest.approx(0.05 + 0.6 + 1.0)


def test_with_queue_nobody_is_refused_for_being_late() -> None:
    assert rules.admission(replace(REJECT, overload=Overload.QUEUE), backlog(1e9), 1e9).admitted


def test_what_is_late_even_alone_is_taken_where_nothing_waits() -> None:
    assert rules.admission(REJECT, backlog(0), 1e9).admitted
    assert not rules.admission(REJECT, backlog(1), 1e9).admitted


@pytest.mark.parametrize("overload", Overload)
def test_beyond_the_depth_everybody_is_refused(overload: Overload) -> None:
    terms = rules.Terms(1.0, overload, most_queued=3)
    assert rules.admission(terms, backlog(0, requests=2), 10).admitted
    assert rules.admission(terms, backlog(0, requests=3), 10) == rules.Admission(RejectionReason.FULL, 1)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_without_a_known_rate_nobody_is_refused(rate: float) -> None:
    assert rules.admission(REJECT, backlog(1e9, tps=rate), 1).admitted


@given(positive, st.floats(0, 1e12), st.floats(1, 1e6), st.floats(), st.floats(0, 1e3), st.sampled_from(Overload))
def test_retry_after_is_a_usable_number(
    ttft: float, queued: float, prompt: float, rate: float, step: float, overload: Overload
) -> None:
    terms = rules.Terms(ttft, overload, most_queued=2)
    for requests in (1, 2):
        found = rules.admission(terms, backlog(queued, requests, rate, step), prompt)
        assert found.admitted or 1 <= found.retry_after_seconds <= 60


def test_the_queue_is_bounded_without_being_told_how() -> None:
    limits = Limits(1, Objectives(1.0, 0.05))
    assert limits.longest_wait_seconds == 600
    assert rules.most_queued_requests(limits, peak_tps=2000.0, tokens_per_prompt=500.0) == 2400
    assert rules.most_queued_requests(limits, peak_tps=1.0, tokens_per_prompt=1e6) == 1


def test_the_operators_bounds_of_the_queue_count() -> None:
    limits = Limits(1, Objectives(1.0, 0.05), max_queued_requests=7, max_queued_seconds=30.0)
    assert limits.longest_wait_seconds == 30
    assert rules.most_queued_requests(limits, math.nan, math.nan) == 7


def test_nothing_is_ended_that_can_still_be_in_time() -> None:
    assert Limits(1, Objectives(20.0, 0.05), max_queued_seconds=5.0).longest_wait_seconds == 20


@pytest.mark.parametrize("unknown", [0.0, -1.0, math.nan, math.inf])
def test_without_a_known_rate_any_number_may_wait(unknown: float) -> None:
    limits = Limits(1, Objectives(1.0, 0.05))
    assert rules.most_queued_requests(limits, unknown, 500.0) == math.inf
    assert rules.most_queued_requests(limits, 2000.0, unknown) == math.inf


@given(laws, st.integers(0, 10**6), st.floats(), st.integers(0, 4096), st.integers(1, 4096), st.floats())
def test_no_prompt_is_taken_whole_that_would_be_late_so(
    law: Law, tokens: int, left: float, decodes: int, paced: int, seconds: float
) -> None:
    if arithmetic.is_late_cut(law, tokens, left, decodes, 100.0 * decodes, 128.0, paced, seconds):
        assert law.seconds(tokens, decodes, 100.0 * decodes, tokens * 128.0) <= left
        assert seconds * tokens / paced > 0.89 * left
