"""Settings of a spec that people should hear about: each function returns a sentence, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.api.pod_security import engines, mapping, mappings

_IDS = ("runAsUser", "runAsGroup", "fsGroup")
_UPDATING = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_ON = ("1", "true")  # vllm/envs.py


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


def adapters_at_run_time(service: LLMService, accelerator: Accelerator) -> str:
    """Whether clients may load adapters into single replicas."""
    if str(_variables(service, accelerator).get(_UPDATING)).strip().lower() not in _ON:
        return ""
    return (
        f"{_UPDATING} is set, but an adapter that is loaded at run time is missing on all other and all new replicas, "
        "where requests for it get 404; declare adapters in model.lora.adapters"
    )


def unknown_link(accelerator: Accelerator) -> str:
    """What the estimate of a group's capacity leaves out."""
    if accelerator.nodes == 1:
        return ""
    found = (
        f"{accelerator.name}: the speed of the link between the {accelerator.nodes} nodes of a replica is unknown, so "
        "its capacity is estimated as on one node until requests were measured"
    )
    per_node = accelerator.count // accelerator.nodes
    if accelerator.sharing.tensor <= per_node:
        return found
    remedy = f"set parallelism.tensor to {per_node} and pipeline to {accelerator.nodes}"
    return f"{found}; each layer is spread over the nodes and waits for that link: {remedy}"


def _variables(service: LLMService, accelerator: Accelerator) -> dict[Any, Any]:
    """The engine's own variables by name; of several places the last one counts, as in its pods."""
    found = [engine for _, template in _templates(service, accelerator) for engine in engines(template)]
    overlaid = [variable for engine in found for variable in mappings(engine.get("env"))]
    listed: list[Mapping[str, Any]] = [*service.spec.engine.env, *accelerator.env, *overlaid]
    return {each.get("name"): each.get("value") for each in listed}


def _templates(service: LLMService, accelerator: Accelerator) -> list[tuple[str, Mapping[str, Any]]]:
    given = (("template", service.spec.template), (f"accelerators[{accelerator.name}].template", accelerator.template))
    return [(place, template) for place, template in given if template]
