"""Native histograms in answers of Prometheus: every reader gets the counts that classic series would have given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.domain.signals import AcceleratorTraffic, SignalState
from holdfast.observe.series.histograms import Histogram, read_histogram, without_classic
from holdfast.observe.series.promql import EngineSelector
from holdfast.observe.series.queries import TPOT, TTFT
from holdfast.observe.series.samples import QueryError, Sample, parse_matrix, parse_vector
from holdfast.observe.signals import history, traffic
from holdfast.observe.signals.history import HistoryLevel
from holdfast.observe.signals.slow_queries import SlowSignals, lengths, quantiles
from holdfast.observe.signals.trials import read_trials
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, request, row, sample

TOLD: dict[str, Any] = {
    "count": "10",
    "sum": "7.5",
    "buckets": [[0, "-Inf", "0.1", "2"], [0, "0.25", "0.5", "7"], [0, "1", "+Inf", "1"]],
}
"""As Prometheus writes it: the empty buckets up to 0.25 and up to 1 are left out."""


def native(told: object = None, **labels: str) -> Sample:
    item = {"metric": sample(0.0, **labels).labels, "histogram": [NOW, TOLD if told is None else told]}
    return parse_vector([item])[0]


def counted(**rows: list[Sample]) -> AcceleratorTraffic:
    found = answers(**{"engines": [sample(NOW - 3, pod="chat-0")]} | rows)
    return dict(traffic.assemble([request()], found, SlowSignals(), WINDOW, NOW)[CHAT].by_accelerator)["h100"]


def classic(count: float, within: float) -> dict[str, list[Sample]]:
    bucket = sample(within, metric=f"{TTFT}_bucket", le="0.4")
    return {"requests": [sample(count, metric=f"{TTFT}_count")], "edges": [bucket]}


@pytest.mark.parametrize(
    ("limit", "within"),
    [(0.05, 0.0), (0.1, 2.0), (0.3, 2.0), (0.49, 2.0), (0.5, 9.0), (0.9, 9.0), (5.0, 9.0), (math.inf, 10.0)],
)
def test_the_largest_edge_within_the_objective_counts_whatever_buckets_are_empty(limit: float, within: float) -> None:
    assert read_histogram(TOLD).within(limit) == within


@pytest.mark.parametrize(
    "told",
    [
        None, 5, [], {}, {"count": "1"}, {"count": "x", "sum": "1"}, {"count": None, "sum": "1"},
        TOLD | {"buckets": 5}, TOLD | {"buckets": [5]}, TOLD | {"buckets": [[0, "1", "2"]]},
        TOLD | {"buckets": [[0, "x", "2", "1"]]}, TOLD | {"buckets": [[]]}, TOLD | {"count": 10**400},
    ],
)  # fmt: skip
def test_a_histogram_of_another_shape_is_an_error_with_a_message(told: object) -> None:
    item = {"metric": {}, "histogram": [NOW, told]}
    with pytest.raises(QueryError, match="histogram that cannot be read"):
        parse_vector([item])
    with pytest.raises(QueryError, match="histogram that cannot be read"):
        parse_matrix([{"metric": {}, "histograms": [[NOW, told]]}])


def test_native_histograms_give_the_counts_the_sums_and_the_requests_in_time() -> None:
    rows = [native(metric=name) for name in (TTFT, TPOT, "request_prompt_tokens", "request_generation_tokens")]
    seen = counted(tokens=rows)
    assert (seen.ttft_count, seen.ttft_within, seen.tpot_count, seen.tpot_within) == (10.0, 9.0, 10.0, 0.0)
    assert (seen.tpot_typical_seconds, seen.length_samples, seen.prompt_length_sum) == (0.75, 10.0, 7.5)
    assert seen.output_length_sum == 7.5


def test_engines_with_native_and_engines_with_classic_histograms_add_up() -> None:
    seen = counted(tokens=[native(metric=TTFT)], **classic(4.0, 3.0))
    assert (seen.ttft_count, seen.ttft_within) == (14.0, 12.0)


def test_buckets_whose_count_was_dropped_do_not_count_requests_of_native_histograms_twice() -> None:
    seen = counted(tokens=[native(metric=TTFT)], edges=classic(0.0, 9.0)["edges"])
    assert (seen.ttft_count, seen.ttft_within) == (10.0, 9.0)


def test_what_a_new_engine_missed_is_added_at_the_objective() -> None:
    missed = {"count": "3", "sum": "1", "buckets": [[0, "0.25", "0.4", "3"]]}
    seen = counted(tokens=[native(metric=TTFT)], newcomers=[native(missed, metric=TTFT)])
    assert (seen.ttft_count, seen.ttft_within) == (13.0, 12.0)


@pytest.mark.parametrize("nonsense", ["NaN", "+Inf", "-Inf"])
def test_a_native_histogram_that_is_no_number_is_invalid_and_not_counted(nonsense: str) -> None:
    for told in (TOLD | {"count": nonsense}, TOLD | {"buckets": [[0, "0", "1", nonsense]]}):
        found = answers(engines=[sample(NOW - 3, pod="chat-0")], tokens=[native(told, metric=TTFT)])
        seen = traffic.assemble([request()], found, SlowSignals(), WINDOW, NOW)[CHAT]
        assert (seen.state, seen.detail) == (SignalState.INVALID, f"NaN, infinite or negative: {TTFT}")
        assert dict(seen.by_accelerator)["h100"].ttft_count == 0.0


def test_the_busiest_replica_is_found_by_native_histograms_too() -> None:
    rows = [native(TOLD | {"count": count}, metric="begun_by_pod", pod=pod) for pod, count in (("a", 300), ("b", 100))]
    engines = [sample(NOW - 3, pod=pod) for pod in ("a", "b")]
    assert counted(requests=rows, engines=engines).busiest == pytest.approx(1.5)


def test_a_native_histogram_under_the_name_of_a_counter_harms_nobody() -> None:
    """An engine of a tenant can export any series."""
    names = ("request_success_total", "num_requests_running", "kv_usage", "?", "")
    seen = counted(requests=[native(metric=name) for name in names])
    assert (seen.finished, seen.running, seen.kv_usage) == (0.0, 0.0, 0.0)


def test_percentiles_and_lengths_are_those_of_classic_buckets() -> None:
    edges = {"0.1": 2.0, "0.25": 2.0, "0.5": 9.0, "1": 9.0, "+Inf": 10.0}
    rows = [sample(count, le=le) for le, count in edges.items()]
    assert quantiles([native()]) == quantiles(rows)
    assert lengths([native()])[CHAT].cumulative[-1] == 10.0
    old = [sample(1000.0, le=le) for le in edges]
    assert quantiles([*old, native()]) == quantiles(rows), "classic buckets of minutes ago are left out"


def test_trials_and_history_read_native_histograms() -> None:
    rows = [native(metric=TTFT, holdfast_revision="new"), native(metric=TPOT, holdfast_revision="new")]
    ((found,),) = read_trials(rows, {CHAT: SLO}).values()
    assert (found.ttft_count, found.ttft_within, found.tpot_count, found.tpot_within) == (10.0, 9.0, 10.0, 0.0)
    told = TOLD | {"buckets": [[0, "0", "0.02", "10"]]}
    series = [{"metric": row(0.0, metric=name)["metric"], "histograms": [[NOW, told]]} for name in (TTFT, TPOT)]
    series.append({"metric": row(0.0, metric="request_success_total")["metric"], "values": [[NOW, "10"]]})
    odd = {"metric": row(0.0, metric="request_success_total")["metric"], "histograms": [[NOW, TOLD]]}
    read = history.read(parse_matrix([*series, odd]), HistoryLevel(60.0, 60.0, 0.0), [request()])
    assert [(each.good, each.bad) for each in read[CHAT]] == [(10.0, 0.0)]


def test_engines_with_both_kinds_are_counted_by_the_classic_one() -> None:
    assert (
        without_classic(EngineSelector('a="b"'), "x", "45s")
        == 'increase(vllm:x{a="b"}[45s]) unless vllm:x_count{a="b"}'
    )


def test_a_histogram_without_observations_has_no_buckets() -> None:
    assert read_histogram({"count": 0, "sum": 0}) == Histogram(0.0, 0.0, (math.inf,), (0.0,))
