"""What the pods that are rendered have in common: no rights, the level `restricted`, and places apart.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.llmservice import LLMService
from holdfast.render.settings import RenderSettings
from holdfast.rendered.names import Manifest

USER = 65532
"""User and group of pods that run the operator's own image."""


def container_security() -> Manifest:
    """The security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def pod_security(settings: RenderSettings, user: int, *ids: str, **more: str) -> Manifest:
    """The security context of a pod, with `user` in the fields `ids` unless the platform assigns them."""
    return {
        "runAsNonRoot": True,
        **settings.ids(user, *ids),
        **more,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def apart(labels: Mapping[str, str]) -> list[Manifest]:
    """Spread the pods with these labels over zones and nodes, as far as that is possible."""
    spread = {
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        "matchLabelKeys": ["pod-template-hash"],
    }
    return [{"topologyKey": key, **spread} for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")]


def front_pod(
    service: LLMService, settings: RenderSettings, grace_seconds: int, container: Manifest, **placement: Any
) -> Manifest:
    """A pod in front of the replicas: one container with the operator's own image, and no rights at the API server."""
    secrets = [{"name": secret.name} for secret in service.spec.engine.image_pull_secrets]
    return {
        "serviceAccountName": service.metadata.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Process number 1 is not ours then. The kernel hides SIGTERM from a first process without a handler: a process
        # that gets it while it starts would stay for the whole grace period.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": grace_seconds,
        **placement,
        "securityContext": pod_security(settings, USER, "runAsUser", "runAsGroup"),
        **({"imagePullSecrets": secrets} if secrets else {}),
        "containers": [container],
    }
