"""What is believed of the engines of a declared service."""

from __future__ import annotations

from holdfast.api.llmservice import Accelerator, Hardware, LLMService
from holdfast.enginemodel.catalog import AcceleratorShape, declared_accelerator
from holdfast.enginemodel.prior import MEMORY_UTILIZATION, EnginePrior, engine_prior
from holdfast.render.engine_settings import engine_settings


def declared_prior(service: LLMService, accelerator: Accelerator) -> EnginePrior:
    """The prior of a replica of the service on one of its accelerators."""
    settings = engine_settings(service.spec, accelerator)
    return engine_prior(
        service.spec.model.uri,
        accelerator.name,
        accelerator.node_selector,
        accelerator.sharing.tensor,
        settings.quantization or service.spec.model.quantization,
        MEMORY_UTILIZATION if settings.memory_utilization is None else settings.memory_utilization,
        resource=accelerator.resource,
        hardware=_declared(accelerator.hardware),
        kv_cache_dtype=settings.kv_cache_dtype,
        pipeline=accelerator.sharing.pipeline,
        data=accelerator.sharing.data,
    )


def _declared(hardware: Hardware | None) -> AcceleratorShape | None:
    if hardware is None:
        return None
    return declared_accelerator(hardware.memory_gib, hardware.bandwidth_gb_s, hardware.teraflops)
