from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.apiserver.admission import PromptLengthEstimator, Prompts, Transit, decide, sends_away, terms_of
from holdfast_engine.objectives.rules import RejectionReason
from holdfast_engine.queue.prompts import PromptAverages
from holdfast_engine.stats.stats_fields import FIELDS, RECORD_SECONDS, Mode


def record(**numbers: float) -> dict[str, float]:
    """An engine in which 5000 tokens wait, which it computes in five seconds; one second is promised."""
    busy = {
        "mode": float(Mode.ACTIVE),
        "waiting_fresh": 5.0,
        "waiting_fresh_tokens": 5000.0,
        "prefill_tps": 1000.0,
        "computed_share": 1.0,
        "limit_ttft_seconds": 1.0,
        "limit_max_queued_requests": math.inf,
        "limit_reject": 1.0,
    }
    return dict.fromkeys(FIELDS, 0.0) | busy | numbers


def test_a_record_says_who_would_be_late() -> None:
    assert decide(record(), 10).refused is RejectionReason.LATE
    assert decide(record(waiting_fresh_tokens=500.0), 10).admitted
    assert decide(record(limit_reject=0.0), 10).admitted


def test_tokens_from_the_prefix_cache_cost_no_time() -> None:
    assert decide(record(computed_share=0.1), 100).admitted


def test_all_lanes_count_for_the_depth() -> None:
    lanes = {"waiting_front": 1.0, "waiting_fresh": 1.0, "waiting_late": 1.0}
    assert decide(record(**lanes, limit_reject=0.0, limit_max_queued_requests=3.0), 1).refused is RejectionReason.FULL
    assert decide(record(**lanes, limit_reject=0.0, limit_max_queued_requests=4.0), 1).admitted
    assert decide(record(**lanes, limit_reject=0.0, limit_max_queued_requests=4.0), 1, more_requests=1).refused


def test_a_plugin_that_is_off_or_waits_refuses_nobody() -> None:
    for mode in (Mode.OFF, Mode.WAITING):
        assert terms_of(record(mode=float(mode))) is None
        assert decide(record(mode=float(mode)), 10).admitted


def test_a_record_of_unknown_numbers_refuses_nobody() -> None:
    unknown = {name: math.nan for name in FIELDS} | {"mode": float(Mode.ACTIVE)}
    assert decide(unknown, math.nan).admitted


def test_an_engine_in_overload_sends_its_clients_away() -> None:
    assert sends_away(record()), "the next request would be late"
    assert sends_away(record(waiting_fresh_tokens=0.0, waiting_late=1.0)), "one is late"
    assert sends_away(record(limit_reject=0.0)), "whatever happens to those that would be late"
    assert not sends_away(record(waiting_fresh_tokens=900.0))
    assert not sends_away(record(computed_share=0.1))


def test_nobody_is_sent_away_without_knowing() -> None:
    for mode in (Mode.OFF, Mode.WAITING):
        assert not sends_away(record(mode=float(mode), waiting_late=9.0))
    assert not sends_away({name: math.nan for name in FIELDS} | {"mode": float(Mode.ACTIVE)})


def test_requests_on_their_way_count_until_the_engine_tells_of_them() -> None:
    transit = Transit()
    transit.add(1, 10.0, 300.0)
    transit.add(2, 10.1, 200.0)
    assert transit.since(10.1, step_seconds=0.2) == (2, 500.0)
    assert transit.since(10.1 + RECORD_SECONDS + 0.15, step_seconds=0.2) == (1, 200.0)
    assert transit.since(20.0, step_seconds=math.nan) == (0, 0.0)


def test_a_request_with_an_answer_is_on_its_way_no_longer_however_long_a_step_is() -> None:
    transit = Transit()
    transit.add(1, 10.0, 300.0)
    transit.add(2, 10.1, 200.0)
    transit.remove(1)
    transit.remove(3)
    assert transit.since(10.2, step_seconds=60.0) == (1, 200.0)
    transit.remove(2)
    assert transit.since(10.2, step_seconds=60.0) == (0, 0.0)


def test_longer_requests_have_more_tokens_in_proportion() -> None:
    lengths = PromptLengthEstimator()
    assert lengths.tokens(400, 100.0) == 100.0, "nothing is known of bytes yet"
    lengths.learn(Prompts(400, 100))
    assert lengths.tokens(800, 100.0) == 200.0
    assert lengths.tokens(0, 100.0) == 0.0
    assert lengths.tokens(800, math.nan) == 200.0
    assert PromptLengthEstimator().tokens(800, math.nan) == 0.0


def test_only_what_vllm_took_in_as_tokens_teaches_lengths() -> None:
    lengths = PromptLengthEstimator()
    lengths.learn(Prompts(900_000_000_000_000, 0))
    lengths.learn(Prompts(0, 10))
    assert lengths.tokens(800, 100.0) == 100.0


def test_no_request_is_longer_than_vllm_serves() -> None:
    lengths = PromptLengthEstimator()
    lengths.learn(Prompts(4, 4))
    assert lengths.tokens(10**15, 100.0, 8192) == 8192


@given(
    honest=st.lists(st.floats(0.2, 0.3), min_size=33, max_size=64),
    forged=st.lists(st.sampled_from([1e-15, 1e-6, 1.0, 1e9]), max_size=31),
    draw=st.randoms(use_true_random=False),
)
def test_less_than_half_of_the_requests_cannot_move_the_guess(
    honest: list[float], forged: list[float], draw: random.Random
) -> None:
    """Bodies that are padded with a gigabyte, or hold more tokens than bytes."""
    told = [*honest, *forged[: len(honest) - 1]][-64:]
    draw.shuffle(told)
    lengths = PromptLengthEstimator()
    for tokens_per_byte in told:
        lengths.learn(Prompts(10**15, max(1, round(tokens_per_byte * 10**15))))
    assert 0.2 <= lengths.tokens(1000, 100.0) / 1000 <= 0.3


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1, max_size=200))
def test_the_share_of_computed_tokens_is_a_share(prompts: list[tuple[int, int]]) -> None:
    found = PromptAverages()
    for tokens, cached in prompts:
        found.arrive(tokens)
        found.start(tokens, cached)
        assert 0.0 <= found.computed_share <= 1.0
    lengths = [tokens for tokens, _ in prompts]
    assert min(lengths) <= found.mean_tokens * (1 + 1e-9)
    assert found.mean_tokens <= max(lengths) * (1 + 1e-9)
