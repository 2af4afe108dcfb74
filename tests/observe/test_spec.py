"""An LLMService as declared, reduced to what decisions need: every field arrives, in SI units."""

from __future__ import annotations

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceKey, ServiceSpec, Slo
from holdfast.observe.spec import to_spec

SMALLEST = {
    "metadata": {"name": "chat", "namespace": "prod", "uid": "u", "generation": 4},
    "spec": {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "500ms", "tpot": "30ms"},
        "accelerators": [{"name": "h100"}],
    },
}
LARGEST = {
    "metadata": {"name": "chat", "namespace": "prod", "uid": "u", "generation": 4},
    "spec": {
        "model": {"uri": "Qwen/Qwen3-8B", "maxModelLen": 8192, "quantization": "fp8"},
        "slo": {"ttft": "0.5s", "tpot": "30ms", "e2e": "20s", "objective": "99.5%", "window": "2h"},
        "accelerators": [
            {"name": "h100", "costPerHour": 2.5, "count": 2, "max": 4, "nodeSelector": {"zone": "a", "gpu": "H100"}},
            {"name": "l40s", "costPerHour": 0.8, "resource": "example.com/gpu"},
        ],
        "scaling": {"min": 2, "max": 20},
        "replicas": 3,
        "mode": "Recommend",
        "budget": {"maxCostPerHour": 50},
        "batching": {"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 4096},
    },
}


def test_the_smallest_service_has_the_defaults_of_the_api() -> None:
    assert to_spec(LLMService.parse(SMALLEST)) == ServiceSpec(
        key=ServiceKey("prod", "chat"),
        uid="u",
        generation=4,
        model_uri="Qwen/Qwen3-8B",
        slo=Slo(0.5, 0.03, 0.99, 3600.0),
        accelerators=(AcceleratorOption("h100"),),
    )


def test_every_declared_field_arrives() -> None:
    spec = to_spec(LLMService.parse(LARGEST))
    assert spec.slo == Slo(0.5, 0.03, pytest.approx(0.995), 7200.0, 20.0)
    assert spec.accelerators == (
        AcceleratorOption("h100", "nvidia.com/gpu", 2, 2.5, 4, (("gpu", "H100"), ("zone", "a"))),
        AcceleratorOption("l40s", "example.com/gpu", 1, 0.8),
    )
    assert (spec.min_replicas, spec.max_replicas, spec.pinned_replicas) == (2, 20, 3)
    assert (spec.recommend_only, spec.max_cost_per_hour) == (True, 50.0)
    assert (spec.max_model_len, spec.quantization) == (8192, "fp8")
    assert spec.batching == BatchingLimits(64, 4096)
