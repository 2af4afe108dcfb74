"""NaN, infinite, negative, zero and huge numbers, and contradictions: never a crash, never a step down."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import ClusterProblem, Placement, ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import AcceleratorTraffic, History, LengthHistogram, RateSample, SignalState, Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.domain.valid_traffic import NAMES
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, accelerator, counts, node, replicas, service, traffic
from tests.policy.fluid import FixedRates

ABSURD = (math.nan, math.inf, -math.inf, -1.0, -1e300, 1e300)
EVERY_FIELD = [
    *itertools.product(NAMES, ABSURD),
    *(("in_flight_growth", value) for value in ABSURD if value != -1.0),  # a gauge may fall
]
CHAT = service().with_replicas_between(1, 20)


def look(seen: Traffic, now: float = NOW) -> Snapshot:
    return a_snapshot(ServiceView(CHAT, seen, replicas(6)), now=now)


def run(seen: list[Traffic]) -> list[Decision]:
    """One decision every five seconds."""
    memory, decisions = Memory(), []
    for index, traffic_seen in enumerate(seen):
        (decision,), memory = decide(look(traffic_seen, NOW + 5.0 * index), memory)
        decisions.append(decision)
    return decisions


def lowered(decisions: list[Decision]) -> list[Decision]:
    return [decision for decision in decisions if decision.verdict.replicas < 6]


@pytest.mark.parametrize(("field", "value"), EVERY_FIELD)
def test_one_absurd_number_makes_the_picture_invalid_and_holds_the_size(field: str, value: float) -> None:
    broken = Traffic(SignalState.FRESH, "", 10.0, 1.0, (("h100", replace(counts(0.5), **{field: value})),))
    decisions = run([traffic(0.5)] * 3 + [broken] * 60)
    assert lowered(decisions) == []
    last = decisions[-1]
    assert last.verdict.action is Action.HOLD
    assert any(c.type == "MetricsAvailable" and c.status is False for c in last.conditions)


@pytest.mark.parametrize("interval", [0.0, *ABSURD])
def test_counts_without_a_sensible_interval_hold_the_size(interval: float) -> None:
    decisions = run([replace(traffic(0.1), interval_seconds=interval)] * 60)
    assert lowered(decisions) == []


def test_nothing_at_all_for_long_is_no_load_only_where_it_is_fresh() -> None:
    silent = Traffic(SignalState.FRESH, "", 10.0, 1.0, (("h100", AcceleratorTraffic(engines=6)),))
    assert run([silent] * 80)[-1].verdict.replicas == 1
    for state in SignalState:
        if state is not SignalState.FRESH:
            assert lowered(run([replace(silent, state=state)] * 80)) == []


@given(
    st.lists(
        st.builds(
            Traffic,
            state=st.sampled_from([state for state in SignalState if state is not SignalState.FRESH]),
            interval_seconds=st.floats(),
            by_accelerator=st.lists(
                st.tuples(
                    st.sampled_from(["h100", "l40s", ""]),
                    st.builds(AcceleratorTraffic, *[st.floats() for _ in range(8)]),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=12,
    )
)
@settings(max_examples=100)
def test_degraded_garbage_never_crashes_and_never_lowers(seen: list[Traffic]) -> None:
    assert lowered(run([traffic(20.0), *seen])) == []


@given(st.lists(st.builds(AcceleratorTraffic, *[st.floats() for _ in range(23)]), max_size=12))
@settings(max_examples=100)
def test_fresh_garbage_never_crashes_and_stays_within_bounds(seen: list[AcceleratorTraffic]) -> None:
    decisions = run([Traffic(SignalState.FRESH, "", 10.0, 1.0, (("h100", each),)) for each in seen])
    assert all(1 <= decision.verdict.replicas <= 20 for decision in decisions)


@pytest.mark.parametrize("rate", [0.0, math.nan, math.inf, -1.0, 1e-300])
def test_an_absurd_capacity_holds_the_size_within_its_bounds(rate: float) -> None:
    model, memory = FixedRates({"h100": rate}), Memory()
    for index in range(40):
        (decision,), memory = decide(look(traffic(10.0), NOW + 5.0 * index), memory, model=model)
        assert 6 <= decision.verdict.replicas <= 20


@pytest.mark.parametrize("value", ABSURD)
def test_absurd_history_is_left_out(value: float) -> None:
    samples = (
        RateSample(NOW - 60.0, 30.0, value, value, value),
        RateSample(NOW - 30.0, value, 300.0, 300.0, 0.0),
        RateSample(value, 30.0, 300.0, 300.0, 0.0),
    )
    view = ServiceView(CHAT, traffic(5.0), replicas(6), history=History(samples))
    (decision,), _ = decide(a_snapshot(view), Memory())
    assert decision.verdict.replicas == 6


@pytest.mark.parametrize("cumulative", [(math.nan, 1.0), (5.0, 1.0), (0.0, 0.0), (math.inf, math.inf), ()])
def test_absurd_length_histograms_are_not_used(cumulative: tuple[float, ...]) -> None:
    histogram = LengthHistogram((100.0, math.inf), cumulative)
    seen = replace(traffic(5.0), prompt_lengths=histogram, output_lengths=histogram)
    assert lowered(run([seen] * 3)) == []


def test_time_that_stands_still_or_runs_backwards_counts_nothing_twice() -> None:
    memory = Memory()
    for now in (NOW, NOW, NOW - 60.0, NOW, NOW + 5.0, NOW + 5.0):
        (decision,), memory = decide(look(traffic(20.0), now), memory)
        assert decision.verdict.replicas >= 6
    arrivals = sum(cell.arrivals for cell in memory.services[CHAT.spec.key].demand.arrivals.cells)
    assert arrivals <= 20.0 * 20.0


def test_replicas_and_deployments_that_contradict_each_other_are_survived() -> None:
    views = (
        ServiceView(service("a"), replicas=replicas(3), sizes=()),
        ServiceView(service("b"), sizes=(Placement("h100", 3), Placement("gone", 2))),
        ServiceView(service("c"), replicas=replicas(2, ReplicaPhase.DRAINING), sizes=(Placement("h100", -1),)),
        ServiceView(service("d"), replicas=replicas(2, on="never-listed"), sizes=(Placement("never-listed", 2),)),
        ServiceView(service("e"), replicas=replicas(1, ReplicaPhase.FAILING, reason="Weird", detail="x" * 10_000)),
        ServiceView(service("f"), problems=(ClusterProblem("NameConflict", "a Service of that name exists"),)),
    )
    decisions, memory = decide(a_snapshot(*views, nodes=(node("empty", 0), node("odd", -3))), Memory())
    by_name = {decision.key.name: decision for decision in decisions}
    assert by_name["a"].verdict.replicas >= 3  # the Deployment is gone: what serves is not given up
    assert by_name["b"].verdict.replicas >= 3
    assert by_name["d"].verdict.replicas >= 1
    assert len(memory.services) == len(views)


def test_two_services_of_one_name_in_two_namespaces_are_two() -> None:
    views = ServiceView(service("a", "x"), traffic(1.0), replicas(1)), ServiceView(service("a", "y"), traffic(1.0))
    decisions, memory = decide(a_snapshot(*views), Memory())
    assert [str(decision.key) for decision in decisions] == ["x/a", "y/a"]
    assert len(memory.services) == 2


def test_a_free_accelerator_and_a_free_budget_divide_by_nothing() -> None:
    chat = CHAT.with_accelerators(
        accelerator("h100", cost_per_gpu_hour=0.0), accelerator("l40s", cost_per_gpu_hour=0.0)
    ).costing_at_most(0.0)
    (decision,), _ = decide(a_snapshot(ServiceView(chat, traffic(20.0), replicas(6))), Memory())
    assert 1 <= decision.verdict.replicas <= 20


def test_no_service_at_all_is_no_decision() -> None:
    assert decide(a_snapshot(), Memory()) == ((), Memory())


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e9])
def test_the_smallest_and_the_largest_counts_that_make_sense_are_decided_on(rate: float) -> None:
    decisions = run([traffic(2.0)] * 30 + [traffic(rate)] * 60)
    assert all(1 <= decision.verdict.replicas <= 20 for decision in decisions)
