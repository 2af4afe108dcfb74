"""The pod template of one accelerator, and the two hashes that decide when it may change."""

from __future__ import annotations

import math

from holdfast.api.llmservice import Accelerator, Batching, LLMService
from holdfast.render import arguments, names, plugin, volumes
from holdfast.render.container import TEARDOWN_SECONDS, engine_container, engine_image
from holdfast.render.context import Objectives
from holdfast.render.merge import strategic_merge
from holdfast.render.names import Manifest
from holdfast.render.settings import RenderSettings

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
        "metadata": {"annotations": scrape_annotations(service)} if scraped_by_annotation else {},
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
    """Labels of the pods, among them those that join Prometheus series to the service."""
    return {
        **names.owned_labels(service),
        **names.queue_labels(service),
        **selector(service, accelerator),
        names.METRIC_SERVICE_LABEL: service.metadata.name,
        names.METRIC_ACCELERATOR_LABEL: accelerator.name,
        names.METRIC_REVISION_LABEL: revision(service, accelerator),
        **({names.FRONT_END_LABEL: "rust"} if service.spec.engine.has_rust_front_end else {}),
    }


def revision(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with model, image, front end and arguments only: what a replica carries is estimated per revision."""
    image = engine_image(service.spec, accelerator)
    rust = ["rust"] if service.spec.engine.has_rust_front_end else []
    return names.short_hash([image, *arguments.capacity_arguments(service.spec, accelerator), *rust])


def inputs(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with what the user owns of a pod: only then may running pods be replaced.

    Defaults are left out, so that a field that a later version adds changes nothing; the image is named, because
    its default moves from version to version.
    """
    spec = service.spec
    # Who chooses the limits within what an engine was started with, changes while it serves.
    owned = spec.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"model", "engine", "batching", "template"},
        exclude={"batching": {"mode"}},
    )
    candidate = accelerator.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"cost_per_hour", "hardware", "max", "spot"}
    )
    queue = names.queue_labels(service)
    return names.short_hash([owned, candidate, engine_image(spec, accelerator), *([queue] if queue else [])])


def engine_inputs(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with what makes an engine but for its limits: where two are alike, so is what a benchmark found of them.

    Bounds, schedules, budget, priority and objectives leave it as it is; limits are told beside a result.
    """
    spec = service.spec.model_copy(update={"batching": Batching()})
    return inputs(service.model_copy(update={"spec": spec}), accelerator)


def grace_period_seconds(service: LLMService, settings: RenderSettings) -> int:
    """Time from the decision to end a pod to its SIGKILL."""
    return settings.prestop_seconds + math.ceil(service.spec.engine.shutdown_timeout_seconds) + TEARDOWN_SECONDS


def pod_files_name(service: LLMService, settings: RenderSettings) -> str:
    """The ConfigMap with the mounted files, named by content: a new version leaves running pods what they have."""
    return f"{service.metadata.name}-pod-{settings.mounted_files_hash(service.spec)}"


def scrape_annotations(service: LLMService) -> dict[str, str]:
    """For a Prometheus that finds its targets by annotation."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(names.pod_port(service.spec)[1]),
        "prometheus.io/path": names.METRICS_PATH,
        "prometheus.io/scheme": names.scheme(service),
    }


def _placement(service: LLMService, accelerator: Accelerator) -> Manifest:
    spread = {
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(service, accelerator)},
        "matchLabelKeys": ["pod-template-hash"],
    }
    chosen = {
        "nodeSelector": dict(accelerator.node_selector),
        "tolerations": [dict(toleration) for toleration in accelerator.tolerations],
        "imagePullSecrets": [{"name": secret.name} for secret in service.spec.engine.image_pull_secrets],
    }
    return {
        **{field: value for field, value in chosen.items() if value},
        "topologySpreadConstraints": [
            {"topologyKey": key, **spread} for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
    }


def _identity(service: LLMService, settings: RenderSettings) -> Manifest:
    return {
        "serviceAccountName": service.metadata.name,
        "automountServiceAccountToken": False,
        # A Service called `vllm` would otherwise set VLLM_PORT, which vLLM reads.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **settings.ids(_USER, "runAsUser", "runAsGroup", "fsGroup"),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
