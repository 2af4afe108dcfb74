"""Settings of a spec that people should hear about: each function returns a sentence, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.api.pod_security import mapping

_IDS = ("runAsUser", "runAsGroup", "fsGroup")


def ids_by_null(service: LLMService, accelerator: Accelerator) -> str:
    """Whether a template wants to leave ids to the platform by nulls, which `kubectl apply` drops.

    Client-side apply sends a merge patch, in which null deletes a field; `{}` is what is left of a map of nulls.
    """
    remedy = "to leave ids to the platform, start the operator with --platform-assigns-ids"
    for place, template in _templates(service, accelerator):
        security = mapping(template.get("spec")).get("securityContext")
        if security == {}:
            return f"{place}.spec.securityContext is empty and removes no id: `kubectl apply` drops nulls; {remedy}"
        if any(mapping(security).get(field, 0) is None for field in _IDS):
            return (
                f"{place}.spec.securityContext removes ids by null only until the next `kubectl apply` without "
                f"--server-side, which drops nulls, so that replicas with ids replace these; {remedy}"
            )
    return ""


def _templates(service: LLMService, accelerator: Accelerator) -> list[tuple[str, Mapping[str, Any]]]:
    given = (("template", service.spec.template), (f"accelerators[{accelerator.name}].template", accelerator.template))
    return [(place, template) for place, template in given if template]
