"""The text of the queries: what is asked for, and that no name can break out of its quotes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.service import ServiceKey
from holdfast.observe.adoption.adopted_metrics import targets
from holdfast.observe.series import histogram_edges, queries
from holdfast.observe.series.promql import OURS, EngineSelector, any_edge
from holdfast.observe.series.queries import Edges
from tests.observe.observe_builders import SLO, WINDOW


@pytest.mark.parametrize(
    ("tick", "scrape", "interval"), [(5.0, 15.0, 45.0), (5.0, 1.0, 6.0), (30.0, 15.0, 45.0), (60.0, 15.0, 75.0)]
)
def test_the_interval_is_whole_scrapes_and_spans_a_tick_between_samples(
    tick: float, scrape: float, interval: float
) -> None:
    assert queries.window(tick, scrape).interval_seconds == interval


def test_edges_are_the_objectives_and_what_lies_below_them() -> None:
    asked = histogram_edges.around([SLO, dataclasses.replace(SLO, ttft_seconds=0.45)])
    assert {0.25, 0.4, 0.45, 0.5} == set(asked.ttft)
    assert 0.03 in asked.tpot
    assert asked.e2e == ()


def test_an_objective_below_every_edge_is_asked_for_alone() -> None:
    assert histogram_edges.around([dataclasses.replace(SLO, ttft_seconds=0.0001)]).ttft == (0.0001,)


def test_the_number_of_edges_follows_the_distinct_objectives_not_the_services() -> None:
    assert histogram_edges.around([SLO] * 1000) == histogram_edges.around([SLO])


def test_each_service_is_asked_for_its_own_edges_where_few_sets_of_them_do_for_all() -> None:
    strict, lax = SLO, dataclasses.replace(SLO, ttft_seconds=2.0)
    other_window = dataclasses.replace(SLO, window_seconds=60.0)
    tiers = histogram_edges.tiers([("a", strict), ("b", lax), ("c", other_window)])
    assert [tier.names for tier in tiers] == [("a", "c"), ("b",)]
    query = queries.fast_queries(WINDOW, histogram_edges.around([strict, lax]), tiers)[2]
    asked = query.promql
    first, second = (asked[asked.index(f'holdfast_service=~"{names}"') :] for names in ("a|c", "b"))
    assert any_edge(tiers[0].edges.ttft) in first[:200]
    assert any_edge(tiers[1].edges.ttft) in second[:200]
    assert queries.narrowed(query, [ServiceKey("prod", "z")]).promql == asked


def test_a_name_that_stands_for_two_services_is_asked_for_the_edges_of_both() -> None:
    lax = dataclasses.replace(SLO, ttft_seconds=2.0)
    (tier,) = histogram_edges.tiers([("a", SLO), ("a", lax)])
    assert tier.edges == histogram_edges.around([SLO, lax])


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.2, 0.5, 1.0, 2.0])), max_size=12))
def test_tiers_ask_for_all_that_any_service_needs_and_name_it_once(objectives: list[tuple[str, float]]) -> None:
    slos = [(name, dataclasses.replace(SLO, ttft_seconds=seconds)) for name, seconds in objectives]
    tiers = histogram_edges.tiers(slos)
    names = [name for tier in tiers for name in tier.names]
    assert sorted(names) == sorted({name for name, _ in slos})
    for name, slo in slos:
        (tier,) = (tier for tier in tiers if name in tier.names)
        assert set(histogram_edges.around([slo]).ttft) <= set(tier.edges.ttft)


@pytest.mark.parametrize("most", [histogram_edges.MOST_TIERS + 1, 1000])
def test_where_objectives_are_many_all_are_asked_for_all_edges(most: int) -> None:
    many = [(f"s{each}", dataclasses.replace(SLO, ttft_seconds=0.1 + 0.003 * each)) for each in range(most)]
    assert histogram_edges.tiers(many) == ()


def test_plain_names_are_looked_up_without_a_regular_expression() -> None:
    assert EngineSelector().of(["my-chat-1", "b.c"]).matchers == 'holdfast_service=~"b\\\\.c|my-chat-1"'


def test_every_query_selects_only_series_that_carry_our_label() -> None:
    asked = histogram_edges.around([dataclasses.replace(SLO, e2e_seconds=10.0)])
    for query in (*queries.fast_queries(WINDOW, asked), *queries.slow_queries(), queries.history_query(60.0, asked)):
        lacking = len(re.findall(r'{\w+=""', query.promql))  # the ones that look for engines without
        named = sum(map(query.promql.count, ("vllm:", "holdfast:", "(holdfast_activator_")))
        assert named == query.promql.count(OURS) + lacking


def test_without_an_e2e_objective_its_counter_is_not_read() -> None:
    assert "e2e" not in queries.fast_queries(WINDOW, histogram_edges.around([SLO]))[0].promql


def test_edges_without_any_objective_ask_for_nothing_odd() -> None:
    assert all(query.promql for query in queries.fast_queries(WINDOW, histogram_edges.around([SLO])))
    assert Edges().by_family() == ()


@given(st.text(max_size=12))
def test_names_stay_inside_their_quotes(name: str) -> None:
    promql = queries.running_by_pod_query([ServiceKey(name, "chat")]).promql
    quoted = promql.replace("\\\\", "").replace('\\"', "")
    assert quoted.count('"') % 2 == 0


@given(st.text("ab.-", min_size=1, max_size=20))
@example("dep.v2")
def test_no_name_of_a_target_is_an_escape_that_prometheus_refuses(name: str) -> None:
    """Only a backslash and a quote may follow a backslash here; others, such as a dot, fail the whole query."""
    asked = (*queries.fast_queries(WINDOW, Edges(ttft=(0.5,))), *queries.slow_queries())
    for query in asked:
        written = dataclasses.replace(query, engines=targets([ServiceKey("prod", name)])).promql
        assert not re.search(r'\\(?!["\\])', written.replace("\\\\", ""))
