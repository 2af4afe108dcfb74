"""The pod template of one accelerator, and the two hashes that decide when it may change."""

from __future__ import annotations

import math

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.render import arguments, plugin, restricted, volumes
from holdfast.render.container import TEARDOWN_SECONDS, engine_container
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.context import Objectives
from holdfast.rendered.declared import own_front_end, pod_port, revision
from holdfast.rendered.merge import strategic_merge
from holdfast.rendered.names import Manifest

_USER = 2000
"""User and group of the engine; any but 0, images need not know it."""


def pod_template(
    service: LLMService,
    accelerator: Accelerator,
    objectives: Objectives,
    admission_tokens: int | None,
    settings: RenderSettings,
    *,
    scraped_by_annotation: bool,
) -> Manifest:
    """The whole template: ours, the service's overlay over it, the accelerator's over both, our labels last."""
    spec = service.spec
    with_plugin = bool(settings.plugin) and not plugin.withheld(spec, accelerator)
    flags = arguments.engine_flags(spec, accelerator, objectives, admission_tokens, with_plugin=with_plugin)
    template: Manifest = {
        "metadata": {"annotations": scrape_annotations(service, accelerator)} if scraped_by_annotation else {},
        "spec": {
            **_placement(service, accelerator),
            **_identity(service, settings),
            "terminationGracePeriodSeconds": grace_period_seconds(service, settings),
            "containers": [engine_container(spec, accelerator, flags, settings)],
            "volumes": [
                *volumes.volumes(spec, pod_files_name(service, settings)),
                *(plugin.volumes(service.metadata.name, accelerator) if with_plugin else []),
            ],
        },
    }
    for overlay in (spec.template, accelerator.template):
        template = strategic_merge(template, overlay or {})
    return strategic_merge(template, {"metadata": {"labels": pod_labels(service, accelerator)}})


def selector(service: LLMService, accelerator: Accelerator) -> dict[str, str]:
    """The labels by which a Deployment finds its pods; they never change."""
    return {names.SERVICE_LABEL: service.metadata.name, names.ACCELERATOR_LABEL: accelerator.name}


def pod_labels(service: LLMService, accelerator: Accelerator) -> dict[str, str]:
    """Labels of the pods, including the labels that join Prometheus series to the service."""
    front_end = own_front_end(service.spec, accelerator)
    return {
        **names.owned_labels(service),
        **names.queue_labels(service),
        **selector(service, accelerator),
        names.METRIC_SERVICE_LABEL: service.metadata.name,
        names.METRIC_ACCELERATOR_LABEL: accelerator.name,
        names.METRIC_REVISION_LABEL: revision(service, accelerator),
        **({names.FRONT_END_LABEL: front_end} if front_end else {}),
    }


def grace_period_seconds(service: LLMService, settings: RenderSettings) -> int:
    """Time from the decision to end a pod to its SIGKILL."""
    return settings.prestop_seconds + math.ceil(service.spec.engine.shutdown_timeout_seconds) + TEARDOWN_SECONDS


def pod_files_name(service: LLMService, settings: RenderSettings) -> str:
    """The ConfigMap with the mounted files, named by content: a new version leaves running pods what they have."""
    return f"{service.metadata.name}-pod-{settings.mounted_files_hash(service.spec)}"


def scrape_annotations(service: LLMService, accelerator: Accelerator) -> dict[str, str]:
    """For a Prometheus that finds its targets by annotation."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(pod_port(service.spec, accelerator)[1]),
        "prometheus.io/path": names.METRICS_PATH,
        "prometheus.io/scheme": names.scheme(service),
    }


def _placement(service: LLMService, accelerator: Accelerator) -> Manifest:
    chosen = {
        "nodeSelector": dict(accelerator.node_selector),
        "tolerations": [dict(toleration) for toleration in accelerator.tolerations],
        "imagePullSecrets": [{"name": secret.name} for secret in service.spec.engine.image_pull_secrets],
    }
    return {
        **{field: value for field, value in chosen.items() if value},
        "topologySpreadConstraints": restricted.apart(selector(service, accelerator)),
    }


def _identity(service: LLMService, settings: RenderSettings) -> Manifest:
    return {
        "serviceAccountName": names.declared_name(service),
        "automountServiceAccountToken": False,
        # A Service called `vllm` would otherwise set VLLM_PORT, which vLLM reads.
        "enableServiceLinks": False,
        "securityContext": restricted.pod_security(
            settings, _USER, "runAsUser", "runAsGroup", "fsGroup", fsGroupChangePolicy="OnRootMismatch"
        ),
    }
