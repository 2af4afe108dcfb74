"""What batch work asks for: its backlog over the time that it may take, for as long as that is."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import BatchClass
from holdfast.domain.signals import BatchClassTraffic, BatchTraffic, SignalState
from holdfast.domain.valid_traffic import LARGEST, Seen, judge
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.policy.estimate.batch_work import BatchWork, ClassWork, watch_batch, with_batch
from holdfast.policy.estimate.length_mix import Lengths, Sums
from holdfast.policy.estimate.replica_capacity import Belief, Capacity
from tests.builders import NOW, accelerator, no_traffic, traffic

HOUR, LEAD = 3600.0, 60.0
NIGHT = BatchClass("night", 0, HOUR)
REST = BatchClass("rest", -10)


def told(*rows: tuple[str, float, float], state: SignalState = SignalState.FRESH, **sums: float) -> Seen:
    """What engines tell of batch: name, unfinished, done in the last ten seconds."""
    batch = BatchTraffic(tuple(BatchClassTraffic(*row) for row in rows), sum(row[2] for row in rows), **sums)
    return judge(replace(traffic(4.0, state=state), batch=batch))


def asked(memory: BatchWork, name: str = "night") -> float:
    return next(each.asked.level_rps for each in memory.classes if each.of.name == name)


def watched(
    *seen: Seen, classes: tuple[BatchClass, ...] = (NIGHT,), every: float = 10.0, known: float = 300.0
) -> BatchWork:
    """Watch, after so many seconds without batch work."""
    memory = BatchWork(tuple(ClassWork(each, seconds=known) for each in classes))
    for number, each in enumerate(seen):
        memory = watch_batch(memory, each, classes, LEAD, NOW + every * number)
    return memory


def needed(memory: BatchWork, demand: float | None = 5.0, level: float = 4.0) -> float | None:
    rate, ask = with_batch(demand, level, memory, Capacity(), "h100")
    assert (ask is not None) == (rate != demand)
    return rate


def test_a_backlog_asks_for_its_rate_within_the_time_that_a_start_leaves() -> None:
    memory = watched(told(("night", 7080.0, 0.0)))
    assert asked(memory) == pytest.approx(2.0)
    assert needed(memory) == pytest.approx(6.0)


def test_what_the_forecast_leaves_is_used_first() -> None:
    assert needed(watched(told(("night", 3500.0, 0.0)))) == 5.0  # 0.99 req/s, and 1 req/s is left


def test_what_would_be_done_at_the_present_rate_asks_for_nothing() -> None:
    doing = [told(("night", 7000.0, 25.0))] * 200
    assert asked(watched(*doing)) > 0.0  # after minutes without batch
    assert asked(watched(*[told(("night", 10.0, 25.0))] * 60, *doing)) == 0.0


def test_after_a_restart_work_that_is_on_time_asks_for_nothing() -> None:
    doing = [told(("night", 7000.0, 25.0))] * 10
    assert [asked(watched(*doing[:ticks], known=0.0)) for ticks in range(1, 10)] == [0.0] * 9
    assert watched(*doing, known=0.0).classes[0].done_rps == pytest.approx(2.5)


def test_a_quiet_first_minute_asks_for_nothing_and_a_rate_that_is_too_low_then_does() -> None:
    quiet = [told(("night", 7080.0, 0.0))] * 6
    assert asked(watched(*quiet[:5], told(("night", 7080.0, 150.0)), known=0.0)) == 0.0
    assert asked(watched(*quiet, quiet[0], known=0.0)) == pytest.approx(2.0)


def test_the_rate_lasts_as_long_as_the_work_may_take() -> None:
    draining = [told(("night", 7080.0 - 19.0 * tick, 19.0)) for tick in range(359)]
    assert asked(watched(*draining)) == pytest.approx(2.0)
    assert asked(watched(*draining, *[told(("night", 1.0, 19.0))] * 90)) == 0.0


def test_what_was_asked_for_ends_with_what_it_does_in_one_more_start() -> None:
    backlog, left = told(("night", 7080.0, 0.0)), [told(("night", 150.0, 19.0)), told(("night", 110.0, 19.0))]
    assert [asked(watched(backlog, *[each] * 30)) for each in left] == [pytest.approx(2.0), 0.0]


def test_a_request_that_always_waits_does_not_keep_what_a_cancelled_job_asked_for() -> None:
    heartbeat = [told(("night", 1.0, 1.0))] * 3
    assert asked(watched(told(("night", 1e6, 0.0)), *heartbeat)) == 0.0


def test_what_is_done_asks_for_nothing_any_more() -> None:
    assert asked(watched(told(("night", 7080.0, 0.0)), told(("night", 0.0, 10.0)))) == 0.0


@pytest.mark.parametrize(
    "missing",
    [
        told(),
        told(("rest", 3.0, 0.0)),
        told(("night", 0.0, 0.0), state=SignalState.PARTIAL),
        judge(no_traffic(SignalState.ABSENT)),
        told(("night", math.nan, 0.0)),
        told(("night", 0.0, math.inf)),
        told(("night", -1.0, 0.0)),
        told(("night", LARGEST, 0.0)),
        told(("night", 0.0, 0.0), prompt_tokens=math.nan),
    ],
)
def test_missing_data_holds_what_was_asked_for(missing: Seen) -> None:
    memory = watched(told(("night", 7080.0, 0.0)), *[missing] * 1000)
    assert asked(memory) == pytest.approx(2.0)
    assert memory.classes[0].unfinished is None or not missing.fresh
    assert needed(watched(missing)) == 5.0


def test_without_a_time_a_class_asks_for_nothing_and_is_counted() -> None:
    memory = watched(*[told(("rest", 1e9, 30.0))] * 1000, classes=(REST,))
    assert asked(memory, "rest") == 0.0
    assert memory.classes[0].done_rps == pytest.approx(3.0, rel=0.05)


def test_a_class_counts_what_starts_before_it() -> None:
    low, high = BatchClass("low", -10, HOUR), BatchClass("high", 10, 2.0 * HOUR)
    memory = watched(told(("low", 3540.0, 0.0), ("high", 3540.0, 0.0)), classes=(low, high))
    assert asked(memory, "low") == pytest.approx(2.0)
    assert asked(memory, "high") == pytest.approx(3540.0 / 7140.0)
    rate, ask = with_batch(5.0, 4.0, memory, Capacity(), "h100")
    assert ask is not None
    assert (rate, ask.by.of) == (pytest.approx(6.0), low)


def test_a_time_shorter_than_a_start_is_half_used() -> None:
    memory = watched(told(("night", 30.0, 0.0)), classes=(BatchClass("night", 0, 60.0),))
    assert asked(memory) == pytest.approx(1.0)


def test_a_longer_request_counts_as_more() -> None:
    law = StepLaw(0.01, 1e-5, 1e-4, 0.0, 0.0)
    mix = LengthMix.from_means(1000.0, 100.0)
    capacity = Capacity(mix=mix, beliefs=(Belief(accelerator("h100"), ReplicaRate(5.0, "TPOT", True, 0.8, law), 1.0),))
    memory = watched(told(("night", 7080.0, 0.0)))
    twice = replace(memory, lengths=Lengths(Sums(10.0, 20_000.0, 2000.0, 20_000.0)))
    rates = [with_batch(5.0, 4.0, each, capacity, "h100")[0] for each in (memory, twice)]
    assert rates[0] == pytest.approx(6.0)
    assert rates[1] == pytest.approx(8.0, rel=0.1)
    assert with_batch(5.0, 4.0, twice, capacity, "gone")[0] == pytest.approx(6.0)


def test_without_a_forecast_batch_asks_for_nothing() -> None:
    assert needed(watched(told(("night", 1e6, 0.0))), demand=None) is None


numbers = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1e-300, 1e11, LARGEST, 7080.0]))
views = st.builds(
    lambda row, state, tokens: told(("night", *row), state=state, prompt_tokens=tokens, cached_tokens=tokens),
    st.tuples(numbers, numbers),
    st.sampled_from(SignalState),
    numbers,
)


@given(st.lists(views, max_size=6), st.lists(st.floats(-1e5, 1e5), min_size=6, max_size=6), numbers)
def test_no_number_breaks_it(seen: list[Seen], times: list[float], level: float) -> None:
    memory = BatchWork()
    for each, at in zip(seen, times, strict=False):
        memory = watch_batch(memory, each, (NIGHT, REST), LEAD, NOW + at)
    found: list[Any] = [number for each in memory.classes for number in (each.done, each.asked.level_rps)]
    assert all(0.0 <= number < math.inf for number in found + list(memory.lengths.sums))
    rate, _ = with_batch(5.0, level, memory, Capacity(), "h100")
    assert rate is not None
    assert rate >= 5.0


def test_the_sums_of_engines_are_those_that_are_learned() -> None:
    """A number added to the one must be added to the other."""
    assert [each.name for each in fields(BatchTraffic)][1:] == [
        "done",
        "prompt_tokens",
        "output_tokens",
        "started_tokens",
        "cached_tokens",
    ]
