"""LLMServices and contexts for rendering tests, and the scenes whose manifests stand in tests/golden."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from holdfast.api.llmservice import LLMService
from holdfast.render import AcceleratorFacts, Deployed, RenderContext, RenderSettings, render
from holdfast.rendered.merge import strategic_merge
from holdfast.rendered.names import Manifest

SETTINGS = RenderSettings(pod_files={"launcher.py": "# launcher\n", "prestop.py": "# prestop\n"}, plugin=b"plugin")

MINIMAL: Manifest = yaml.safe_load("""
metadata: {name: chat, namespace: prod, uid: 0a1b2c3d-0000-4000-8000-000000000001, generation: 1}
spec:
  model: {uri: Qwen/Qwen3-8B}
  slo: {ttft: 500ms, tpot: 30ms}
  accelerators:
    - {name: h100, nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
""")

FULL: Manifest = yaml.safe_load("""
metadata:
  name: chat
  namespace: prod
  uid: 0a1b2c3d-0000-4000-8000-000000000002
  labels: {team: search, app.kubernetes.io/managed-by: Helm}
spec:
  model:
    uri: pvc://weights/llama/70b
    servedName: llama
    maxModelLen: 32768
    dtype: bfloat16
    quantization: fp8
    tokenSecretRef: {name: hf, key: token}
    cache: {pvc: compile-cache}
  slo: {ttft: 2s, tpot: 45ms, e2e: 90s, objective: 99.5%}
  accelerators:
    - name: h100
      count: 4
      costPerHour: 2.95
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      env: [{name: VLLM_ATTENTION_BACKEND, value: FLASH_ATTN}]
    - name: mi300x
      resource: amd.com/gpu
      count: 2
      costPerHour: 3.10
      image: rocm/vllm:0.32
      args: [--enforce-eager]
      template: {spec: {runtimeClassName: amd}}
  scaling: {min: 2, max: 6}
  batching: {maxNumSeqs: 256, maxNumBatchedTokens: 4096}
  rollout: {maxSurge: 1}
  engine:
    image: registry.example.com/vllm:v0.32.0
    args: [--enable-prefix-caching, --max-num-queued-tokens=12345]
    env: [{name: VLLM_ATTENTION_BACKEND, value: FLASHINFER}, {name: NCCL_DEBUG, value: WARN}]
    resources: {requests: {cpu: "8", memory: 64Gi}, limits: {memory: 128Gi}}
    shutdownTimeout: 4m
    imagePullSecrets: [{name: registry}]
    apiKeySecretRef: {name: chat-key, key: key}
    tlsSecretRef: {name: chat-tls}
  template:
    metadata: {labels: {team: search}, annotations: {sidecar.istio.io/inject: "false"}}
    spec:
      priorityClassName: serving
      tolerations: [{key: dedicated, operator: Equal, value: serving, effect: NoSchedule}]
      containers:
        - name: vllm
          volumeMounts: [{name: extra, mountPath: /extra}]
        - {name: log, image: registry.example.com/log:1}
      volumes: [{name: extra, configMap: {name: extra}}, {name: cache, emptyDir: {}}]
""")

ADAPTERS: Manifest = yaml.safe_load("""
model:
  servedName: chat
  lora:
    maxRank: 32
    maxLoaded: 2
    adapters:
      - {name: sql, uri: pvc://adapters/team/sql, slo: {ttft: 200ms, priority: 5}}
      - {name: mail, uri: "pvc://adapters/$(mail)/"}
      - {name: chat-de, uri: org/chat-de@0123456789012345678901234567890123456789}
      - {name: legal, uri: /adapters-in-image/legal}
""")


GROUP: Manifest = {"name": "h100x16", "nodes": 2, "parallelism": {"tensor": 8, "pipeline": 2}}


def service(changes: Mapping[str, Any] | None = None, base: Manifest = MINIMAL) -> LLMService:
    """An LLMService: `base` with changes of its spec merged in (lists of accelerators replace)."""
    body = copy.deepcopy(base)
    return LLMService.parse({**body, "spec": strategic_merge(body["spec"], changes or {})})


def context(**facts: Any) -> RenderContext:
    """A context with these facts of the accelerator h100."""
    return RenderContext(accelerators=(("h100", AcceleratorFacts(**facts)),))


def deployments(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """The Deployments by name."""
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] == "Deployment"}


def chat_h100(of: LLMService, facts: RenderContext | None = None, settings: RenderSettings = SETTINGS) -> Manifest:
    """The Deployment of the service on h100."""
    return deployments(render(of, ["h100"], settings, facts or RenderContext()))["chat-h100"]


def live(manifest: Manifest) -> Deployed:
    """What the operator reads back after the API server has added its defaults."""
    body = copy.deepcopy(manifest)
    body["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    deployed = Deployed.read(body)
    assert deployed is not None
    return deployed


def engine(manifest: Manifest) -> Manifest:
    """The vLLM container of a Deployment."""
    containers = manifest["spec"]["template"]["spec"]["containers"]
    found: Manifest = next(item for item in containers if item["name"] == "vllm")
    return found


def golden_scenes() -> dict[str, tuple[Manifest, ...]]:
    """The manifests of every golden file, by its name."""
    minimal = context(surge_room=1, admission_tokens=5600)
    full = RenderContext(
        replicas=3, pod_monitor=True, accelerators=(("h100", AcceleratorFacts(cold_start_seconds=95.0)),)
    )
    oci = service(
        {"model": {"uri": "oci://registry.example.com/models/chat:1", "cache": {"hostPath": "/var/cache/vllm"}}}
    )
    return {
        "minimal": render(service(), ["h100"], SETTINGS, minimal),
        "full": render(service(base=FULL), ["mi300x", "h100"], SETTINGS, full),
        "zero": render(
            service({"scaling": {"min": 0}}),
            ["h100"],
            replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0"),
            replace(minimal, pod_monitor=True, replicas=0, holding=True),
        ),
        "rust": render(
            service({"engine": {"frontEnd": "Rust"}}),
            ["h100"],
            SETTINGS,
            replace(context(surge_room=1), pod_monitor=True),
        ),
        "pool": render(
            service({"inferencePool": {"endpointPicker": {"name": "chat-epp"}}}),
            ["h100"],
            SETTINGS,
            replace(context(surge_room=1), inference_pools=True),
        ),
        "router": render(
            service({"router": {}}),
            ["h100"],
            replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0"),
            replace(context(surge_room=1), routed=True),
        ),
        "lora": render(service(ADAPTERS), ["h100"], SETTINGS, context(surge_room=1)),
        "group": render(
            service({"accelerators": [GROUP]}),
            ["h100x16"],
            SETTINGS,
            RenderContext(group_sets=True, accelerators=(("h100x16", AcceleratorFacts(surge_room=1)),)),
        ),
        "oci": render(oci, ["h100"], SETTINGS, RenderContext()),
    }
