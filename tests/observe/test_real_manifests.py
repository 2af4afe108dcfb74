"""D25: start commands of real manifests are read as they are meant."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.observe.objects.vllm_container import vllm_containers

MODEL = "Qwen/Qwen3-8B"
MANIFESTS: dict[str, dict[str, Any]] = {
    "gateway-api-inference-extension": {
        "image": "vllm/vllm-openai:latest",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--model", MODEL, "--tensor-parallel-size", "1", "--port", "8000", "--max-num-seq", "1024"],
    },
    "production-stack": {
        "image": "vllm/vllm-openai:v0.8.5",
        "command": ["vllm", "serve", MODEL, "--host", "0.0.0.0", "--port", "8000", "--no-enable-prefix-caching"],
    },
    "production-stack with LMCache": {
        "image": "lmcache/vllm-openai:latest",
        "command": ["/opt/venv/bin/vllm", "serve", MODEL],
        "args": ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'],
    },
    "kubernetes-engine-samples": {
        "image": "us-docker.pkg.dev/vertex-ai/pytorch-vllm-serve:1",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--model=$(MODEL_ID)", "--tensor-parallel-size=1"],
        "env": [{"name": "MODEL_ID", "value": MODEL}],
    },
    "RHAIIS": {"image": "registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.1", "args": [f"--model={MODEL}", "--port=8000"]},
    "AWS DLC": {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.9-gpu", "args": ["--model", MODEL]},
    "ROCm": {"image": "rocm/vllm:latest", "command": ["/bin/sh", "-c"], "args": [f"vllm serve {MODEL} -tp 1"]},
    "TPU": {
        "image": "vllm/vllm-tpu:latest",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--host=0.0.0.0", f"--model={MODEL}", "--tensor-parallel-size=1"],
    },
    "Neuron": {
        "image": "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:1",
        "command": ["/bin/sh", "-c", f"vllm serve {MODEL} --device neuron --max-num-seqs 4"],
    },
    "uv run": {"image": "x", "command": ["uv", "run", "vllm", "serve", MODEL]},
}


@pytest.mark.parametrize("container", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_as_projects_publish_it_starts_one_engine_of_its_model(container: dict[str, Any]) -> None:
    (found,) = vllm_containers({"spec": {"containers": [container]}})
    assert (found.model, found.engines, found.sharing) == (MODEL, 1, (1, 1, 1))
