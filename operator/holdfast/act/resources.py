"""Where objects live under the API server: one table instead of a client class per kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api import group_set, inference_pool, llmbenchmark
from holdfast.api.llmservice import GROUP, PLURAL, VERSION
from holdfast.domain.service import ServiceKey

_KINDS = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("v1", "events"),
    inference_pool.KIND: (inference_pool.GATEWAY_API, inference_pool.PLURAL),
    "Job": ("batch/v1", "jobs"),
    group_set.KIND: (group_set.API_VERSION, group_set.PLURAL),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}


WORKLOADS = frozenset({"Deployment", group_set.KIND})
"""Kinds whose size has a writer of its own."""


def collection_path(api_version: str, kind: str, namespace: str) -> str:
    """Return the path of a namespaced collection; KeyError for a kind the operator does not write."""
    root = "/apis" if "/" in api_version else "/api"
    return f"{root}/{api_version}/namespaces/{namespace}/{_KINDS[kind][1]}"


def live_path(namespace: str, kind: str, name: str) -> str:
    """Return the path of an object by its kind; KeyError for a kind the operator does not write."""
    return f"{collection_path(_KINDS[kind][0], kind, namespace)}/{name}"


def object_path(manifest: Mapping[str, Any]) -> str:
    """Return the path of the object a manifest describes."""
    meta = manifest["metadata"]
    return live_path(meta["namespace"], manifest["kind"], meta["name"])


def deployment_path(namespace: str, name: str) -> str:
    return live_path(namespace, "Deployment", name)


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def claim_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"


def job_path(namespace: str, name: str) -> str:
    return live_path(namespace, "Job", name)


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def benchmark_path(key: ServiceKey) -> str:
    """Return the path of an LLMBenchmark itself."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{key.namespace}/{llmbenchmark.PLURAL}/{key.name}"


def service_path(key: ServiceKey) -> str:
    """Return the path of the LLMService itself."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{key.namespace}/{PLURAL}/{key.name}"
