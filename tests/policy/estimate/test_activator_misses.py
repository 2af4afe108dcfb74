"""Requests that were held, as verdicts: once each, over restarts of the activator and of the operator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.activator import NO_WAITS, SILENT, WAIT_EDGES, Activator, Waits
from holdfast.domain.signals import HeldSample, History, RateSample
from holdfast.policy.estimate.activator_misses import GONE_SECONDS, ActivatorMisses, Counted, account, from_history
from holdfast.policy.estimate.slo_budget import Budget, Verdicts, add, budget_from_history
from tests.builders import NOW, service

SLO = service().spec.slo
EMPTY = Budget(window_seconds=SLO.window_seconds)


def waited(count: int, edge: float = 60.0) -> Waits:
    return tuple(count if each == edge else 0 for each in WAIT_EDGES)


class Told:
    """An operator that looks at activators every few seconds."""

    def __init__(self, memory: ActivatorMisses = ActivatorMisses()) -> None:  # noqa: B008  # it is frozen
        self.memory, self.budget, self.now, self.slo = memory, EMPTY, NOW, SLO

    def look(self, told: Activator, seconds: float = 5.0) -> float:
        """Bad requests after one more look."""
        self.now += seconds
        judged = replace(self.budget, latest=Verdicts())
        self.memory, self.budget = account(self.memory, told, judged, self.slo, self.now)
        return self.budget.total.bad


def test_who_was_late_twice_is_bad_once() -> None:
    memory = ActivatorMisses((Counted("boot"),))
    late = Activator(True, boot="boot", forwarded=(*NO_WAITS[:-1], 4))
    memory, judged = account(memory, late, EMPTY, SLO, NOW)
    assert (judged.total, memory.owed) == (Verdicts(0.0, 4.0), 4.0)
    seen = add(judged, Verdicts(1.0, 3.0), NOW + 30.0)
    memory, judged = account(memory, late, seen, SLO, NOW + 30.0)
    assert (judged.total.good, judged.total.bad) == (pytest.approx(0.0), pytest.approx(4.0))
    assert memory.owed == 0.0


def test_a_process_that_takes_over_counts_whole_and_one_seen_first_does_not() -> None:
    operator = Told()
    first, second = Activator(True, boot="a", turned_away=5), Activator(True, boot="b", turned_away=2)
    assert operator.look(first) == 0.0
    for told in (second, first, second, replace(first, turned_away=6), SILENT):
        bad = operator.look(told)
    assert bad == 3.0


@pytest.mark.parametrize("after", [Activator(True, boot="new"), SILENT], ids=["another runs", "nobody answers"])
def test_what_a_process_held_that_is_heard_no_more_is_lost_with_it(after: Activator) -> None:
    operator = Told()
    assert operator.look(Activator(True, boot="old", waiting=3)) == 0.0
    assert operator.look(after) == 0.0, "it may be asked at the next look"
    assert operator.look(after, GONE_SECONDS) == 3.0
    assert operator.look(after, GONE_SECONDS) == 3.0


def test_what_a_process_passed_on_before_it_ended_is_late_and_not_lost_as_well() -> None:
    operator = Told()
    operator.look(Activator(True, boot="old", waiting=3))
    assert operator.look(Activator(True, boot="old", forwarded=waited(3))) == 3.0
    assert operator.look(Activator(True, boot="new"), 10 * GONE_SECONDS) == 3.0


def test_who_only_seemed_to_have_ended_is_not_judged_twice() -> None:
    operator = Told()
    operator.look(Activator(True, boot="a", waiting=3))
    assert operator.look(SILENT, GONE_SECONDS) == 3.0
    assert operator.look(Activator(True, boot="a", waiting=3)) == 3.0
    assert operator.look(SILENT, GONE_SECONDS) == 3.0
    assert operator.look(Activator(True, boot="a", waiting=1, forwarded=waited(2))) == 3.0
    assert operator.look(Activator(True, boot="a", forwarded=waited(3), turned_away=1)) == 4.0
    assert operator.look(Activator(True, boot="a", forwarded=waited(5), turned_away=1)) == 6.0


@pytest.mark.parametrize("ttft_seconds", [0.2, 300.0])
def test_another_objective_judges_nobody_anew(ttft_seconds: float) -> None:
    operator = Told()
    held = Activator(True, boot="a", forwarded=waited(40, 0.5), gone=waited(7))
    operator.look(Activator(True, boot="a"))
    bad = operator.look(held)
    operator.slo = replace(SLO, ttft_seconds=ttft_seconds)
    assert operator.look(held) == bad


def test_a_restart_of_the_operator_forgets_nobody_who_was_late() -> None:
    engines = (RateSample(NOW - 120.0, 60.0, 10.0, 10.0, 0.0), RateSample(NOW - 60.0, 60.0, 10.0, 6.0, 4.0))
    held = (HeldSample(NOW - 180.0, 8.0, 2.0), HeldSample(NOW - 60.0, 5.0, 1.0))
    memory, history = from_history(History(engines, held))
    total = budget_from_history(history, SLO, NOW).total
    assert total.judged == pytest.approx(20.0 + 3.0), "who was late is judged once"
    assert total.bad == pytest.approx(8.0 + 2.0 + 5.0 + 1.0 + 4.0 - 5.0 * 0.4)
    _, judged = account(memory, Activator(True, boot="a", forwarded=waited(13)), EMPTY, SLO, NOW)
    assert judged.total == Verdicts(), "Prometheus has counted them"


def test_what_only_an_activator_knew_is_no_traffic_of_engines() -> None:
    _, history = from_history(History((), (HeldSample(NOW - 60.0, 2.0, 1.0),)))
    (sample,) = history.samples
    assert (sample.arrivals, sample.good, sample.bad) == (0.0, 0.0, 3.0)


def test_what_nobody_can_tell_of_is_unknown_for_as_long_as_it_would_count() -> None:
    met = Activator(True, boot="a", forwarded=waited(1))
    memory, _ = from_history(History())
    memory, _ = account(memory, met, EMPTY, SLO, NOW)
    assert memory.incomplete(3600.0, NOW + 3599.0)
    assert not memory.incomplete(3600.0, NOW + 3600.0)
    for known in (from_history(History((), ()))[0], ActivatorMisses((Counted("b"),))):
        assert not account(known, met, EMPTY, SLO, NOW)[0].incomplete(3600.0, NOW)
    fresh, _ = account(ActivatorMisses(), Activator(True, boot="a"), EMPTY, SLO, NOW)
    assert not fresh.incomplete(3600.0, NOW)


COUNTS = st.floats(0.0, 1e6)
STEPS = st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), max_size=8)


@given(STEPS)
def test_verdicts_read_back_are_never_negative_and_all_who_were_lost_are_bad(
    steps: list[tuple[float, float, float, float]],
) -> None:
    times = [NOW - 60.0 * (len(steps) - index) for index in range(len(steps))]
    engines = tuple(RateSample(at, 60.0, 0.0, good, bad) for at, (good, bad, _, _) in zip(times, steps, strict=True))
    held = tuple(HeldSample(at, late, lost) for at, (_, _, late, lost) in zip(times, steps, strict=True))
    _, history = from_history(History(engines, held))
    assert all(sample.good >= -1e-6 and sample.bad >= -1e-6 for sample in history.samples)
    bad, judged = sum(s.bad for s in history.samples), sum(s.good + s.bad for s in history.samples)
    late, lost = sum(step[2] for step in steps), sum(step[3] for step in steps)
    assert bad >= late + lost - 1e-3
    assert judged <= sum(step[0] + step[1] for step in steps) + late + lost + 1e-3
