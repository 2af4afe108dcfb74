"""What an engine on a MIG slice is told before its first request: that of a slice, not of the whole GPU."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior
from holdfast.enginemodel.replica_model import ReplicaRate, StepLawModel
from holdfast.observe.objects.spec import to_spec
from holdfast.render.admission import admission_tokens
from holdfast.render.engine_limits import engine_limits
from holdfast.rendered.prior import declared_prior
from tests.render.scenes import service

PRODUCT = "nvidia.com/gpu.product"
WHOLE = {"name": "h100", "nodeSelector": {PRODUCT: "NVIDIA-H100-80GB-HBM3"}}
SLICE = {
    "name": "h100-mig",
    "resource": "nvidia.com/mig-1g.10gb",
    "nodeSelector": {PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
}
SHARED = {"name": "h100", "nodeSelector": {PRODUCT: "NVIDIA-H100-80GB-HBM3-SHARED"}}
SLICED = [
    SLICE,
    {**SLICE, "resource": "nvidia.com/gpu"},  # the single strategy: only the label tells
    {"name": "h100", "resource": "nvidia.com/mig-1g.10gb"},  # the mixed strategy: only the resource tells
]
SHARING = [
    SHARED,
    {"name": "h100", "resource": "nvidia.com/gpu.shared"},
    {"name": "h100", "nodeSelector": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}},
    {"name": "h100", "nodeSelector": {"nvidia.com/gpu.replicas": "4"}},
    {"name": "h100", "nodeSelector": {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}},
]


GPU_SHARES = [
    # D10: Project-HAMi/HAMi#1947, #722, vllm-project/vllm#40937, and the like of other device plugins
    {"nvidia.com/gpumem": "24000", "nvidia.com/gpucores": "30"},
    {"nvidia.com/gpumem-percentage": 50},
    {"nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "30"},
    {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "30"},
    {"volcano.sh/vgpu-memory": "8000"},
    {"koordinator.sh/gpu-memory-ratio": "50"},
    {"aliyun.com/gpu-core.percentage": "50"},
    {"hygon.com/dcumem": "2000"},
    {"mthreads.com/sgpu-core": "8"},
    {"gpu.intel.com/millicores": "500"},
]
NO_SHARES = [
    {"rdma/hca_shared_devices_a": "1", "memory": "64Gi", "cpu": "8", "hugepages-2Mi": "1Gi"},
    {"nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100"},
    {"nvidia.com/gpumem": "0", "vpc.amazonaws.com/efa": "4"},
]


def overlay(amounts: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "vllm", "resources": {"limits": amounts}}]}}


def ways_to_ask(amounts: dict[str, Any]) -> list[LLMService]:
    """The engine's resources, the template of the service, and that of the accelerator."""
    model = {"uri": "Qwen/Qwen3-1.7B"}
    return [
        service({"model": model, "accelerators": [WHOLE], "engine": {"resources": {"limits": amounts}}}),
        service({"model": model, "accelerators": [WHOLE], "template": overlay(amounts)}),
        service({"model": model, "accelerators": [{**WHOLE, "template": overlay(amounts)}]}),
    ]


@pytest.mark.parametrize("amounts", GPU_SHARES)
def test_a_share_that_is_asked_for_next_to_the_gpu_is_no_whole_gpu(amounts: dict[str, Any]) -> None:
    for of in ways_to_ask(amounts):
        found = declared_prior(of, of.spec.accelerators[0])
        assert found.unknown_accelerator
        assert found.confidence < prior(WHOLE).confidence


@pytest.mark.parametrize("amounts", NO_SHARES)
def test_other_resources_and_the_whole_of_a_gpu_leave_it_known(amounts: dict[str, Any]) -> None:
    for of in ways_to_ask(amounts):
        assert declared_prior(of, of.spec.accelerators[0]) == prior(WHOLE)


@pytest.mark.parametrize("annotations", [{"gpu-fraction": "0.5"}, {"gpu-memory": "20000"}, {"run.ai/gpu-memory": "9"}])
def test_an_annotation_that_asks_for_a_share_counts_too(annotations: dict[str, str]) -> None:
    spec = {"accelerators": [WHOLE], "template": {"metadata": {"annotations": annotations}}}
    of = service({"model": {"uri": "Qwen/Qwen3-1.7B"}, **spec})
    assert declared_prior(of, of.spec.accelerators[0]).unknown_accelerator


def test_what_the_user_says_of_the_share_counts_before_all() -> None:
    hardware = {"memoryGiB": 24, "bandwidthGBs": 1000, "teraflops": 300}
    asked = {**WHOLE, "template": overlay(GPU_SHARES[0]), "hardware": hardware}
    assert not prior(asked).unknown_accelerator


def on(accelerator: dict[str, Any]) -> tuple[LLMService, Accelerator]:
    of = service({"model": {"uri": "Qwen/Qwen3-1.7B"}, "accelerators": [accelerator]})
    return of, of.spec.accelerators[0]


def prior(accelerator: dict[str, Any]) -> EnginePrior:
    return declared_prior(*on(accelerator))


def rate(accelerator: dict[str, Any]) -> ReplicaRate:
    spec = to_spec(on(accelerator)[0])
    found = StepLawModel().rate(spec, spec.accelerators[0], LengthMix.from_means(500.0, 100.0), 1.0)
    assert found is not None
    return found


@pytest.mark.parametrize("accelerator", SLICED)
def test_a_slice_is_sized_and_limited_as_a_slice(accelerator: dict[str, Any]) -> None:
    part, whole = admission_tokens(*on(accelerator)), admission_tokens(*on(WHOLE))
    assert part is not None
    assert whole is not None
    assert part < whole / 3
    assert rate(accelerator).rate_rps < rate(WHOLE).rate_rps / 3
    assert prior(accelerator).kv_tokens < prior(WHOLE).kv_tokens / 8


@pytest.mark.parametrize("accelerator", SLICED)
def test_the_step_law_that_live_limits_carry_is_the_slices(accelerator: dict[str, Any]) -> None:
    part, whole = (engine_limits(*on(each)).prior for each in (accelerator, WHOLE))
    assert part is not None
    assert whole is not None
    assert prior(accelerator).law.c0 > 3 * prior(WHOLE).law.c0


@pytest.mark.parametrize("accelerator", SHARING)
def test_a_shared_gpu_is_a_guess_and_says_so(accelerator: dict[str, Any]) -> None:
    found = rate(accelerator)
    assert "accelerator" in found.unknown
    assert found.confidence < rate(SLICE).confidence <= rate(WHOLE).confidence
    assert engine_limits(*on(accelerator)).prior is None
