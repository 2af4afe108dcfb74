"""A vLLM Deployment as a stranger would have written it, its pods and its LLMService."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.api.llmservice import LLMService
from holdfast.domain.cluster import NodeOffer
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.spec import to_spec

HASH = "7d9f8c6b5d"
PRODUCT = "nvidia.com/gpu.product"
CONTAINER = {
    "name": "server",
    "image": "vllm/vllm-openai:v0.32.0",
    "args": ["--model=Qwen/Qwen3-8B", "--tensor-parallel-size", "2", "--max-num-seqs=64"],
    "resources": {"limits": {"nvidia.com/gpu": "2"}},
}


def service(name: str = "chat", target: str = "my-vllm", **spec: Any) -> ServiceParts:
    """Return a service with a target, as declared."""
    body = {
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "generation": 1},
        "spec": {"slo": {"ttft": "1s", "tpot": "50ms"}, "target": {"kind": "Deployment", "name": target}, **spec},
    }
    parsed = LLMService.parse(body)
    return ServiceParts(parsed, to_spec(parsed))


def deployment(name: str = "my-vllm", *, replicas: int = 2, **pod: Any) -> dict[str, Any]:
    """Return a Deployment whose pods have run for long; `pod` overrides fields of its pod spec."""
    return {
        "metadata": {"name": name, "namespace": "prod", "generation": 1, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [CONTAINER], **pod}},
        },
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas},
    }


def owned(controller: bool = True, **annotations: str) -> dict[str, Any]:
    """Return the Deployment of a KServe InferenceService."""
    body = deployment()
    owner = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "chat"}
    body["metadata"] |= {"ownerReferences": [{**owner, "controller": controller}], "annotations": annotations}
    return body


def pod(number: int, node: str = "n1", *, of: str = "my-vllm", **meta: Any) -> dict[str, Any]:
    """Return a Ready pod of a Deployment."""
    return {
        "metadata": {
            "name": f"{of}-{HASH}-x2x4{'bcdfghjkl'[number]}",
            "namespace": "prod",
            "labels": {"app": of, "pod-template-hash": HASH},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{of}-{HASH}", "controller": True}],
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **meta,
        },
        "spec": {"nodeName": node, "containers": [CONTAINER]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
        },
    }


def node(name: str = "n1", product: str = "NVIDIA-H100-80GB-HBM3", **labels: str) -> NodeOffer:
    """Return a node with eight GPUs."""
    known = {PRODUCT: product, "kubernetes.io/hostname": name, **labels}
    return NodeOffer(name, tuple(sorted(known.items())), (("nvidia.com/gpu", 8),))


def with_container(**changes: Any) -> dict[str, Any]:
    """Return the Deployment with another vLLM container."""
    return deployment(containers=[{**CONTAINER, **changes}])


def named(part: ServiceParts, priority: int) -> ServiceParts:
    """Return the service with the priority that counts in its namespace."""
    return dataclasses.replace(part, spec=dataclasses.replace(part.spec, priority=priority))
