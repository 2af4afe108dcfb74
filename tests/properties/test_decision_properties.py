"""What holds for every decision, whatever the load: bounds, order, idempotence, and no flapping."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import Placement, ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import History, RateSample, SignalState, Traffic
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory, ServiceMemory
from tests.builders import NOW, ServiceView, a_snapshot, accelerator, counts, replicas, service, sizes, traffic
from tests.policy.fluid import FixedRates, FluidCluster, steps

MODEL = FixedRates({"h100": 4.0, "l40s": 2.0})
CHAT = service().with_replicas_between(1, 50)
rates = st.floats(0.0, 200.0)
some_sizes = st.integers(1, 12)


def steady_memory(rate: float, size: int, ticks: int = 40) -> Memory:
    """What is remembered after some minutes at that rate and size."""
    memory = Memory()
    for tick in range(ticks):
        _, memory = decide(look(rate, size, NOW - (ticks - tick) * 5.0), memory, model=MODEL)
    return memory


def look(rate: float, size: int, now: float = NOW):  # type: ignore[no-untyped-def]
    return a_snapshot(ServiceView(CHAT, traffic(rate), replicas(size, now=NOW)), now=now)


def decided(rate: float, size: int, memory: Memory) -> Decision:
    return decide(look(rate, size), memory, model=MODEL)[0][0]


@given(before=rates, lower=rates, higher=rates, size=some_sizes)
@settings(max_examples=60)
def test_more_load_never_means_fewer_replicas(before: float, lower: float, higher: float, size: int) -> None:
    memory = steady_memory(before, size)
    lower, higher = sorted((lower, higher))
    assert decided(lower, size, memory).verdict.replicas <= decided(higher, size, memory).verdict.replicas


@given(before=rates, now=rates, size=some_sizes)
@example(before=2.0, now=5e-324, size=1)
@settings(max_examples=60)
def test_sizes_stay_within_their_bounds_and_at_most_double_beyond_four_more(
    before: float, now: float, size: int
) -> None:
    verdict = decided(now, size, steady_memory(before, size)).verdict
    assert 1 <= verdict.replicas <= 50
    assert verdict.replicas <= max(2 * size, size + 4)


@given(before=rates, now=rates, size=some_sizes, waited=st.integers(0, 60))
@settings(max_examples=60)
def test_what_was_just_decided_is_kept_by_the_next_decision_on_the_same_facts(
    before: float, now: float, size: int, waited: int
) -> None:
    memory = steady_memory(before, size, ticks=40 + waited)
    first, remembered = decide(look(now, size), memory, model=MODEL)
    after = sum(sizes(first[0]).values())
    again, _ = decide(look_at_sizes(now, size, after), remembered, model=MODEL)
    bounded = first[0].verdict.replicas == max(2 * size, size + 4)
    assert again[0].verdict.action is Action.HOLD or (bounded and again[0].verdict.action is Action.SCALE_UP)


def look_at_sizes(rate: float, ready: int, size: int):  # type: ignore[no-untyped-def]
    """As before, with the new size written and its replicas under way."""
    pods = replicas(min(ready, size)) + replicas(max(0, size - ready), ReplicaPhase.STARTING, age=1.0)
    return a_snapshot(ServiceView(CHAT, traffic(rate), pods, (Placement("h100", size),)))


@given(load=st.lists(rates, min_size=2, max_size=6), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_the_order_of_services_and_series_changes_nothing(load: list[float], seed: int) -> None:
    both = (accelerator("h100"), accelerator("l40s"))
    views = [
        ServiceView(
            service(f"s{index}").with_accelerators(*both),
            Traffic(
                SignalState.FRESH,
                interval_seconds=10.0,
                by_accelerator=(("h100", counts(rate)), ("l40s", counts(rate / 3.0))),
            ),
            replicas(2) + replicas(1, on="l40s"),
        )
        for index, rate in enumerate(load)
    ]
    chance = random.Random(seed)
    shuffled = [_shuffled(view, chance) for view in chance.sample(views, len(views))]
    one, memory = decide(a_snapshot(*views), Memory(), model=MODEL)
    other, other_memory = decide(a_snapshot(*shuffled), Memory(), model=MODEL)
    assert one == other
    assert _learned(memory) == _learned(other_memory)
    for now in (NOW + 5.0, NOW + 15.0):
        one, memory = decide(a_snapshot(*shuffled, now=now), memory, model=MODEL)
        other, other_memory = decide(a_snapshot(*views, now=now), other_memory, model=MODEL)
        assert one == other


def _learned(memory: Memory) -> list[ServiceMemory]:
    """All that is remembered, except the facts as they were seen."""
    return [replace(known, last=None) for known in memory.services.values()]


def _shuffled(view: ServiceView, chance: random.Random) -> ServiceView:
    pods, series = view.replicas, view.traffic.by_accelerator
    return replace(
        view,
        replicas=tuple(chance.sample(pods, len(pods))),
        sizes=(Placement("l40s", 1), Placement("h100", 2)),
        traffic=replace(view.traffic, by_accelerator=tuple(chance.sample(series, len(series)))),
    )


@given(rate=st.floats(0.2, 60.0), seed=st.integers(0, 10_000))
@settings(max_examples=12, derandomize=True, phases=[Phase.generate])
def test_constant_load_with_poisson_noise_never_flaps(rate: float, seed: int) -> None:
    cluster = FluidCluster(CHAT, steps((0, rate)), {"h100": 4.0}, seed=seed).run(2400)
    actions = [action for _, action, _ in cluster.changes(300)]
    assert not ("ScaleUp" in actions and "ScaleDown" in actions), cluster.changes(300)
    assert cluster.attainment(120, 2400) >= 0.99


@given(counts_seen=st.lists(st.floats(0.0, 1e6), max_size=40))
@settings(max_examples=40)
def test_any_history_is_read_back_without_a_crash_and_lowers_nothing_at_once(counts_seen: list[float]) -> None:
    samples = tuple(
        RateSample(NOW - 30.0 * (len(counts_seen) - index), 30.0, seen, seen, 0.0)
        for index, seen in enumerate(counts_seen)
    )
    view = ServiceView(CHAT, traffic(0.0), replicas(5), history=History(samples))
    decisions, _ = decide(a_snapshot(view), Memory(), model=MODEL)
    assert decisions[0].verdict.replicas >= 5
