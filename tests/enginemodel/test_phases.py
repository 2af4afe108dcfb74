"""Where prefill and decode stand under a roofline, from tokens and a step law alone."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import StepSums
from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.enginemodel.phases import GpuWork, StepMix, measured_law, phases, roofs
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.bench.figures.roofline import told

H100, MODEL = find_accelerator("h100"), find_model("Qwen/Qwen3-8B")
assert H100 is not None
assert MODEL is not None
LAW = roofline_law(MODEL, H100)
CHAT = StepMix(prompt_tokens=1155.0, tokens_per_step=2048.0, decodes=16.0, kv_tokens_each=1260.0)
NO_COUNT = (0.0, -1.0, math.nan, math.inf)


def test_a_long_prompt_is_compute_bound_and_a_few_answers_are_memory_bound() -> None:
    found = phases(MODEL, LAW, 1, CHAT)
    assert found.prefill is not None
    assert found.decode is not None
    prefill, decode = roofs(found.prefill, H100), roofs(found.decode, H100)
    assert prefill is not None
    assert decode is not None
    assert prefill.compute_bound
    assert not decode.compute_bound
    assert prefill.flops_share > 0.5 > prefill.bandwidth_share
    assert decode.bandwidth_share > 0.5 > decode.flops_share


def test_work_is_that_of_the_weights_and_tokens_and_seconds_are_those_of_the_law() -> None:
    found = phases(MODEL, StepLaw(0.01, 1e-5, 1e-4, 1e-8, 0.0), 1, CHAT)
    assert found.decode is not None
    weights, kv = MODEL.parameters * MODEL.weight_bytes, MODEL.kv_bytes_per_token
    assert found.decode.memory_bytes == pytest.approx(weights + 16 * 1260 * kv + 16 * kv)
    assert found.decode.seconds == pytest.approx(0.01 + 16 * (1e-4 + 1260 * 1e-8))
    assert found.prefill is not None
    assert found.prefill.seconds == pytest.approx(0.01 + 1155 * 1e-5)


def test_a_prompt_is_computed_in_steps_of_at_most_the_budget() -> None:
    cut = phases(MODEL, LAW, 1, replace(CHAT, tokens_per_step=256.0)).prefill
    assert cut == phases(MODEL, LAW, 1, replace(CHAT, prompt_tokens=256.0)).prefill


@pytest.mark.parametrize("count", NO_COUNT)
def test_a_phase_without_tokens_is_unknown_and_not_zero(count: float) -> None:
    found = phases(MODEL, LAW, 1, replace(CHAT, prompt_tokens=count, decodes=count))
    assert (found.prefill, found.decode) == (None, None)


@pytest.mark.parametrize("each", [-1.0, math.nan, math.inf])
def test_decodes_of_no_number_of_tokens_are_unknown(each: float) -> None:
    assert phases(MODEL, LAW, 1, replace(CHAT, kv_tokens_each=each)).decode is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_step_that_takes_no_time_is_unknown(seconds: float) -> None:
    assert phases(MODEL, StepLaw(seconds, 0.0, 0.0, 0.0, 0.0), 1, CHAT).decode is None


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e4), st.floats(0.0, 1e5), st.sampled_from([1, 2, 8]))
def test_no_phase_of_the_data_sheets_law_is_above_a_roof(prompt: float, decodes: float, kv: float, gpus: int) -> None:
    # step_work counts the pairs of a whole prompt, the law half of them.
    found = phases(MODEL, roofline_law(MODEL, H100, gpus), gpus, StepMix(min(prompt, 2048.0), 8192.0, decodes, kv))
    for work in (found.prefill, found.decode):
        assert work is not None
        position = roofs(work, H100)
        assert position is not None
        assert 0.0 < position.flops_share < 1.0
        assert 0.0 < position.bandwidth_share < 1.0


def test_the_ridge_itself_is_compute_bound() -> None:
    ridge = H100.peak_flops / H100.bandwidth
    at, below = roofs(GpuWork(ridge, 1.0, 1.0), H100), roofs(GpuWork(ridge * 0.999, 1.0, 1.0), H100)
    assert at is not None
    assert below is not None
    assert at.compute_bound
    assert not below.compute_bound


@pytest.mark.parametrize("work", [GpuWork(1.01 * H100.peak_flops, 1.0, 1.0), GpuWork(1.0, 1.01 * H100.bandwidth, 1.0)])
def test_work_above_a_roof_has_no_position(work: GpuWork) -> None:
    assert roofs(work, H100) is None
    assert told(work, H100) == ""


def test_a_lone_decode_of_a_mixture_of_experts_is_below_the_roof_of_memory() -> None:
    model = find_model("Qwen/Qwen3-30B-A3B")
    assert model is not None
    work = phases(model, StepLaw(0.005, 0.0, 0.0, 0.0, 0.0), 1, replace(CHAT, decodes=1.0)).decode
    assert work is not None
    position = roofs(work, H100)
    assert position is not None
    assert position.bandwidth_share < 0.5


def test_a_law_is_made_as_slow_as_the_steps_were_in_all() -> None:
    sums = StepSums(10.0, 1000.0, 100.0, 1e5, 1e5, 0.0)
    asked = LAW.c0 * 10 + LAW.c1 * 1000 + LAW.c2 * 100 + (LAW.c3 + LAW.c4) * 1e5
    twice = measured_law(LAW, replace(sums, seconds=2.0 * asked))
    assert twice is not None
    assert astuple(twice) == pytest.approx(astuple(LAW.scaled(2.0)))


@pytest.mark.parametrize("seconds", NO_COUNT)
def test_steps_without_time_scale_no_law(seconds: float) -> None:
    assert measured_law(LAW, StepSums(steps=10.0, seconds=seconds)) is None
    assert measured_law(LAW, StepSums(seconds=1.0)) is None
