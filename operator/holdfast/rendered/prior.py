"""What a spec says of its objectives and of the engines on an accelerator, and what is believed of these engines."""

from __future__ import annotations

from collections import ChainMap

from holdfast.api import llmservice
from holdfast.api.classes import RequestClass
from holdfast.api.llmservice import Accelerator, LLMService, LLMServiceSpec
from holdfast.api.quantities import parse_duration_seconds, parse_percent
from holdfast.domain.service import AcceleratorOption, BatchClass, Hardware, Slo
from holdfast.enginemodel.prior import EnginePrior, option_prior
from holdfast.rendered.engine_settings import engine_settings
from holdfast.rendered.gpu_shares import pod_shares
from holdfast.rendered.names import CONTAINER


def declared_engine(spec: LLMServiceSpec, accelerator: Accelerator) -> AcceleratorOption:
    """The accelerator as far as it determines what its engines are."""
    settings = engine_settings(spec, accelerator)
    return AcceleratorOption(
        name=accelerator.name,
        resource=accelerator.resource,
        gpus_per_replica=accelerator.count,
        pipeline=accelerator.sharing.pipeline,
        data=accelerator.sharing.data,
        nodes=accelerator.nodes,
        node_selector=tuple(sorted(accelerator.node_selector.items())),
        hardware=_hardware(accelerator.hardware),
        memory_utilization=settings.memory_utilization,
        kv_cache_dtype=settings.kv_cache_dtype,
        quantization=settings.quantization,
        is_shared=_is_shared(spec, accelerator),
        adapter_ranks=spec.model.lora.ranks if spec.model.lora else 0,
    )


def declared_objectives(spec: LLMServiceSpec) -> Slo:
    """The objectives of a spec; Batch has none."""
    slo = spec.slo
    claimed = () if slo.claim == "None" else (each for each in slo.classes if each.kind != "Batch")
    return Slo(
        slo.ttft_seconds,
        slo.tpot_seconds,
        slo.objective_share,
        slo.window_seconds,
        slo.e2e_seconds,
        tuple(declared_class(slo, each) for each in (*claimed, *spec.adapter_classes)),
    )


def declared_batch(spec: LLMServiceSpec) -> tuple[BatchClass, ...]:
    """The Batch classes of a spec that requests may claim."""
    claimed = () if spec.slo.claim == "None" else (each for each in spec.slo.classes if each.kind == "Batch")
    return tuple(BatchClass(each.name, each.priority, each.finish_seconds) for each in claimed)


def declared_class(slo: llmservice.SLO, declared: RequestClass) -> Slo:
    """The objectives of a class: what it leaves out is the service's own."""
    ttft, tpot, e2e = (
        getattr(slo, f"{name}_seconds") if (own := getattr(declared, name)) is None else parse_duration_seconds(own)
        for name in ("ttft", "tpot", "e2e")
    )
    objective = parse_percent(declared.objective or slo.objective)
    return Slo(ttft, tpot, objective, slo.window_seconds, e2e, name=declared.name, priority=declared.priority)


def declared_prior(service: LLMService, accelerator: Accelerator) -> EnginePrior:
    """The prior of a replica of the service on one of its accelerators."""
    model = service.spec.model
    return option_prior(model.uri, declared_engine(service.spec, accelerator), model.quantization)


def _is_shared(spec: LLMServiceSpec, accelerator: Accelerator) -> bool:
    """Whether fields or templates make the engine ask for a share of its GPUs."""
    overlays = [overlay or {} for overlay in (spec.template, accelerator.template)]
    pods = [overlay.get("spec") or {} for overlay in overlays]
    engines = [each for pod in pods for each in pod.get("containers") or () if each.get("name") == CONTAINER]
    annotations = [(overlay.get("metadata") or {}).get("annotations") or {} for overlay in overlays]
    asked = [{"resources": spec.engine.resources}, *engines]
    return bool(pod_shares(asked, ChainMap(*annotations), accelerator.resource))


def _hardware(given: llmservice.Hardware | None) -> Hardware | None:
    return None if given is None else Hardware(given.memory_gib, given.bandwidth_gb_s, given.teraflops)
