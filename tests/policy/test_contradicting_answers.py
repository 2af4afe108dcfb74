"""Counts and buckets from two Prometheus replicas that scrape at different times: no late request, and none is seen."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import Decision
from holdfast.domain.engine import ExactCounts
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import Seen, judge
from holdfast.policy.decide import decide
from holdfast.policy.estimate.contradictions import (
    DOUBTED_SECONDS,
    believed,
    contradicts,
    last_contradiction,
)
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, condition, node, replicas, service, traffic
from tests.policy.fluid import FixedRates

INTERVAL, SCRAPE, TICK = 45.0, 15.0, 5.0


def counts(count: float = 90.0, within: float = 90.0, **more: float) -> AcceleratorTraffic:
    return AcceleratorTraffic(finished=count, ttft_count=count, ttft_within=within, engines=1, **more)


def seen(traffic: AcceleratorTraffic) -> Seen:
    return judge(Traffic(SignalState.FRESH, "", INTERVAL, 1.0, (("h100", traffic),)))


@pytest.mark.parametrize("which", ["ttft", "tpot", "e2e"])
def test_more_requests_in_time_than_there_were_are_a_contradiction(which: str) -> None:
    assert contradicts(replace(counts(), **{f"{which}_count": 90.0, f"{which}_within": 91.0}))
    assert not contradicts(replace(counts(), **{f"{which}_count": 90.0, f"{which}_within": 90.0 + 1e-9}))
    assert not contradicts(replace(counts(), **{f"{which}_count": 90.0, f"{which}_within": 0.0}))


def test_what_plugins_count_is_believed() -> None:
    exact = ExactCounts(arrived=90.0, good=90.0, engines=1)
    assert not contradicts(replace(counts(within=95.0), exact=exact))


def test_answers_are_doubted_until_none_contradicts_another_for_two_minutes() -> None:
    bad, good = seen(counts(within=95.0)), seen(counts(within=80.0))
    at = last_contradiction(None, bad, NOW)
    assert at == NOW
    assert last_contradiction(at, good, NOW + DOUBTED_SECONDS - 1.0) == NOW
    assert last_contradiction(at, good, NOW + DOUBTED_SECONDS) is None
    assert last_contradiction(at, good, NOW - 60.0) is None, "the clock was set back"
    assert last_contradiction(at, bad, NOW + 60.0) == NOW + 60.0


def test_requests_of_doubted_answers_are_not_judged_and_still_arrive() -> None:
    doubted = believed(seen(counts(within=80.0)), NOW)
    assert (doubted.countable, doubted.fresh, doubted.state) == (False, False, SignalState.INCOMPLETE)
    assert doubted.arrived == 90.0
    assert "sessionAffinity" in doubted.detail


@pytest.mark.parametrize("state", [SignalState.STALE, SignalState.UNREACHABLE, SignalState.INVALID])
def test_a_worse_state_keeps_its_reason(state: SignalState) -> None:
    worse = replace(seen(counts()), state=state)
    assert believed(worse, NOW) is worse


def gained(times: list[float], phase: float, at: float, lost: set[int], whole: bool) -> float:
    """What one replica answers to increase(): samples at its phase, some of them lost; MetricsQL counts whole."""
    first = int((at - INTERVAL - phase) // SCRAPE)
    samples = [phase + SCRAPE * k for k in range(first, first + 6) if k not in lost and phase + SCRAPE * k <= at]
    inside = [sample for sample in samples if sample > at - INTERVAL]
    if whole:
        before = [sample for sample in samples if sample <= at - INTERVAL]
        ends = (max(before, default=inside[0] if inside else at), inside[-1] if inside else at)
        return float(bisect.bisect_right(times, ends[1]) - bisect.bisect_right(times, ends[0])) if inside else 0.0
    if len(inside) < 2:
        return 0.0
    span = inside[-1] - inside[0]
    mean, got = span / (len(inside) - 1), bisect.bisect_right(times, inside[-1]) - bisect.bisect_right(times, inside[0])
    ends = (inside[0] - (at - INTERVAL), at - inside[-1])
    return got * (span + sum(each if each < 1.1 * mean else mean / 2.0 for each in ends)) / span


def played(rate: float, phases: tuple[float, float], mixed: bool, lost: set[int], whole: bool, seed: int) -> Decision:
    """The decision after an hour of Poisson arrivals, all in time; `mixed`: either replica answers for the buckets."""
    random = Random(seed)
    gaps = (random.expovariate(rate) for _ in itertools.count())
    times = list(itertools.takewhile(lambda at: at < NOW + 3700.0, itertools.accumulate(gaps, initial=NOW - 600.0)))
    memory, size = Memory(), 2
    for tick in range(int(3600.0 / TICK)):
        now = NOW + TICK * tick
        own = random.choice(phases)
        other = random.choice(phases) if mixed else own
        count, within = (gained(times, NOW % SCRAPE + phase, now, lost, whole) for phase in (own, other))
        usual = traffic(rate, seconds=INTERVAL)
        ((name, each),) = usual.by_accelerator
        each = replace(each, finished=count, ttft_count=count, ttft_within=within, length_samples=count)
        each = replace(each, tpot_count=count, tpot_within=within, e2e_count=count, e2e_within=count)
        view = ServiceView(
            service().with_replicas_between(1, 10),
            replace(usual, by_accelerator=((name, each),)),
            replicas(size, now=now),
            (Placement("h100", size, workload=Workload("chat-h100")),),
            born_at=NOW - 9000.0,
        )
        nodes = (node("n", 20, used=size),)
        (decision,), memory = decide(
            a_snapshot(view, now=now, nodes=nodes, scrape=SCRAPE), memory, model=FixedRates({"h100": 8.9})
        )
        size = {each.accelerator: each.replicas for each in decision.verdict.targets}["h100"]
    return decision


@settings(max_examples=4, deadline=None)
@given(
    rate=st.floats(1.0, 12.0),
    phase=st.floats(0.5, 14.5),
    mixed=st.booleans(),
    lost=st.sets(st.integers(0, 10**9), max_size=0) | st.just({int(NOW // SCRAPE) + k for k in range(30, 200, 17)}),
    whole=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_no_request_is_missed_that_was_in_time_whichever_replica_answers(
    rate: float, phase: float, mixed: bool, lost: set[int], whole: bool, seed: int
) -> None:
    decision = played(rate, (0.0, phase), mixed, lost, whole, seed)
    assert condition(decision, "SLOMet")[0] is not False
    assert {each.accelerator: each.replicas for each in decision.verdict.targets}["h100"] <= 4


def test_mixed_answers_are_said_to_contradict_each_other() -> None:
    mixed = played(10.0, (0.0, 7.0), True, set(), False, 1)
    assert condition(mixed, "SLOMet") == (None, "MetricsPartial")
    assert condition(mixed, "MetricsAvailable") == (False, "MetricsPartial")
    alone = played(10.0, (0.0, 7.0), False, set(), False, 1)
    assert condition(alone, "SLOMet")[0] is True
