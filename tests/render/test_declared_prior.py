"""What engines and benchmarks are told of an accelerator that the spec describes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.api.llmservice import LLMService
from holdfast.render.admission import admission_tokens
from holdfast.render.benchmark import measurand
from holdfast.render.engine_limits import engine_limits
from holdfast.rendered.prior import declared_prior
from tests.render.scenes import service

HARDWARE = {"memoryGiB": 80, "bandwidthGBs": 3350, "teraflops": 989}
SHARED = {"name": "h100", "resource": "nvidia.com/gpu.shared"}


def on(accelerator: dict[str, Any]) -> LLMService:
    return service({"accelerators": [accelerator]})


@pytest.mark.parametrize("accelerator", [SHARED, {"name": "pool"}])
def test_engines_on_an_unknown_gpu_are_told_no_law(accelerator: dict[str, Any]) -> None:
    of = on(accelerator)
    assert engine_limits(of, of.spec.accelerators[0]).prior is None


@pytest.mark.parametrize("accelerator", [SHARED, {"name": "pool"}])
def test_declared_hardware_gives_them_a_law_and_a_limit(accelerator: dict[str, Any]) -> None:
    of = on({**accelerator, "hardware": HARDWARE})
    assert engine_limits(of, of.spec.accelerators[0]).prior is not None
    assert admission_tokens(of, of.spec.accelerators[0]) is not None
    assert declared_prior(of, of.spec.accelerators[0]).table is None


def test_bench_is_not_told_a_gpu_that_it_does_not_know() -> None:
    body = {
        "metadata": {"name": "nightly", "namespace": "prod"},
        "spec": {"target": {"serviceRef": {"name": "chat"}}, "rate": {"rps": 1}},
    }
    asked = LLMBenchmark.parse(body)
    assert measurand(asked, on({"name": "h100"})).system == "h100_sxm"
    assert measurand(asked, on({"name": "h100", "hardware": HARDWARE})).system is None


def test_the_arguments_of_an_accelerator_come_after_those_of_the_engine() -> None:
    def tokens(engine: list[str], own: list[str]) -> int:
        of = service({"engine": {"args": engine}, "accelerators": [{"name": "h100", "args": own}]})
        return declared_prior(of, of.spec.accelerators[0]).kv_tokens

    low, high = ["--gpu-memory-utilization=0.5"], ["--gpu-memory-utilization", "0.92"]
    assert tokens(low, high) == tokens([], []) > tokens(high, low) == tokens(low, [])


def test_a_quantized_engine_is_told_another_law() -> None:
    usual, quantized = on({"name": "h100"}), on({"name": "h100", "args": ["--quantization=fp8"]})
    laws = [engine_limits(of, of.spec.accelerators[0]).prior for of in (usual, quantized)]
    assert laws[0] is not None
    assert laws[1] is not None
    assert laws[1].c0 < 0.8 * laws[0].c0
