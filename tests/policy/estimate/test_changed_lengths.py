"""Requests that become longer: their lengths are believed at once, and no window in which they did is evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.length_mix import Lengths, observe_lengths
from tests.builders import NOW

INTERVAL = 45.0


def interval(requests: float, prompt: float, output: float = 200.0, begun_prompt: float | None = None) -> Traffic:
    """One interval in which requests of these mean lengths finished, and such ones began."""
    begun = prompt if begun_prompt is None else begun_prompt
    counts = AcceleratorTraffic(
        finished=requests,
        ttft_count=requests,
        prompt_tokens=requests * begun,
        length_samples=requests,
        prompt_length_sum=requests * prompt,
        output_length_sum=requests * output,
        engines=1,
    )
    return Traffic(SignalState.FRESH, interval_seconds=INTERVAL, by_accelerator=(("h100", counts),))


def known(requests: float = 200.0, prompt: float = 1000.0) -> Lengths:
    """After half an hour of such requests."""
    memory = replace(Lengths(), requests=0.0, prompt_tokens=0.0, output_tokens=0.0)
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
