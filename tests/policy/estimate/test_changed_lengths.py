"""Requests that become longer: their lengths are believed at once, and no window in which they did is evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.length_mix import LONGEST_SECONDS, SETTLED_SECONDS, Lengths, Sums, observe_lengths
from tests.builders import NOW

INTERVAL = 45.0


def interval(
    requests: float, prompt: float, output: float = 200.0, begun_prompt: float | None = None, waiting: float = 0.0
) -> Traffic:
    """One interval in which requests of these mean lengths finished, and such ones began; 100 run at its end."""
    begun = prompt if begun_prompt is None else begun_prompt
    counts = AcceleratorTraffic(
        finished=requests,
        ttft_count=requests,
        prompt_tokens=requests * begun,
        length_samples=requests,
        prompt_length_sum=requests * prompt,
        output_length_sum=requests * output,
        engines=1,
        running=100.0,
        waiting=waiting,
    )
    return Traffic(SignalState.FRESH, interval_seconds=INTERVAL, by_accelerator=(("h100", counts),))


def known(requests: float = 200.0, prompt: float = 1000.0) -> Lengths:
    """After half an hour of such requests."""
    memory = Lengths(Sums())
    for tick in range(40):
        memory = observe_lengths(memory, judge(interval(requests, prompt)), NOW + tick * INTERVAL)
    return replace(memory, changed_at=-math.inf)


def test_lengths_that_are_clearly_others_replace_those_before() -> None:
    at = NOW + 40 * INTERVAL
    longer = observe_lengths(known(), judge(interval(200.0, 3000.0)), at)
    assert (longer.prompt_mean, longer.changed_at) == (pytest.approx(3000.0), at)
    shorter = observe_lengths(known(), judge(interval(200.0, 1000.0, output=20.0)), at)
    assert (shorter.output_mean, shorter.changed_at) == (pytest.approx(20.0), at)


def test_longer_prompts_are_known_when_they_begin_and_believed_when_they_end() -> None:
    at = NOW + 40 * INTERVAL
    began = observe_lengths(known(), judge(interval(200.0, 1000.0, begun_prompt=3000.0)), at)
    assert (began.prompt_mean, began.changed_at) == (pytest.approx(1000.0), at)
    ended = observe_lengths(began, judge(interval(200.0, 3000.0)), at + INTERVAL)
    assert ended.prompt_mean > 1900.0


def test_prompts_of_requests_that_never_finish_change_nothing_for_good() -> None:
    memory, at = known(), NOW + 40 * INTERVAL
    for tick in range(20):
        memory = observe_lengths(memory, judge(interval(200.0, 1000.0, begun_prompt=3000.0)), at + tick * INTERVAL)
    assert memory.changed_at <= at + INTERVAL


@pytest.mark.parametrize("requests", [5, 20, 200, 2000])
def test_chance_changes_next_to_nothing(requests: int) -> None:
    random, found = np.random.default_rng(7), []
    memory = known(requests)
    for tick in range(400):
        at = NOW + (40 + tick) * INTERVAL
        prompts, outputs = (random.lognormal(math.log(mean) - 0.5, 1.0, requests) for mean in (1000.0, 200.0))
        seen = interval(float(requests), float(prompts.mean()), float(outputs.mean()))
        memory = observe_lengths(memory, judge(seen), at)
        found.append(memory.changed_at == at)
    assert np.mean(found) <= 0.01


@pytest.mark.parametrize("tokens", [0.0, 1e12, math.nan, math.inf, -5.0])
def test_absurd_lengths_leave_finite_ones(tokens: float) -> None:
    found = observe_lengths(known(), judge(interval(200.0, tokens)), NOW + 40 * INTERVAL)
    assert math.isfinite(found.prompt_mean)
    assert found.prompt_mean >= 1.0


def test_the_cached_share_holds_while_nothing_is_told_of_prompts_that_begin() -> None:
    cached = interval(200.0, 1000.0).by_accelerator[0][1]
    cached = replace(cached, cached_prompt_tokens=0.4 * cached.prompt_tokens)
    untold = replace(cached, prompt_tokens=0.0, cached_prompt_tokens=9e5)
    memory, found = Lengths(Sums()), set()
    for tick, counts in enumerate([cached] * 40 + [untold] * 40 + [cached]):
        seen = Traffic(SignalState.FRESH, interval_seconds=INTERVAL, by_accelerator=(("h100", counts),))
        memory = observe_lengths(memory, judge(seen), NOW + tick * INTERVAL)
        assert memory.cached_share == pytest.approx(0.4)
        found.add(memory.changed_at)
    assert found == {-math.inf}, "lengths never changed"


def burst(*told: tuple[float, float, float, float], before: Lengths | None = None) -> list[Lengths]:
    """What is known in each interval: requests, mean prompt and answer, and how many wait at its end."""
    memory, at, found = before or known(), NOW + 40 * INTERVAL, []
    for tick, (requests, prompt, output, waiting) in enumerate(told):
        seen = interval(requests, prompt, output, waiting=waiting)
        memory = observe_lengths(memory, judge(seen), at + tick * INTERVAL)
        found.append(memory)
    return found


# Of drawn day 20014: the queue lets short requests go first, and the late, long ones in the end.
SHORT_FIRST = [(600.0, 580.0, 130.0, 900.0), (800.0, 700.0, 140.0, 1200.0), (800.0, 950.0, 190.0, 700.0)]
LONG_LAST = [(800.0, 1350.0, 280.0, 150.0), (500.0, 1700.0, 330.0, 40.0), (200.0, 1150.0, 260.0, 0.0)]
CALM = (200.0, 1000.0, 200.0, 0.0)


def test_the_order_in_which_a_backlog_is_served_changes_no_lengths() -> None:
    found = burst(*SHORT_FIRST, *LONG_LAST, CALM, CALM)
    assert all(each.prompt_mean == pytest.approx(1000.0, rel=0.1) for each in found)
    assert all(each.output_mean == pytest.approx(200.0, rel=0.1) for each in found)
    assert found[-1].changed_at == -math.inf
    assert found[-1].backlog is None


def test_a_backlog_of_longer_requests_is_known_before_it_has_been_served() -> None:
    longer = [(requests, 3.0 * prompt, *more) for requests, prompt, *more in (*SHORT_FIRST, *LONG_LAST)]
    found = burst(*longer, (200.0, 3000.0, 200.0, 0.0), (200.0, 3000.0, 200.0, 0.0))
    assert found[1].prompt_mean > 1700.0
    assert all(each.prompt_mean < 3300.0 for each in found), "the long ones in the end are not all of them"
    assert found[-1].prompt_mean == pytest.approx(3000.0, rel=0.1)
    assert {each.changed_at for each in found} == {found[0].changed_at}, "the lengths changed once"


def test_shorter_requests_are_known_once_a_backlog_of_them_was_served() -> None:
    shorter = [(requests, 0.3 * prompt, output, waiting) for requests, prompt, output, waiting in SHORT_FIRST]
    found = burst(*shorter, *[(200.0, 300.0, 200.0, 0.0)] * 3)
    assert [each.prompt_mean for each in found[:3]] == [pytest.approx(1000.0)] * 3
    assert found[-1].prompt_mean < 500.0


def test_a_backlog_that_never_ends_is_a_sample_after_a_quarter_of_an_hour() -> None:
    intervals = math.ceil(LONGEST_SECONDS / INTERVAL)
    found = burst(*[(200.0, 300.0, 60.0, 900.0)] * (intervals + 1))
    assert found[intervals - 1].prompt_mean == pytest.approx(1000.0)
    assert found[intervals].prompt_mean < 600.0


def test_a_guess_gives_way_to_what_a_backlog_shows() -> None:
    found = burst(*[(200.0, 300.0, 60.0, 900.0)] * 3, before=Lengths())
    assert found[-1].prompt_mean < 450.0


def test_a_queue_that_comes_back_at_once_is_the_same_backlog() -> None:
    assert SETTLED_SECONDS > INTERVAL
    found = burst(SHORT_FIRST[0], (600.0, 700.0, 150.0, 10.0), SHORT_FIRST[1], *LONG_LAST)
    assert all(each.prompt_mean == pytest.approx(1000.0, rel=0.1) for each in found)
