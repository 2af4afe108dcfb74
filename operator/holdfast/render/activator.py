"""What a service needs that may run no replica: who holds its requests, and a way from there to its engines."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.api.llmservice import LLMService, LLMServiceSpec
from holdfast.render import restricted
from holdfast.render.engine_limits import request_class
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.context import RenderContext
from holdfast.rendered.names import Manifest

LONGEST_SECONDS = 900
"""A request is held for so long: a large model from a slow registry takes minutes, few clients wait for more."""

_LINGER_SECONDS = 30
_COMPONENT = {"app.kubernetes.io/name": names.MANAGER, "app.kubernetes.io/component": "activator"}


def is_wanted(service: LLMService, settings: RenderSettings, holding: bool = False) -> bool:
    """Whether the service has an activator, also while replicas run; one that clients are led to stays so long."""
    return bool(settings.activator_image) and (service.spec.scaling.min == 0 or holding)


def activator(service: LLMService, settings: RenderSettings, context: RenderContext) -> Iterator[Manifest]:
    """Every object of it; none may do anything at the API server."""
    name = service.metadata.name
    yield _service(service, names.engines_name(name), {names.SERVICE_LABEL: name}, names.PORT_NAME, names.PORT)
    asked = _service(service, names.activator_name(name), _own(service), names.ADMIN_PORT_NAME, names.ADMIN_PORT)
    # One that is being replaced may still hold requests: the operator is to hear of them.
    asked["spec"]["publishNotReadyAddresses"] = True
    yield asked
    if context.pod_monitor:
        yield _pod_monitor(service, settings)
    yield _deployment(service, settings, context)


def _own(service: LLMService) -> dict[str, str]:
    """Not the label of engines: pods that carry it count as replicas."""
    return {names.ACTIVATOR_LABEL: service.metadata.name}


def _service(service: LLMService, name: str, selector: dict[str, str], port_name: str, port: int) -> Manifest:
    ports = [names.service_port(port_name, port, "http")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(service, name, _COMPONENT),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": ports},
    }


def _pod_monitor(service: LLMService, settings: RenderSettings) -> Manifest:
    labels = {**_COMPONENT, **settings.pod_monitor_labels}
    endpoint = {
        "port": names.ADMIN_PORT_NAME,
        "path": names.METRICS_PATH,
        "interval": settings.scrape_interval,
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": names.metadata(service, names.activator_name(service.metadata.name), labels),
        "spec": {
            "selector": {"matchLabels": _own(service)},
            "podTargetLabels": [names.METRIC_SERVICE_LABEL],
            "podMetricsEndpoints": [endpoint],
        },
    }


def _deployment(service: LLMService, settings: RenderSettings, context: RenderContext) -> Manifest:
    """One pod: who waits is in its memory; a rollout starts the next one first, and lets the old one finish."""
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(names.ADMIN_PORT),
        "prometheus.io/path": names.METRICS_PATH,
    }
    labels = {**names.user_labels(service), **_COMPONENT, **_own(service)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(service, names.activator_name(service.metadata.name), _COMPONENT),
        "spec": {
            "selector": {"matchLabels": _own(service)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {
                    "labels": {**labels, names.METRIC_SERVICE_LABEL: service.metadata.name},
                    **({} if context.pod_monitor else {"annotations": scraped}),
                },
                "spec": restricted.front_pod(
                    service, settings, LONGEST_SECONDS + _LINGER_SECONDS, _container(service, settings)
                ),
            },
        },
    }


def _container(service: LLMService, settings: RenderSettings) -> Manifest:
    probe = {"httpGet": {"path": "/healthz", "port": names.ADMIN_PORT_NAME}}
    return {
        "name": "activator",
        "image": settings.activator_image,
        "args": _arguments(service),
        "ports": [
            {"name": names.PORT_NAME, "containerPort": names.PORT, "protocol": "TCP"},
            {"name": names.ADMIN_PORT_NAME, "containerPort": names.ADMIN_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {**probe, "periodSeconds": 2, "timeoutSeconds": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "securityContext": restricted.container_security(),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }


def _arguments(service: LLMService) -> list[str]:
    """The engines of this service are the only address it knows; behind a key, model names are no business of its."""
    meta, spec = service.metadata, service.spec
    engines = f"http://{names.engines_name(meta.name)}.{meta.namespace}.svc:{names.PORT}"
    adapters = spec.model.lora.adapters if spec.model.lora else ()
    models = [spec.model.served_model_name, *(each.name for each in adapters)]
    named = [] if spec.engine.api_key_secret_ref else [f"--model={names.literal(each)}" for each in models]
    return ["activate", f"--upstream={engines}", f"--longest={LONGEST_SECONDS}", *named, *_patient(spec)]


def _patient(spec: LLMServiceSpec) -> Iterator[str]:
    """The classes of headers that may wait longer than a request without a class: Batch for ever."""
    claimed = (request_class(spec.slo, each) for each in spec.slo.classes if spec.slo.claim in (None, "Header"))
    for each in claimed:
        if each.objectives.ttft_seconds > spec.slo.ttft_seconds:
            yield f"--patient={each.name}={each.objectives.ttft_seconds:g}"
