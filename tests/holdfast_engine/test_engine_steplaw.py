from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.law import steptimes
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.law.leastsquares import PLACE, PRODUCTS, TERMS
from holdfast_engine.law.steplaw import TIMES, StepLawFit

TRUTH = Law(0.004, 5e-5, 2e-4, 1e-7, 2e-9)


def step(fit: StepLawFit, prefill: float, decodes: float, kv: float, pairs: float, seconds: float) -> None:
    """A step of an engine that launches none ahead."""
    now = fit.rows[TIMES][steptimes.CAME_AT] + seconds
    fit.observe(prefill, decodes, kv, pairs, seconds)
    fit.came((prefill, decodes, kv, pairs), -1, True, now, now)


def feed(fit: StepLawFit, law: Law, steps: int = 2000, noise: float = 0.05, seed: int = 1) -> None:
    draw = random.Random(seed)
    for number in range(steps):
        prefill = draw.choice([0, 0, 0, 256, 512, 1024])
        decodes = draw.randint(1, 40)
        kv = decodes * draw.randint(200, 600)
        pairs = prefill * draw.randint(0, 1000)
        seconds = law.seconds(prefill, decodes, kv, pairs) * draw.gauss(1.0, noise)
        step(fit, prefill, decodes, kv, pairs, seconds)
        if number % 64 == 63:
            fit.update()


def assert_predicts(fit: StepLawFit, law: Law, tolerance: float = 0.1) -> None:
    assert fit.law is not None
    for step in ((0, 10, 4000, 0), (512, 20, 8000, 250_000), (1024, 5, 2000, 500_000)):
        assert fit.law.seconds(*step) == pytest.approx(law.seconds(*step), rel=tolerance)


def test_the_law_is_found_from_noisy_steps() -> None:
    fit = StepLawFit()
    feed(fit, TRUTH)
    assert fit.confident
    assert fit.error < 0.1
    assert_predicts(fit, TRUTH)


def test_before_any_step_the_prior_is_the_law() -> None:
    fit = StepLawFit(TRUTH)
    assert fit.law == TRUTH
    assert not fit.confident
    assert StepLawFit().law is None


def test_a_prior_that_is_three_times_off_is_outgrown() -> None:
    fit = StepLawFit(Law(0.012, 1.5e-4, 6e-4, 3e-7, 6e-9))
    feed(fit, TRUTH)
    assert_predicts(fit, TRUTH, tolerance=0.15)


def test_a_few_steps_change_nothing() -> None:
    fit = StepLawFit()
    for _ in range(19):
        step(fit, 100, 10, 4000, 5000, 0.02)
    fit.update()
    assert fit.law is None


def test_a_lasting_change_is_followed() -> None:
    fit = StepLawFit()
    feed(fit, TRUTH)
    slower = Law(0.012, 1.5e-4, 6e-4, 3e-7, 6e-9)
    feed(fit, slower, steps=40_000, seed=2)
    assert_predicts(fit, slower, tolerance=0.15)


def test_stalled_steps_do_not_bend_the_law() -> None:
    fit = StepLawFit()
    feed(fit, TRUTH)
    for _ in range(5):
        step(fit, 0, 10, 4000, 0, 60.0)
    fit.update()
    assert_predicts(fit, TRUTH, tolerance=0.25)


@pytest.mark.parametrize("stalled_seconds", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("prior", [None, Law(*(3.0 * value for value in TRUTH))])
def test_a_stall_among_the_first_steps_is_dropped_with_them(stalled_seconds: float, prior: Law | None) -> None:
    fit = StepLawFit(prior)
    step(fit, 512, 1, 300, 250_000, stalled_seconds)
    feed(fit, TRUTH, steps=64)
    assert fit.mix() is not None
    feed(fit, TRUTH, steps=256)
    assert fit.confident
    assert_predicts(fit, TRUTH, tolerance=0.1 if prior is None else 0.2)  # a prior counts as some steps


def test_later_steps_of_one_kind_that_no_law_explains_leave_what_others_have_taught() -> None:
    fit, draw = StepLawFit(), random.Random(5)
    feed(fit, TRUTH, steps=6000)
    for number in range(64 * 200):
        step(fit, 0, 10, 4000, 0, 10 ** draw.uniform(-4, 1))
        if number % 64 == 63:
            fit.update()
    assert fit.law is not None
    long_prompt = (1024, 5, 2000, 500_000)
    assert fit.law.seconds(*long_prompt) == pytest.approx(TRUTH.seconds(*long_prompt), rel=0.25)


def test_steps_that_follow_no_law_give_none() -> None:
    fit, draw = StepLawFit(), random.Random(3)
    for _ in range(2000):
        step(fit, 0, 10, 4000, 0, 10 ** draw.uniform(-4, 1))
    fit.update()
    assert not fit.confident
    assert fit.law is None


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_duration_that_cannot_be_is_left_out(seconds: float) -> None:
    fit = StepLawFit()
    step(fit, 1, 1, 1, 1, seconds)
    assert fit.pending_steps == 0


def test_sums_are_those_of_all_steps_and_never_fall() -> None:
    fit = StepLawFit()
    step(fit, 1000, 100, 100_000, 1_000_000, 0.5)
    step(fit, 0, 200, 100_000, 0, 0.25)
    fit.update()
    assert dict(zip(TERMS, fit.sums, strict=True)) == {
        "one": 2.0,
        "prefill": 1.0,
        "decodes": 3.0,
        "kv": 2.0,
        "pairs": 1.0,
        "seconds": 0.75,
    }


def test_the_product_of_two_terms_is_found_whichever_is_named_first() -> None:
    for index, (row, column) in enumerate(PRODUCTS):
        assert PLACE[row][column] == PLACE[column][row] == index


def test_the_mix_is_that_of_the_recent_steps() -> None:
    fit = StepLawFit()
    assert fit.mix() is None
    for _ in range(10):
        step(fit, 400, 100, 30_000, 40_000, 0.1)
    fit.update()
    mix = fit.mix()
    assert mix is not None
    assert mix.prefill_per_decode == pytest.approx(4.0)
    assert mix.kv_per_decode == pytest.approx(300.0)
    assert mix.pairs_per_prefill == pytest.approx(100.0)


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.floats(0, 1e9)] * 4, st.floats(1e-9, 1e3)), min_size=1, max_size=20), st.booleans())
def test_coefficients_are_finite_and_not_negative(steps: list[tuple[float, ...]], with_prior: bool) -> None:
    fit = StepLawFit(TRUTH if with_prior else None)
    for _ in range(10):
        for prefill, decodes, kv, pairs, seconds in steps:
            step(fit, prefill, decodes, kv, pairs, seconds)
        fit.update()
    law = fit.law
    if law is not None:
        assert all(0.0 <= value < math.inf for value in (law.c0, law.c1, law.c2, law.c3, law.c4))
