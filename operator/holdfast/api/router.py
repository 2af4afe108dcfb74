"""The router of an LLMService: vllm-router in front of its replicas, run by Holdfast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from holdfast.api import fields
from holdfast.api.rules import ApiModel, Rule


class Router(ApiModel):
    """vllm-router in front of the replicas: it chooses the replica of each request."""

    replicas: Annotated[StrictInt, Field(ge=1, le=32)] = 2
    """Number of router pods."""
    policy: Literal["RoundRobin", "ConsistentHash"] = "RoundRobin"
    """Who gets a request: the next replica in turn, or always the same one for the same x-session-id."""
    resources: fields.Resources = Field(default_factory=dict)
    """Resource requests and limits of a router pod. Default: requests of 500m CPU and 512Mi, a limit of 2Gi."""


_ROUTED = "!has(self.router)"
API_KEY = "VLLM_API_KEY"
"""vLLM's variable of the key that it asks clients for."""
_KEYLESS = f"{{}}.env.all(e, e.name != '{API_KEY}')"
_POOL_KEYLESS = f"{{}}.accelerators.all(a, !has(a.env) || {_KEYLESS.format('a')})"


def _has_key(env: Iterable[Mapping[str, Any]] | None) -> bool:
    return any(variable.get("name") == API_KEY for variable in env or ())


def _with_env(spec: Any) -> Iterator[Any]:
    """What may name variables of engines."""
    yield from (spec.engine, *spec.accelerators)
    if spec.prefill is not None:
        yield from (spec.prefill, *spec.prefill.accelerators)


ROUTER_RULES = (
    Rule(
        f"{_ROUTED} || !has(self.inferencePool)",
        "router and inferencePool exclude each other: remove the one that does not route",
        lambda spec: spec.router is None or spec.inference_pool is None,
        ".router",
    ),
    Rule(
        f"{_ROUTED} || !has(self.engine) || !has(self.engine.tlsSecretRef)",
        "router and engine.tlsSecretRef exclude each other, because vllm-router speaks no TLS: terminate TLS at a"
        " gateway, or remove router",
        lambda spec: spec.router is None or spec.engine.tls_secret_ref is None,
        ".router",
    ),
    Rule(
        f"{_ROUTED} || !has(self.engine) || !has(self.engine.apiKeySecretRef)",
        "router and engine.apiKeySecretRef exclude each other, because vllm-router lets everybody who reaches it add an"
        " address, and sends requests there with their keys: ask for the key at a gateway, or remove router",
        lambda spec: spec.router is None or spec.engine.api_key_secret_ref is None,
        ".router",
    ),
    Rule(
        f"{_ROUTED} || (!has(self.engine) || !has(self.engine.env) || {_KEYLESS.format('self.engine')})"
        f" && (!has(self.accelerators) || {_POOL_KEYLESS.format('self')})"
        f" && (!has(self.prefill) || (!has(self.prefill.env) || {_KEYLESS.format('self.prefill')})"
        f" && (!has(self.prefill.accelerators) || {_POOL_KEYLESS.format('self.prefill')}))",
        f"router and {API_KEY} in env exclude each other, because vllm-router sends keys to any address that somebody"
        f" adds: ask for the key at a gateway, and remove {API_KEY}, or router",
        lambda spec: spec.router is None or not any(_has_key(each.env) for each in _with_env(spec)),
        ".router",
    ),
    Rule(
        f"{_ROUTED} || self.overload == 'Queue'",
        "router and overload Reject exclude each other, because vllm-router sends a refused request to other replicas,"
        " and each of them would count it: remove overload, or router",
        lambda spec: spec.router is None or spec.overload == "Queue",
        ".router",
    ),
)
ROUTER_IS_TAKEN = Rule(
    f"{_ROUTED} || self.accelerators.all(a, a.name != 'router')",
    "with router no accelerator may have the name router, which the operator uses: rename it",
    lambda spec: spec.router is None or all(a.name != "router" for a in spec.accelerators),
    ".accelerators",
)
