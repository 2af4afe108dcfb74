"""LLMService as declared, and as deployed -> what decisions need of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.api import llmservice
from holdfast.api.llmservice import LLMService
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceKey, ServiceSpec, Slo
from holdfast.render.admission import admission
from holdfast.render.context import Admission


def to_spec(service: LLMService) -> ServiceSpec:
    """Return the domain's view of a service of which nothing is deployed yet."""
    meta, spec = service.metadata, service.spec
    return ServiceSpec(
        key=ServiceKey(meta.namespace, meta.name),
        uid=meta.uid,
        generation=meta.generation,
        model_uri=spec.model.uri,
        slo=_slo(spec.slo),
        accelerators=tuple(_option(accelerator, admission(service, accelerator)) for accelerator in spec.accelerators),
        min_replicas=spec.scaling.min,
        max_replicas=spec.scaling.max,
        pinned_replicas=spec.replicas,
        recommend_only=spec.mode == "Recommend",
        max_cost_per_hour=spec.budget.max_cost_per_hour,
        batching=_batching(spec.batching),
        max_model_len=spec.model.max_model_len,
        quantization=spec.model.quantization,
    )


def as_deployed(spec: ServiceSpec, deployed: Mapping[str, Admission | None]) -> ServiceSpec:
    """Return the spec with the sequences at a time that engines run with, by the names of deployed accelerators.

    It is the same object where they run with what would be rendered now.
    """
    if spec.batching.max_num_seqs is not None:
        return spec
    options = tuple(
        replace(option, max_num_seqs=_sequences(deployed[option.name])) if option.name in deployed else option
        for option in spec.accelerators
    )
    return spec if options == spec.accelerators else replace(spec, accelerators=options)


def _slo(slo: llmservice.SLO) -> Slo:
    return Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)


def _sequences(limits: Admission | None) -> int | None:
    return limits.active_sequences if limits else None


def _option(accelerator: llmservice.Accelerator, limits: Admission | None) -> AcceleratorOption:
    return AcceleratorOption(
        name=accelerator.name,
        resource=accelerator.resource,
        gpus_per_replica=accelerator.count,
        cost_per_gpu_hour=accelerator.cost_per_hour,
        max_replicas=accelerator.max,
        node_selector=tuple(sorted(accelerator.node_selector.items())),
        max_num_seqs=_sequences(limits),
    )


def _batching(batching: llmservice.Batching | None) -> BatchingLimits:
    if batching is None:
        return BatchingLimits()
    return BatchingLimits(batching.max_num_seqs, batching.max_num_batched_tokens)
