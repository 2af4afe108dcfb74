"""Why requests were not good: as plugins judged them, else as far as vLLM's own counters tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.decision import BadByCause
from holdfast.domain.engine import ExactCounts
from holdfast.domain.service import Slo
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import bad_by_cause, judge

SLO = Slo(0.5, 0.03, 0.99, 3600.0)
END_TO_END = replace(SLO, e2e_seconds=20.0)
COUNTS = AcceleratorTraffic(
    finished=90.0,
    failed=4.5,
    rejected=9.0,
    ttft_count=90.0,
    ttft_within=81.0,
    tpot_count=90.0,
    tpot_within=63.0,
    e2e_count=90.0,
    e2e_within=88.0,
)
EXACT = ExactCounts(arrived=90.0, good=45.0, bad_ttft=4.5, bad_tpot=9.0, bad_e2e=13.5, bad_rejected=18.0, engines=1)


def told(
    *counts: AcceleratorTraffic, slo: Slo = SLO, state: SignalState = SignalState.FRESH, interval: float = 45.0
) -> BadByCause | None:
    by_accelerator = tuple((f"gpu-{number}", each) for number, each in enumerate(counts))
    return bad_by_cause(judge(Traffic(state, "", interval, 5.0, by_accelerator)), slo)


def test_without_the_plugin_who_missed_two_objectives_counts_at_both() -> None:
    found = told(COUNTS, slo=END_TO_END)
    assert found == BadByCause(0.2, 0.6, pytest.approx(2 / 45), 0.2, 0.1, exact=False)


def test_where_every_engine_has_the_plugin_each_bad_request_counts_once() -> None:
    found = told(replace(COUNTS, exact=EXACT), slo=END_TO_END)
    assert found == BadByCause(0.1, 0.2, 0.3, 0.4, 0.0, exact=True)


def test_one_accelerator_without_the_plugin_makes_the_whole_inexact() -> None:
    found = told(replace(COUNTS, exact=EXACT), COUNTS, slo=END_TO_END)
    assert found is not None
    assert not found.exact
    assert found.tpot_rps == pytest.approx(1.2)


@pytest.mark.parametrize("counts", [COUNTS, replace(COUNTS, exact=EXACT)])
def test_a_service_without_an_end_to_end_objective_has_no_such_cause(counts: AcceleratorTraffic) -> None:
    found = told(counts)
    assert found is not None
    assert found.e2e_rps is None


@pytest.mark.parametrize(
    "state", [SignalState.ABSENT, SignalState.UNREACHABLE, SignalState.STALE, SignalState.SKEWED, SignalState.INVALID]
)
def test_what_cannot_be_believed_is_not_known_and_never_zero(state: SignalState) -> None:
    assert told(COUNTS, state=state) is None


@pytest.mark.parametrize("broken", [{"failed": float("nan")}, {"rejected": -1.0}, {"ttft_count": float("inf")}])
def test_counts_that_make_no_sense_are_not_known(broken: dict[str, Any]) -> None:
    assert told(replace(COUNTS, **broken)) is None


@pytest.mark.parametrize("counts", [(), (COUNTS,)])
def test_without_anything_seen_or_an_interval_nothing_is_known(counts: tuple[AcceleratorTraffic, ...]) -> None:
    assert told(*counts, interval=0.0) is None


def test_a_service_that_nobody_asks_has_nothing_bad() -> None:
    assert told(AcceleratorTraffic(engines=1)) == BadByCause(0.0, 0.0, None, 0.0, 0.0)


@given(st.lists(st.floats(0.0, 1e9), min_size=8, max_size=8))
def test_no_rate_is_negative_whatever_the_histograms_say(values: list[float]) -> None:
    names = ("failed", "rejected", "ttft_count", "ttft_within", "tpot_count", "tpot_within", "e2e_count", "e2e_within")
    found = told(AcceleratorTraffic(**dict(zip(names, values, strict=True))), slo=END_TO_END)  # type: ignore[arg-type]
    assert found is not None
    assert found.e2e_rps is not None
    assert min(found.ttft_rps, found.tpot_rps, found.e2e_rps, found.rejected_rps, found.error_rps) >= 0.0
