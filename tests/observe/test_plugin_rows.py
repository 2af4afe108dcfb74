"""What the plugin inside the engines tells: counted where it can stand for all requests, else left aside."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import EngineState, ExactCounts, PluginMode
from holdfast.domain.signals import NO_BATCH, AcceleratorTraffic, BatchClassTraffic, SignalState, Traffic
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, WINDOW, answers, ready, request, sample

ENGINE = sample(NOW - 3, pod="chat-0")
COVERED = sample(3.0, metric="covered")
CLIENT_TIMES = sample(3.0, metric="client_times")
OBJECTIVES = [
    sample(1.0, metric="objective", name="ttft_seconds", seconds="0.5"),
    sample(1.0, metric="objective", name="tpot_seconds", seconds="0.03"),
]
COUNTS = [
    sample(90.0, metric="requests_arrived_total"),
    sample(70.0, metric="requests_good_total"),
    sample(11.0, metric="requests_bad_total", cause="ttft"),
    sample(2.0, metric="requests_bad_total", cause="tpot"),
    sample(3.0, metric="requests_bad_total", cause="rejected"),
    sample(1.0, metric="requests_withdrawn_total"),
    sample(1400.0, metric="good_tokens_total"),
]


def seen(*plugins: Sample, objectives: list[Sample] = OBJECTIVES, **rows: list[Sample]) -> Traffic:
    found = answers(**{"engines": [ENGINE], "plugins": [*plugins, CLIENT_TIMES, *objectives], **rows})
    return traffic.assemble([request(ready("chat-0"))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def on_h100(found: Traffic) -> AcceleratorTraffic:
    return dict(found.by_accelerator)["h100"]


def test_counts_that_cover_every_engine_are_exact() -> None:
    found = seen(COVERED, *COUNTS)
    assert found.state is SignalState.FRESH, found.detail
    assert on_h100(found).exact == ExactCounts(
        arrived=90.0,
        good=70.0,
        bad_ttft=11.0,
        bad_tpot=2.0,
        bad_rejected=3.0,
        withdrawn=1.0,
        good_tokens=1400.0,
        engines=1,
    )


@pytest.mark.parametrize("told", [[], [sample(math.nan, metric="client_times")]], ids=["not told", "NaN"])
def test_counts_by_the_times_of_the_engine_are_exact_and_it_is_known(told: list[Sample]) -> None:
    found = answers(engines=[ENGINE], plugins=[COVERED, *COUNTS, *OBJECTIVES, *told])
    exact = on_h100(traffic.assemble([request(ready("chat-0"))], found, SlowSignals(), WINDOW, NOW)[CHAT]).exact
    assert exact is not None
    assert (exact.good, exact.engines, exact.engine_timed) == (70.0, 1, 1)


@pytest.mark.parametrize(
    "objectives",
    [
        [],
        OBJECTIVES[:1],
        [*OBJECTIVES, sample(1.0, metric="objective", name="ttft_seconds", seconds="1")],
        [*OBJECTIVES, sample(1.0, metric="objective", name="e2e_seconds", seconds="30")],
        [OBJECTIVES[0], sample(1.0, metric="objective", name="tpot_seconds", seconds="nan")],
        [OBJECTIVES[0], sample(1.0, metric="objective", name="tpot_seconds", seconds="soon")],
    ],
    ids=["unknown", "one unknown", "one engine behind", "one too many", "NaN", "no number"],
)
def test_verdicts_by_other_objectives_than_those_declared_stand_for_nothing(objectives: list[Sample]) -> None:
    found = seen(COVERED, *COUNTS, objectives=objectives)
    assert found.fresh
    assert on_h100(found).exact is None


def test_an_idle_engine_with_the_plugin_is_exactly_idle() -> None:
    assert on_h100(seen(COVERED)).exact == ExactCounts(engines=1)


def test_counts_of_some_engines_only_stand_for_nothing() -> None:
    found = seen(*COUNTS)
    assert found.fresh
    assert on_h100(found).exact is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_a_count_that_makes_no_sense_leaves_vllms_own_in_force(value: float) -> None:
    found = seen(COVERED, *COUNTS, sample(value, metric="requests_good_total"))
    assert found.fresh
    assert on_h100(found).exact is None


def test_a_cause_of_a_later_release_still_makes_a_request_bad() -> None:
    exact = on_h100(seen(COVERED, sample(4.0, metric="requests_bad_total", cause="itl"))).exact
    assert exact is not None
    assert exact.bad == 4.0


def test_engines_scraped_twice_are_divided_out_of_exact_counts_too() -> None:
    exact = on_h100(seen(COVERED, *COUNTS, anomalies=[sample(2.0, metric="copies", pod="chat-0")])).exact
    assert exact is not None
    assert (exact.arrived, exact.bad, exact.engines) == (45.0, 8.0, 1)


def test_what_a_new_engine_counted_before_its_first_scrape_is_added() -> None:
    newcomers = [
        sample(5.0, metric="requests_arrived_total"),
        sample(4.0, metric="requests_bad_total", cause="ttft"),
        sample(-99.0, metric="requests_good_total"),
    ]
    exact = on_h100(seen(COVERED, *COUNTS, newcomers=newcomers)).exact
    assert exact is not None
    assert (exact.arrived, exact.bad_ttft, exact.good) == (95.0, 15.0, 0.0)


def test_late_ones_are_part_of_those_waiting() -> None:
    waiting = [sample(8.0, metric="num_requests_waiting")]
    assert on_h100(seen(sample(5.0, metric="requests_waiting_late"), gauges=waiting)).waiting_late == 5.0
    assert on_h100(seen(sample(9.0, metric="requests_waiting_late"), gauges=waiting)).waiting_late == 8.0
    assert on_h100(seen(sample(math.nan, metric="requests_waiting_late"), gauges=waiting)).waiting_late == 0.0


BATCH = [
    sample(6.0, metric="batch_requests", state="running"),
    sample(4.0, metric="batch_requests", state="waiting"),
    sample(5.0, metric="batch_sums_total", term="started"),
    sample(3.0, metric="batch_sums_total", term="done"),
    sample(3000.0, metric="batch_sums_total", term="prompt_tokens"),
    sample(900.0, metric="batch_sums_total", term="output_tokens"),
    sample(5000.0, metric="batch_sums_total", term="started_prompt_tokens"),
    sample(4500.0, metric="batch_sums_total", term="cached_prompt_tokens"),
]
VLLM = {
    "gauges": [
        sample(8.0, metric="num_requests_running"),
        sample(5.0, metric="num_requests_waiting"),
        sample(0.4, metric="kv_usage"),
    ],
    "requests": [
        sample(10.0, metric="request_success_total", finished_reason="stop"),
        sample(12.0, metric="time_to_first_token_seconds_count"),
        sample(6200.0, metric="prompt_tokens_total"),
        sample(4800.0, metric="prefix_cache_hits_total"),
    ],
    "tokens": [
        sample(10.0, metric="request_prompt_tokens_count"),
        sample(4000.0, metric="request_prompt_tokens_sum"),
        sample(1600.0, metric="request_generation_tokens_sum"),
    ],
}


def test_batch_requests_are_in_no_number_but_their_own() -> None:
    found = on_h100(seen(COVERED, *COUNTS, *BATCH, **VLLM))
    assert (found.running, found.waiting, found.finished, found.ttft_count) == (2.0, 1.0, 7.0, 7.0)
    assert (found.length_samples, found.prompt_length_sum, found.output_length_sum) == (7.0, 1000.0, 700.0)
    assert (found.prompt_tokens, found.cached_prompt_tokens) == (1200.0, 300.0)
    assert (found.kv_usage, found.batch) == (pytest.approx(0.1), 18.0)
    assert found.exact == on_h100(seen(COVERED, *COUNTS, **VLLM)).exact


def test_of_a_plugin_that_does_not_tell_how_batch_began_no_prompt_tokens_are_believed() -> None:
    older = [row for row in BATCH if row.label("term") not in ("started_prompt_tokens", "cached_prompt_tokens")]
    assert on_h100(seen(COVERED, *COUNTS, *older, **VLLM)).prompt_tokens == 0.0
    waiting = [row for row in older if row.label("state")]
    assert on_h100(seen(COVERED, *COUNTS, *waiting, **VLLM)).prompt_tokens == 6200.0


def test_batch_requests_that_vllm_has_not_counted_yet_make_no_number_negative() -> None:
    found = on_h100(seen(COVERED, *COUNTS, *BATCH))
    assert (found.running, found.waiting, found.finished, found.ttft_count, found.prompt_length_sum) == (0.0,) * 5
    assert (found.prompt_tokens, found.cached_prompt_tokens) == (0.0, 0.0)
    assert found.batch > 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -9.0])
def test_a_number_of_batch_requests_that_makes_no_sense_changes_nothing(value: float) -> None:
    plain = on_h100(seen(COVERED, *COUNTS, **VLLM))
    rows = [sample(value, metric="batch_requests", state="running")]
    assert on_h100(seen(COVERED, *COUNTS, *rows, **VLLM)) == plain


def by_class(unfinished: float, done: float, name: str = "night", **more: str) -> list[Sample]:
    labels = {"class": name, **more}
    return [
        sample(unfinished, metric="unfinished", **labels),
        sample(done, metric="batch_requests_ended_total", **labels),
    ]


def test_batch_requests_are_counted_by_class() -> None:
    found = seen(
        COVERED,
        *BATCH,
        *by_class(9.0, 2.0),
        *by_class(0.0, 1.0, "rest"),
        *by_class(0.5, 0.0, holdfast_accelerator="l40s"),
    )
    assert found.batch.classes == (BatchClassTraffic("night", 9.5, 2.0), BatchClassTraffic("rest", 0.0, 1.0))
    assert found.batch.numbers[:5] == (3.0, 3000.0, 900.0, 5000.0, 4500.0)


def test_of_a_class_that_no_engine_tells_of_nothing_is_known() -> None:
    assert seen(COVERED, *COUNTS).batch == NO_BATCH
    assert seen(COVERED, *COUNTS, *by_class(-2.0, 0.0)).batch.classes == (BatchClassTraffic("night", 0.0, 0.0),)
    assert seen(COVERED, *COUNTS, *by_class(math.nan, 0.0)).batch.classes == ()


def limit(pod: str, name: str, value: float) -> Sample:
    return sample(value, metric="limit", pod=pod, name=name)


def test_each_engine_says_what_is_in_force() -> None:
    rows = [
        limit("chat-1", "version", 7.0),
        limit("chat-1", "active_sequences", 24.0),
        limit("chat-1", "tokens_per_step", 512.0),
        limit("chat-0", "tokens_per_step", 2048.0),
        sample(1.0, metric="mode", pod="chat-0", mode="waiting"),
        sample(1.0, metric="mode", pod="chat-2", mode="off"),
    ]
    assert seen(*rows).plugins == (
        EngineState("chat-0", PluginMode.WAITING, tokens_per_step=2048.0),
        EngineState("chat-1", PluginMode.ACTIVE, 7, 24.0, 512.0),
        EngineState("chat-2", PluginMode.OFF),
    )


def test_without_the_plugin_there_is_nothing_to_say() -> None:
    assert seen().plugins == ()


def test_of_two_engines_in_a_pod_the_one_that_is_off_is_told() -> None:
    modes = [sample(1.0, metric="mode", pod="chat-0", mode=mode) for mode in ("off", "waiting")]
    for rows in (modes, modes[::-1]):
        assert seen(*rows).plugins == (EngineState("chat-0", PluginMode.OFF),)


@given(st.lists(st.sampled_from(["version", "active_sequences", "tokens_per_step", "?"])), st.floats())
def test_whatever_the_limits_what_is_told_of_them_makes_sense(names: list[str], value: float) -> None:
    for state in seen(*(limit("chat-0", name, value) for name in names)).plugins:
        numbers = (state.limits_version, state.active_sequences, state.tokens_per_step)
        assert all(math.isfinite(number) and number >= 0 for number in numbers if number is not None)
