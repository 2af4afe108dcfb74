"""LLMService as declared -> the domain's ServiceSpec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.api import llmservice, scaling
from holdfast.api.llmservice import LLMService
from holdfast.api.template_rules import PodTemplate
from holdfast.domain.service import AcceleratorOption, BatchingLimits, Schedule, ServiceKey, ServiceSpec
from holdfast.domain.taints import Toleration
from holdfast.rendered.declared import inputs, revision
from holdfast.rendered.merge import strategic_merge
from holdfast.rendered.prior import declared_batch, declared_engine, declared_objectives


def to_spec(service: LLMService, max_priority: int | None = None, pin_lacked_by: str = "") -> ServiceSpec:
    """Return the domain's view of a service; no priority counts above `max_priority`."""
    meta, spec = service.metadata, service.spec
    return ServiceSpec(
        key=ServiceKey(meta.namespace, meta.name),
        uid=meta.uid,
        generation=meta.generation,
        model_uri=spec.model.uri,
        slo=declared_objectives(spec),
        accelerators=tuple(_option(service, accelerator) for accelerator in spec.accelerators),
        min_replicas=spec.scaling.min,
        max_replicas=spec.scaling.max,
        min_on_demand=spec.scaling.min_on_demand,
        schedules=tuple(_schedule(schedule) for schedule in spec.scaling.schedules),
        pinned_replicas=spec.replicas,
        pin_lacked_by=pin_lacked_by,
        recommend_only=spec.only_recommends,
        max_cost_per_hour=spec.budget.max_cost_per_hour,
        priority=spec.priority if max_priority is None else min(spec.priority, max_priority),
        declared_priority=spec.priority,
        batching=_batching(spec.batching),
        batching_fixed=spec.batching.mode == "Fixed",
        max_model_len=spec.model.max_model_len,
        quantization=spec.model.quantization,
        may_surge=spec.rollout.max_surge != 0,
        startup_seconds=spec.engine.startup_timeout_seconds,
        batch=declared_batch(spec),
    )


def _schedule(schedule: scaling.Schedule) -> Schedule:
    return Schedule(
        name=schedule.name,
        timezone=schedule.timezone,
        zone=_zone(schedule.timezone),
        start_minute=schedule.start_minute,
        end_minute=schedule.end_minute,
        days=frozenset(scaling.DAYS.index(day) for day in schedule.days),
        min_replicas=schedule.min,
    )


def _zone(name: str) -> ZoneInfo | None:
    """The time zone of that name; None if the system's database has no valid entry for it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _option(service: LLMService, accelerator: llmservice.Accelerator) -> AcceleratorOption:
    return replace(
        declared_engine(service.spec, accelerator),
        cost_per_gpu_hour=accelerator.cost_per_hour,
        max_replicas=accelerator.max,
        spot=accelerator.spot,
        tolerations=tuple(_tolerations(accelerator, service.spec.template)),
        revision=revision(service, accelerator),
        pods=inputs(service, accelerator),
    )


def _tolerations(accelerator: llmservice.Accelerator, template: PodTemplate | None) -> Iterator[Toleration]:
    """The tolerations of its pods that Kubernetes would accept."""
    pods: dict[str, Any] = {"tolerations": accelerator.tolerations}
    for overlay in (template, accelerator.template):
        given = (overlay or {}).get("spec") or {}
        if "tolerations" in given:
            pods = strategic_merge(pods, {"tolerations": given["tolerations"]})
    for each in pods.get("tolerations", ()):
        said = {name: each.get(name) or "" for name in ("key", "value", "effect")}
        yield Toleration(**said, operator=each.get("operator") or "Equal")


def _batching(batching: llmservice.Batching) -> BatchingLimits:
    return BatchingLimits(batching.max_num_seqs, batching.max_num_batched_tokens)
