"""The objects other than Deployments."""

from __future__ import annotations

import re

from holdfast.api.inference_pool import GATEWAY_API, KIND, EndpointPicker
from holdfast.api.llmservice import LLMService
from holdfast.render.engine_limits import engine_limits
from holdfast.render.pod_template import pod_files_name
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.context import RenderContext
from holdfast.rendered.names import Manifest


def service_account(service: LLMService) -> Manifest:
    """The pods' identity: they have no business with the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(service, service.metadata.name),
        "automountServiceAccountToken": False,
    }


def kubernetes_service(service: LLMService, *, holding: bool = False, routed: bool = False) -> Manifest:
    """Where clients connect: all ready replicas, whatever their accelerator, or the activator or router before them."""
    port = names.service_port(names.PORT_NAME, names.PORT, "http" if holding else names.scheme(service))
    label = names.ACTIVATOR_LABEL if holding else names.ROUTER_LABEL if routed else names.SERVICE_LABEL
    selector = {label: service.metadata.name}
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

    Pods that answer by themselves show all their metrics on a port of their own. A rollout, or an upgrade of the
    operator, leaves pods of both kinds side by side.
    """
    scheme = names.scheme(service)
    label = "__meta_kubernetes_pod_label_" + re.sub("[^a-z]", "_", names.FRONT_END_LABEL)
    drop = {"sourceLabels": [label], "regex": ".+", "action": "drop"}
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
            "podMetricsEndpoints": [{**endpoint, "relabelings": [drop]}, {**endpoint, "port": names.POD_PORT_NAME}],
        },
    }


def inference_pool(service: LLMService, picker: EndpointPicker) -> Manifest:
    """What a route of a gateway names: the replicas; the endpoint picker chooses among the ready ones.

    Source: Gateway API Inference Extension v1.5.0, api/v1/inferencepool_types.go.
    """
    return {
        "apiVersion": GATEWAY_API,
        "kind": KIND,
        "metadata": names.metadata(service, service.metadata.name),
        "spec": {
            "selector": {"matchLabels": _selector(service)},
            "targetPorts": [{"number": names.PORT}],
            "endpointPickerRef": {"name": picker.name, "port": {"number": picker.port}},
        },
    }


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
    """The engines' limits by accelerator: for pods that start while no operator can write to them."""
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
