"""The InferencePool of an LLMService: how a gateway that the platform runs reaches its replicas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt

from holdfast.api import fields
from holdfast.api.rules import ApiModel, Rule

GROUP, VERSION = "inference.networking.k8s.io", "v1"
GATEWAY_API = f"{GROUP}/{VERSION}"
KIND = "InferencePool"
PLURAL = "inferencepools"
PICKER_PORT = 9002
"""Where endpoint pickers of the Gateway API Inference Extension listen by default."""


class EndpointPicker(ApiModel):
    """The Service of an endpoint picker (EPP) that the platform runs, in the same namespace."""

    name: fields.ObjectName
    """Name of the Service."""
    port: Annotated[StrictInt, Field(ge=1, le=65_535)] = PICKER_PORT
    """Port of the Service, on which the endpoint picker speaks ext_proc."""


class InferencePool(ApiModel):
    """An InferencePool (Gateway API Inference Extension) of the replicas, with the name of the LLMService."""

    endpoint_picker: EndpointPicker
    """Endpoint picker that chooses a replica for each request of the gateway."""


POOL_WITHOUT_ZERO = Rule(
    "!has(self.inferencePool) || self.scaling.min > 0",
    "scaling.min 0 and inferencePool exclude each other, because a gateway reaches replicas without the activator,"
    " which would start one: raise scaling.min, or remove inferencePool",
    lambda spec: spec.inference_pool is None or spec.scaling.min > 0,
    ".scaling",
)


def api_missing(pool: InferencePool | None) -> str:
    """What to say where the cluster lacks the API of a pool; empty where a spec names no pool."""
    if pool is None:
        return ""
    return (
        f"inferencePool is set and the cluster has no {GATEWAY_API}, so a gateway does not find the replicas: install "
        "the Gateway API Inference Extension, or remove inferencePool"
    )
