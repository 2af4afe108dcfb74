"""The objects beside the Deployments."""

from __future__ import annotations

import re

from holdfast.api.llmservice import LLMService
from holdfast.render import names
from holdfast.render.context import RenderContext
from holdfast.render.engine_limits import engine_limits
from holdfast.render.names import Manifest
from holdfast.render.pod_template import pod_files_name
from holdfast.render.settings import RenderSettings


def service_account(service: LLMService) -> Manifest:
    """The pods' identity: they have no business with the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(service, service.metadata.name),
        "automountServiceAccountToken": False,
    }


def kubernetes_service(service: LLMService, *, holding: bool = False) -> Manifest:
    """Where clients connect: all ready replicas, whatever their accelerator, or the activator in their place."""
    port = names.service_port(names.PORT_NAME, names.PORT, "http" if holding else names.scheme(service))
    selector = {names.ACTIVATOR_LABEL: service.metadata.name} if holding else _selector(service)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(service, service.metadata.name),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": [port]},
    }


def disruption_budget(service: LLMService, max_unavailable: int) -> Manifest:
    """So many replicas may be unavailable, and any that is neither ready nor loading may be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(service, service.metadata.name),
        "spec": {
            "maxUnavailable": max_unavailable,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": _selector(service),
                "matchExpressions": [{"key": names.LOADING_LABEL, "operator": "DoesNotExist"}],
            },
        },
    }


def loading_budget(service: LLMService) -> Manifest:
    """No loading replica may be evicted: with a minimum of 0 only ready pods may, which soon lose their mark.

    A dot is in its name, as in no name of an LLMService: the budget of another service has another name.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(service, f"{service.metadata.name}.loading"),
        "spec": {
            "minAvailable": 0,
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "selector": {
                "matchLabels": _selector(service),
                "matchExpressions": [{"key": names.LOADING_LABEL, "operator": "Exists"}],
            },
        },
    }


def pod_monitor(service: LLMService, settings: RenderSettings) -> Manifest:
    """How the Prometheus operator finds the pods; vLLM's /metrics asks for no API key.

    With the Rust front end a rollout has pods of both kinds: those with it show all their metrics on a port of the pod.
    """
    scheme = names.scheme(service)
    endpoint: Manifest = {
        "port": names.PORT_NAME,
        "path": names.METRICS_PATH,
        "interval": settings.scrape_interval,
        "scheme": scheme,
        # Pods are scraped by address, which no certificate names.
        **({"tlsConfig": {"insecureSkipVerify": True}} if scheme == "https" else {}),
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": names.metadata(service, service.metadata.name, dict(settings.pod_monitor_labels)),
        "spec": {
            "selector": {"matchLabels": _selector(service)},
            "podTargetLabels": list(names.METRIC_LABELS),
            "podMetricsEndpoints": _of_both(endpoint) if service.spec.engine.has_rust_front_end else [endpoint],
        },
    }


def _of_both(endpoint: Manifest) -> list[Manifest]:
    label = "__meta_kubernetes_pod_label_" + re.sub("[^a-z]", "_", names.FRONT_END_LABEL)
    drop = {"sourceLabels": [label], "regex": "rust", "action": "drop"}
    return [{**endpoint, "relabelings": [drop]}, {**endpoint, "port": names.POD_PORT_NAME}]


def pod_files(service: LLMService, settings: RenderSettings) -> Manifest:
    """The files mounted at /holdfast; deletable once no ReplicaSet uses them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(
            service, pod_files_name(service, settings), {names.COMPONENT_LABEL: names.POD_FILES}
        ),
        "immutable": True,
        **settings.mounted_files(service.spec),
    }


def limits(service: LLMService, context: RenderContext) -> Manifest:
    """What engines are told, by accelerator: for pods that start while no operator can write it to them."""
    numbered = dict(context.limits)
    declared = {
        accelerator.name: numbered.get(accelerator.name)
        or engine_limits(service, accelerator, max(1, service.metadata.generation))
        for accelerator in service.spec.accelerators
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(service, names.limits_name(service.metadata.name)),
        "data": {name: found.to_json() for name, found in declared.items()},
    }


def _selector(service: LLMService) -> dict[str, str]:
    return {names.SERVICE_LABEL: service.metadata.name}
