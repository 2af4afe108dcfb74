"""What a spec says of its objectives and of the engines on an accelerator, and what is believed of these engines."""

from __future__ import annotations

from collections import ChainMap

from holdfast.api import llmservice
from holdfast.api.llmservice import Accelerator, LLMService, LLMServiceSpec
from holdfast.domain.service import AcceleratorOption, Hardware, Slo
from holdfast.enginemodel.prior import EnginePrior, option_prior
from holdfast.render.engine_settings import engine_settings
from holdfast.render.gpu_shares import pod_shares
from holdfast.render.names import CONTAINER


def declared_engine(spec: LLMServiceSpec, accelerator: Accelerator) -> AcceleratorOption:
    """The accelerator as far as it determines what its engines are."""
    settings = engine_settings(spec, accelerator)
    return AcceleratorOption(
        name=accelerator.name,
        resource=accelerator.resource,
        gpus_per_replica=accelerator.count,
        pipeline=accelerator.sharing.pipeline,
        data=accelerator.sharing.data,
        node_selector=tuple(sorted(accelerator.node_selector.items())),
        hardware=_hardware(accelerator.hardware),
        memory_utilization=settings.memory_utilization,
        kv_cache_dtype=settings.kv_cache_dtype,
        quantization=settings.quantization,
        is_shared=_is_shared(spec, accelerator),
    )


def declared_objectives(slo: llmservice.SLO) -> Slo:
    """The objectives of a spec."""
    return Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)


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
