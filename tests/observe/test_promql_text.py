"""The text of the queries: what is asked for, and that no name can break out of its quotes."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import ServiceKey
from holdfast.observe import edges, queries
from holdfast.observe.queries import OURS, Edges
from tests.observe.observe_builders import SLO, WINDOW


@pytest.mark.parametrize(
    ("tick", "scrape", "interval"), [(5.0, 15.0, 45.0), (5.0, 1.0, 6.0), (30.0, 15.0, 45.0), (60.0, 15.0, 75.0)]
)
def test_the_interval_is_whole_scrapes_and_spans_a_tick_between_samples(
    tick: float, scrape: float, interval: float
) -> None:
    assert queries.window(tick, scrape).interval_seconds == interval


def test_edges_are_the_objectives_and_what_lies_below_them() -> None:
    asked = edges.around([SLO, dataclasses.replace(SLO, ttft_seconds=0.45)])
    assert {0.25, 0.4, 0.45, 0.5} == set(asked.ttft)
    assert 0.03 in asked.tpot
    assert asked.e2e == ()


def test_an_objective_below_every_edge_is_asked_for_alone() -> None:
    assert edges.around([dataclasses.replace(SLO, ttft_seconds=0.0001)]).ttft == (0.0001,)


def test_the_number_of_edges_follows_the_distinct_objectives_not_the_services() -> None:
    assert edges.around([SLO] * 1000) == edges.around([SLO])


def test_every_query_selects_only_series_that_carry_our_label() -> None:
    asked = edges.around([dataclasses.replace(SLO, e2e_seconds=10.0)])
    for query in (*queries.fast_queries(WINDOW, asked), *queries.slow_queries(), queries.history_query(60.0, asked)):
        lacking = len(re.findall(r'{\w+=""', query.promql))  # the ones that look for engines without
        assert query.promql.count("vllm:") + query.promql.count("holdfast:") == query.promql.count(OURS) + lacking


def test_without_an_e2e_objective_its_counter_is_not_read() -> None:
    assert "e2e" not in queries.fast_queries(WINDOW, edges.around([SLO]))[0].promql


def test_edges_without_any_objective_ask_for_nothing_odd() -> None:
    assert all(query.promql for query in queries.fast_queries(WINDOW, edges.around([SLO])))
    assert Edges().by_family() == ()


@given(st.text(max_size=12))
def test_names_stay_inside_their_quotes(name: str) -> None:
    promql = queries.running_by_pod_query([ServiceKey(name, "chat")]).promql
    quoted = promql.replace("\\\\", "").replace('\\"', "")
    assert quoted.count('"') % 2 == 0
