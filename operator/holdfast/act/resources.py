"""Where objects live under the API server: one table instead of a client class per kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.llmservice import GROUP, PLURAL, VERSION
from holdfast.domain.service import ServiceKey

_PLURALS = {
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "Event": "events",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


def collection_path(api_version: str, kind: str, namespace: str) -> str:
    """Return the path of a namespaced collection; KeyError for a kind the operator does not write."""
    root = "/api" if "/" not in api_version else "/apis"
    return f"{root}/{api_version}/namespaces/{namespace}/{_PLURALS[kind]}"


def object_path(manifest: Mapping[str, Any]) -> str:
    """Return the path of the object a manifest describes."""
    meta = manifest["metadata"]
    return f"{collection_path(manifest['apiVersion'], manifest['kind'], meta['namespace'])}/{meta['name']}"


def deployment_path(namespace: str, name: str) -> str:
    return f"{collection_path('apps/v1', 'Deployment', namespace)}/{name}"


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def service_path(key: ServiceKey) -> str:
    """Return the path of the LLMService itself."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{key.namespace}/{PLURAL}/{key.name}"
