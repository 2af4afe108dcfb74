"""An InferencePool for a gateway: made where the cluster has the API, asked for where it has not.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest e2e/test_inference_pool.py
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition

pytestmark = pytest.mark.cluster

_NUMBER = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}
_TEXT = {"type": "string"}
_SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {
            "type": "object",
            "properties": {"matchLabels": {"type": "object", "additionalProperties": _TEXT}},
        },
        "targetPorts": {"type": "array", "minItems": 1, "x-kubernetes-list-type": "atomic", "items": _NUMBER},
        "endpointPickerRef": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "group": {**_TEXT, "default": ""},
                "kind": {**_TEXT, "default": "Service"},
                "name": _TEXT,
                "port": _NUMBER,
                "failureMode": {**_TEXT, "default": "FailClose"},
            },
            "x-kubernetes-validations": [
                {"rule": "self.kind != 'Service' || has(self.port)", "message": "a Service needs a port"}
            ],
        },
    },
}
"""As the Gateway API Inference Extension v1.5.0 declares it (config/crd/bases), without descriptions."""

_POOL = {"endpointPicker": {"name": "chat-epp"}}


@pytest.fixture(scope="module", autouse=True)
def unattended(cluster: str) -> None:
    """No operator runs in the cluster: it would answer for the same service, before and after the API is there."""
    stack.uninstall()


def _gateway_api() -> AbstractContextManager[None]:
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC}}
    return stack.optional_api("inference.networking.k8s.io", "InferencePool", schema)


def test_an_inference_pool_is_made_repaired_and_deleted_where_the_api_exists(api: Kubectl, namespace: Kubectl) -> None:
    namespace.apply(stack.service("chat", inferencePool=_POOL))
    with stack.operator_outside(namespace.namespace):
        found = namespace.wait_for("llms", "chat", _lacks_the_api, 60, "ApiMissing")
        assert "remove inferencePool" in condition(found, "Stalled")["message"]
        namespace.wait_until(lambda: namespace.exists("service", "chat"), 60, "the Service")
    with _gateway_api(), stack.operator_outside(namespace.namespace):
        namespace.wait_until(lambda: namespace.exists("inferencepools", "chat"), 60, "the pool")
        made = namespace.get_json("inferencepools", "chat")
        assert made["spec"]["endpointPickerRef"] == {
            "group": "",
            "kind": "Service",
            "name": "chat-epp",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        }
        assert made["spec"]["selector"] == {"matchLabels": namespace.get_json("service", "chat")["spec"]["selector"]}
        namespace.wait_for("llms", "chat", lambda found: not _lacks_the_api(found), 60, "the API to be found")
        namespace.patch("inferencepools", "chat", {"spec": {"endpointPickerRef": {"name": "another"}}})
        namespace.wait_until(lambda: _picker(namespace) == "chat-epp", 60, "the picker as declared")
        namespace.patch("llms", "chat", {"spec": {"inferencePool": {"endpointPicker": {"name": "second"}}}})
        namespace.wait_until(lambda: _picker(namespace) == "second", 60, "the picker as edited")
        namespace.patch("llms", "chat", {"spec": {"inferencePool": None}})
        namespace.wait_until(lambda: not namespace.exists("inferencepools", "chat"), 60, "the pool to be gone")


def _lacks_the_api(found: Json) -> bool:
    return bool(condition(found, "Stalled").get("reason") == "ApiMissing")


def _picker(place: Kubectl) -> str:
    return str(place.get_json("inferencepools", "chat")["spec"]["endpointPickerRef"]["name"])
