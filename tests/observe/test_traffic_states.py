"""How far the rows of one tick can be believed: each state, and that nothing depends on the order of rows."""

from __future__ import annotations

import dataclasses
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import AcceleratorTraffic, LatencyQuantiles, SignalState, Traffic
from holdfast.observe.series.needed_series import Stored, stored_series
from holdfast.observe.series.newcomers import newcomer_query
from holdfast.observe.series.queries import Edges
from holdfast.observe.series.samples import QueryResult, Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from holdfast.observe.signals.traffic import TrafficRequest
from tests.observe.observe_builders import CHAT, FAST, NOW, SLO, WINDOW, answers, ready, request, sample

ENGINE = sample(NOW - 3, pod="chat-0")


def unlabelled(**labels: str) -> Sample:
    return Sample({"metric": "unlabelled"} | labels, 1.0)


def judged(*replicas: Replica, slow: SlowSignals | None = None, **rows: list[Sample]) -> Traffic:
    found = traffic.assemble([request(*replicas)], answers(**rows), slow or SlowSignals(), WINDOW, NOW)
    return found[CHAT]


def reporting(*pods: str) -> list[Sample]:
    return [sample(NOW - 3, pod=pod) for pod in pods]


def on_h100(seen: Traffic) -> AcceleratorTraffic:
    return dict(seen.by_accelerator)["h100"]


def test_an_idle_engine_is_fresh_and_counts_nothing() -> None:
    seen = judged(ready("chat-0"), engines=[ENGINE])
    assert seen.fresh
    assert on_h100(seen) == AcceleratorTraffic(engines=1)
    assert seen.sample_age_seconds == 3.0


def test_nothing_at_all_is_absent() -> None:
    seen = judged(ready("chat-0"))
    assert (seen.state, seen.by_accelerator, seen.sample_age_seconds) == (SignalState.ABSENT, (), None)
    assert "check that its pods are scraped" in seen.detail


def test_before_the_first_replica_is_ready_absence_says_so() -> None:
    starting = Replica("chat-0", "h100", ReplicaPhase.STARTING, created_at=NOW - 30)
    assert judged(starting).detail == "no replica is ready yet"


def test_absence_asks_for_no_scrape_of_a_replica_that_is_only_just_ready() -> None:
    assert "became ready just now" in judged(ready("chat-0", at=NOW - 1)).detail


def test_other_peoples_engines_in_the_namespace_are_no_hint_while_ours_report() -> None:
    assert judged(ready("chat-0"), engines=[ENGINE], anomalies=[unlabelled(namespace="prod")]).fresh


def test_absence_names_the_missing_label_where_engines_of_the_namespace_lack_it() -> None:
    seen = judged(ready("chat-0"), anomalies=[unlabelled(namespace="prod")])
    assert seen.state is SignalState.ABSENT
    assert "holdfast_service and holdfast_accelerator" in seen.detail


@pytest.mark.parametrize("labels", [{"namespace": "elsewhere"}, {"namespace": "prod", "holdfast_service": "other"}])
def test_engines_of_others_do_not_explain_absence(labels: dict[str, str]) -> None:
    assert "label" not in judged(ready("chat-0"), anomalies=[unlabelled(**labels)]).detail


def test_a_replica_that_became_ready_just_now_is_not_missed_yet() -> None:
    assert judged(ready("chat-0"), ready("chat-1", at=NOW - 30), engines=[ENGINE]).fresh


def test_a_draining_engine_that_reports_does_not_stand_in_for_a_ready_one_that_does_not() -> None:
    draining = Replica("old", "h100", ReplicaPhase.DRAINING, created_at=0.0)
    seen = judged(ready("chat-0"), draining, engines=[sample(NOW - 3, pod="old")])
    assert (seen.state, seen.detail) == (SignalState.PARTIAL, "1 of 1 ready replica reports no metrics: chat-0")


def test_one_stale_engine_among_fresh_ones_is_partial() -> None:
    seen = judged(ready("chat-0"), ready("chat-1"), engines=[ENGINE, sample(NOW - 50, pod="chat-1")])
    assert seen.state is SignalState.PARTIAL
    assert on_h100(seen).engines == 1


@pytest.mark.parametrize(("age", "state"), [(45.0, SignalState.FRESH), (46.0, SignalState.STALE)])
def test_stale_begins_after_three_scrapes(age: float, state: SignalState) -> None:
    assert judged(engines=[sample(NOW - age, pod="chat-0")]).state is state


def test_a_sample_from_the_future_is_of_age_zero() -> None:
    assert judged(engines=[sample(NOW + 2, pod="chat-0")]).sample_age_seconds == 0.0


def test_duplicates_are_named_and_divided_out() -> None:
    seen = judged(
        engines=[ENGINE],
        anomalies=[sample(2.0, metric="copies", pod="chat-0")],
        requests=[sample(90.0, metric="request_success_total", finished_reason="stop")],
        gauges=[sample(8.0, metric="num_requests_running"), sample(0.5, metric="kv_usage")],
        edges=[sample(40.0, metric="time_to_first_token_seconds_bucket", le="0.5")],
    )
    assert seen.state is SignalState.DUPLICATE
    values = on_h100(seen)
    assert (values.finished, values.running, values.kv_usage, values.ttft_within) == (45.0, 4.0, 0.5, 20.0)


def test_what_a_newborn_engine_missed_is_added() -> None:
    found = answers(
        engines=[ENGINE],
        requests=[sample(10.0, metric="request_success_total", finished_reason="stop")],
        edges=[sample(10.0, metric="time_to_first_token_seconds_bucket", le="0.5")],
        newcomers=[
            sample(7.0, metric="request_success_total", finished_reason="stop"),
            sample(5.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
            sample(-20.0, metric="prompt_tokens_total"),
        ],
    )
    seen = on_h100(traffic.assemble([request()], found, SlowSignals(), WINDOW, NOW)[CHAT])
    assert (seen.finished, seen.ttft_within, seen.prompt_tokens) == (17.0, 15.0, 0.0)


def test_only_some_engines_scraped_twice_weigh_as_they_are() -> None:
    seen = judged(
        engines=[ENGINE, sample(NOW - 3, pod="chat-1")],
        anomalies=[sample(2.0, metric="copies", pod="chat-0")],
        gauges=[sample(30.0, metric="num_requests_running")],
    )
    assert on_h100(seen).running == 20.0


def test_engines_without_a_past_are_new_or_incomplete() -> None:
    pods = {"new": NOW - 20, "late": NOW - 500, "odd": math.nan, "silent": None}
    anomalies = [sample(1.0, metric="newcomer", pod=pod) for pod in pods]
    assert traffic.newcomers(QueryResult((*anomalies, sample(1.0, metric="gappy", pod="x")))) == ({"prod"}, set(pods))
    born = [sample(birth, metric="born", pod=pod) for pod, birth in pods.items() if birth is not None]
    seen = judged(*map(ready, pods), engines=reporting(*pods), anomalies=anomalies, newcomers=born)
    assert seen.state is SignalState.PARTIAL
    assert seen.detail.endswith("late, odd, silent")
    assert judged(ready("new"), engines=reporting("new"), anomalies=anomalies[:1], newcomers=born[:1]).fresh


def test_an_engine_with_a_gap_is_incomplete() -> None:
    seen = judged(ready("chat-0"), engines=[ENGINE], anomalies=[sample(1.0, metric="gappy", pod="chat-0")])
    assert (seen.state, seen.detail.rsplit(" ", 1)[1]) == (SignalState.PARTIAL, "chat-0")


def test_an_engine_that_has_gone_leaves_no_gap_to_wait_for() -> None:
    assert judged(ready("chat-0"), engines=[ENGINE], anomalies=[sample(1.0, metric="gappy", pod="chat-1")]).fresh


def test_the_largest_edge_within_the_objective_counts() -> None:
    edges = [
        sample(count, metric="time_to_first_token_seconds_bucket", le=le)
        for le, count in {"0.4": 3.0, "0.5": 5.0, "0.6": 9.0, "+Inf": 10.0}.items()
    ]
    assert on_h100(judged(engines=[ENGINE], edges=edges)).ttft_within == 5.0


def test_pods_without_the_exact_edge_do_not_hide_those_with_a_smaller_one() -> None:
    edges = [
        sample(8.0, metric="time_to_first_token_seconds_bucket", le="0.4"),
        sample(2.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
    ]
    assert on_h100(judged(engines=[ENGINE], edges=edges)).ttft_within == 8.0


def test_e2e_bounds_only_where_it_is_declared() -> None:
    rows = [sample(10.0, metric="e2e_request_latency_seconds_count")]
    edges = [sample(4.0, metric="e2e_request_latency_seconds_bucket", le="10.0")]
    assert on_h100(judged(engines=[ENGINE], requests=rows, edges=edges)).e2e_within == 10.0
    bounded = TrafficRequest(CHAT, dataclasses.replace(SLO, e2e_seconds=10.0))
    found = traffic.assemble(
        [bounded], answers(engines=[ENGINE], requests=rows, edges=edges), SlowSignals(), WINDOW, NOW
    )
    assert on_h100(found[CHAT]).e2e_within == 4.0


def test_slow_signals_are_laid_beside() -> None:
    ttft = LatencyQuantiles(0.1, 0.2, 0.3)
    assert judged(engines=[ENGINE], slow=SlowSignals(ttft={CHAT: ttft})).ttft == ttft


@pytest.mark.parametrize("rows", [[], [ENGINE]], ids=["an engine too new to be seen", "an engine that is seen late"])
def test_samples_from_the_future_are_a_state_of_their_own(rows: list[Sample]) -> None:
    seen = judged(engines=rows, slow=SlowSignals(ahead_seconds={CHAT: 39.6}))
    assert seen.state is SignalState.SKEWED
    assert "40 s in the future" in seen.detail
    assert "NTP" in seen.detail


def test_a_scrape_between_question_and_answer_is_no_skew() -> None:
    assert judged(engines=[ENGINE], slow=SlowSignals(ahead_seconds={CHAT: 9.0})).state is SignalState.FRESH


AT_WORK = [  # of this service the plugins' counts are taken, if they make sense
    sample(3.0, metric="covered"),
    sample(1.0, metric="objective", name="ttft_seconds", seconds="0.5"),
    sample(1.0, metric="objective", name="tpot_seconds", seconds="0.03"),
]

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, -1.0, 1e308, 1e-308, NOW, NOW - 3])
)
labels = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.sampled_from(["prod", "", "test"]),
        "holdfast_service": st.sampled_from(["chat", "other", ""]),
        "holdfast_accelerator": st.sampled_from(["h100", "l40s", ""]),
        "pod": st.sampled_from(["chat-0", "chat-1", ""]),
        "instance": st.sampled_from(["a", ""]),
        "finished_reason": st.sampled_from(["stop", "abort", "error", "?"]),
        "le": st.sampled_from(["0.5", "+Inf", "NaN", "x", ""]),
        "metric": st.sampled_from(
            [
                "request_success_total",
                "time_to_first_token_seconds_bucket",
                "time_to_first_token_seconds_count",
                "num_requests_running_growth",
                "num_requests_running",
                "kv_usage",
                "copies",
                "newcomer",
                "born",
                "unlabelled",
                "requests_arrived_total",
                "requests_bad_total",
                "requests_waiting_late",
                "batch_requests",
                "batch_sums_total",
                "batch_requests_ended_total",
                "unfinished",
                "covered",
                "limit",
                "mode",
                "?",
            ]
        ),
        "state": st.sampled_from(["running", "waiting", "?"]),
        "class": st.sampled_from(["night", "?", ""]),
        "term": st.sampled_from(["started", "done", "started_prompt_tokens", "cached_prompt_tokens", "?"]),
        "cause": st.sampled_from(["ttft", "rejected", "?"]),
        "name": st.sampled_from(["version", "tokens_per_step", "?"]),
        "mode": st.sampled_from(["off", "waiting", "?"]),
    },
)
rows = st.lists(st.builds(Sample, labels, numbers), max_size=6)
tables = st.fixed_dictionaries({name: rows for name in (*FAST, "newcomers")})


@pytest.mark.slow
@given(tables, st.randoms(use_true_random=False))
def test_whatever_the_rows_no_number_is_nonsense_and_order_does_not_matter(
    table: dict[str, list[Sample]], shuffler: random.Random
) -> None:
    requests = [request(ready("chat-0")), request(key=ServiceKey("test", "other"))]
    table["plugins"] = [*table["plugins"], *AT_WORK]
    found = traffic.assemble(requests, answers(**table), SlowSignals(), WINDOW, NOW)
    for seen in found.values():
        for name, values in seen.by_accelerator:
            assert name
            told = dataclasses.asdict(values)
            for field, value in (told | (told.pop("exact") or {})).items():
                assert math.isfinite(value), field
                assert value >= 0.0 or field == "in_flight_growth", field
    shuffled = {name: shuffler.sample(some, len(some)) for name, some in table.items()}
    again = traffic.assemble(requests, answers(**shuffled), SlowSignals(), WINDOW, NOW)
    assert {key: seen.state for key, seen in again.items()} == {key: seen.state for key, seen in found.items()}


@pytest.mark.slow
@given(tables)
def test_fresh_means_that_every_engine_reported_lately(table: dict[str, list[Sample]]) -> None:
    seen = traffic.assemble([request(ready("chat-0"))], answers(**table), SlowSignals(), WINDOW, NOW)[CHAT]
    if seen.fresh:
        assert seen.sample_age_seconds is not None
        assert seen.sample_age_seconds <= WINDOW.stale_seconds
        assert on_h100(seen).engines >= 1


def test_the_query_about_newcomers_stays_small_however_many_there_are() -> None:
    anomalies = QueryResult(tuple(sample(1.0, metric="newcomer", pod=f"chat-{number:05}") for number in range(20_000)))
    namespaces, pods = traffic.newcomers(anomalies)
    edges = Edges(ttft=(0.5, 1.0), tpot=(0.03, 0.04), e2e=(30.0,))
    assert len(pods) == traffic.MOST_NEWCOMERS
    assert len(newcomer_query(WINDOW, edges, namespaces, pods).promql) < 300_000


def test_new_series_that_are_told_apart_by_the_label_that_names_metrics_are_not_asked_for() -> None:
    promql = newcomer_query(WINDOW, Edges(ttft=(0.5,)), {"prod"}, {"chat-0"}).promql
    selectors = re.findall(r"[a-z]+:[a-z_]+\{([^}]*)\}", promql)
    assert selectors
    assert all('metric=""' in selector for selector in selectors)


@pytest.mark.parametrize(
    ("begun", "most", "busiest"),
    [(400.0, 200.0, 2.0), (400.0, 110.0, 1.0), (0.0, 0.0, 0.0), (2.0, 1.0, 1.0)],
    ids=["half of all on one of four", "chance", "nothing begun", "too few to say"],
)
def test_the_busiest_of_four_replicas_is_told_from_chance(begun: float, most: float, busiest: float) -> None:
    seen = judged(
        engines=[sample(NOW - 3, pod=f"chat-{index}") for index in range(4)],
        requests=[sample(value, metric=name) for name, value in (("begun", begun), ("most_begun", most)) if value],
    )
    assert on_h100(seen).busiest == pytest.approx(busiest)


# -- series that are missing are not zero

HISTOGRAMS = ("time_to_first_token_seconds", "request_time_per_output_token_seconds")
LENGTHS = ("request_prompt_tokens", "request_generation_tokens")
CLASSIC = tuple(f"{family}_{part}" for family in (*HISTOGRAMS, *LENGTHS) for part in ("count", "sum", "bucket"))


def stored(*lacking: str, names: tuple[str, ...] = CLASSIC, engines: float = 0.0) -> dict[ServiceKey, Stored]:
    """What Prometheus stores of two engines; so many of them have the series whose name holds one of these words."""
    rows = [sample(2.0, __name__="vllm:num_requests_running")]
    for name in ("request_success_total", *names):
        many = engines if any(word in name for word in lacking) else 2.0
        rows += [sample(many, __name__=f"vllm:{name}")] if many else []
    return stored_series(rows)


def seen_with(found: dict[ServiceKey, Stored], slo: Slo = SLO, **rows: list[Sample]) -> Traffic:
    asked, told = [request(ready("chat-0"), slo=slo)], answers(**{"engines": [ENGINE]} | rows)
    return traffic.assemble(asked, told, SlowSignals(series=found), WINDOW, NOW)[CHAT]


def test_an_engine_that_has_all_series_and_counts_nothing_is_fresh() -> None:
    assert seen_with(stored()).fresh
    older = tuple(name.replace(HISTOGRAMS[1], "time_per_output_token_seconds") for name in CLASSIC)
    assert seen_with(stored(names=older)).fresh


def test_an_engine_that_generates_tokens_and_finishes_nothing_in_the_interval_lacks_no_series() -> None:
    assert seen_with(stored(), tokens=[sample(1350.0, metric="generation_tokens_total")]).fresh


def test_native_histograms_stand_for_all_series_of_classic_ones() -> None:
    assert seen_with(stored(names=(*HISTOGRAMS, *LENGTHS))).fresh


@pytest.mark.parametrize(
    ("lacking", "named"),
    [
        ("_bucket", "vllm:time_to_first_token_seconds_bucket, vllm:request_time_per_output_token_seconds_bucket;"),
        ("time_to_first_token", "vllm:time_to_first_token_seconds_count, vllm:time_to_first_token_seconds_bucket;"),
        ("time_per_output_token_seconds_bucket", "vllm:request_time_per_output_token_seconds_bucket;"),
        ("request_success", "vllm:request_success_total;"),
    ],
)
@pytest.mark.parametrize("engines", [0.0, 1.0], ids=["no engine", "one of two engines"])
def test_missing_series_that_judge_requests_are_named_and_no_verdict_is_made(
    lacking: str, named: str, engines: float
) -> None:
    """Case C11."""
    seen = seen_with(stored(lacking, engines=engines))
    assert seen.state is SignalState.INCOMPLETE
    assert f"have {named}" in seen.detail


def test_missing_lengths_leave_the_verdicts_and_are_named() -> None:
    seen = seen_with(stored("request_prompt_tokens"))
    assert (seen.state, "vllm:request_prompt_tokens_count" in seen.detail) == (SignalState.PARTIAL, True)


def test_an_end_to_end_objective_needs_its_histogram() -> None:
    seen = seen_with(stored(), dataclasses.replace(SLO, e2e_seconds=20.0))
    assert (seen.state, "vllm:e2e_request_latency_seconds_count" in seen.detail) == (SignalState.INCOMPLETE, True)


def test_while_it_is_unknown_what_is_stored_nothing_is_missed() -> None:
    assert seen_with({}).fresh
