"""vllm-router in front of a service's replicas: its pods, and how they find the replicas without any rights."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.api.llmservice import LLMService
from holdfast.api.quantities import parse_whole
from holdfast.api.router import Router
from holdfast.render import restricted
from holdfast.render.pod_template import grace_period_seconds
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.merge import strategic_merge
from holdfast.rendered.names import Manifest
from holdfast.rendered.pools import prefill_name

_NO_DEADLINE = 2**31 - 1
_COMPONENT = {"app.kubernetes.io/name": names.MANAGER, "app.kubernetes.io/component": "router"}
_POLICIES = {"ConsistentHash": "consistent_hash"}
"""What vllm-router calls a policy that is not `holdfast route`'s default."""
_RESOURCES = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}


def is_wanted(service: LLMService, settings: RenderSettings) -> bool:
    """Whether the service has a router: its pods run the operator's own image."""
    return bool(settings.activator_image) and service.spec.router is not None


def router(service: LLMService, declared: Router, settings: RenderSettings) -> Iterator[Manifest]:
    """Every object of it; its pods may do nothing at the API server."""
    name = service.metadata.name
    yield _replicas(service, names.replicas_name(name), name)
    if service.spec.prefill is not None:
        yield _replicas(service, names.prefill_replicas_name(name), prefill_name(name))
    if declared.replicas > 1:
        yield _disruption_budget(service)
    yield _deployment(service, declared, settings)


def selector(service: LLMService) -> dict[str, str]:
    """The label of router pods, not that of engines: pods that carry that one count as replicas."""
    return {names.ROUTER_LABEL: service.metadata.name}


def _replicas(service: LLMService, name: str, pool: str) -> Manifest:
    """Headless: its name has one address for each replica of a pool.

    A replica is listed from its start until it is gone. The router asks each whether it is ready: a cached answer of
    DNS may be 30 s old.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(service, name, _COMPONENT),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.SERVICE_LABEL: pool},
            "ports": [names.service_port(names.PORT_NAME, names.PORT, "http")],
        },
    }


def _disruption_budget(service: LLMService) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(service, names.router_name(service.metadata.name), _COMPONENT),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(service)},
        },
    }


def _deployment(service: LLMService, declared: Router, settings: RenderSettings) -> Manifest:
    labels = {**names.user_labels(service), **_COMPONENT, **selector(service)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(service, names.router_name(service.metadata.name), _COMPONENT),
        "spec": {
            "replicas": declared.replicas,
            "selector": {"matchLabels": selector(service)},
            # A router is ready once a replica is, however long that takes.
            "progressDeadlineSeconds": _NO_DEADLINE,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": _pod(service, declared, settings)},
        },
    }


def _pod(service: LLMService, declared: Router, settings: RenderSettings) -> Manifest:
    grace_seconds, container = grace_period_seconds(service, settings), _container(service, declared, settings)
    placement = {"topologySpreadConstraints": restricted.apart(selector(service))}
    return restricted.front_pod(service, settings, grace_seconds, container, **placement)


def _container(service: LLMService, declared: Router, settings: RenderSettings) -> Manifest:
    def probe(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": names.PORT_NAME}, "timeoutSeconds": 5}

    return {
        "name": "router",
        "image": settings.activator_image,
        "args": _arguments(service, declared, settings),
        "ports": [
            {"name": names.PORT_NAME, "containerPort": names.PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.ROUTER_METRICS_PORT, "protocol": "TCP"},
        ],
        # 200 while it has a replica to send requests to. For several pools vllm-router says so of its models alone.
        "readinessProbe": {**probe("/v1/models" if service.spec.prefill else "/readiness"), "periodSeconds": 2},
        "livenessProbe": {**probe("/liveness"), "periodSeconds": 10, "failureThreshold": 6},
        "securityContext": restricted.container_security(),
        "resources": _resources(declared),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(declared: Router) -> Manifest:
    """What is declared, merged into ours; a limit of ours that is less than what is requested is raised to that."""
    asked = declared.resources.get("requests", {}).get("memory")
    is_more = (parse_whole(asked) or 0) > (parse_whole(_RESOURCES["limits"]["memory"]) or 0)
    ours = {**_RESOURCES, "limits": {"memory": asked}} if is_more else _RESOURCES
    return strategic_merge(ours, declared.resources)


def _arguments(service: LLMService, declared: Router, settings: RenderSettings) -> list[str]:
    name, namespace = service.metadata.name, service.metadata.namespace
    pools = []
    if service.spec.prefill is not None:
        prefill, model = names.prefill_replicas_name(name), service.spec.model.served_model_name
        pools = [f"--prefill={prefill}.{namespace}.svc", f"--model={names.literal(model)}"]
    flags = [f"--policy={_POLICIES[declared.policy]}"] if declared.policy in _POLICIES else []
    replicas = f"--replicas={names.replicas_name(name)}.{namespace}.svc"
    return ["route", replicas, *pools, f"--linger={settings.prestop_seconds}", *flags]
