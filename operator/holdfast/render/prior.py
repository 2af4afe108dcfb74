"""What is believed of the engines of a declared service."""

from __future__ import annotations

from holdfast.api.llmservice import Accelerator, Hardware, LLMService
from holdfast.enginemodel.catalog import AcceleratorShape, declared_accelerator
from holdfast.enginemodel.prior import EnginePrior, engine_prior


def declared_prior(service: LLMService, accelerator: Accelerator) -> EnginePrior:
    """The prior of a replica of the service on one of its accelerators."""
    model = service.spec.model
    return engine_prior(
        model.uri,
        accelerator.name,
        accelerator.node_selector,
        accelerator.count,
        model.quantization,
        resource=accelerator.resource,
        hardware=_declared(accelerator.hardware),
    )


def _declared(hardware: Hardware | None) -> AcceleratorShape | None:
    if hardware is None:
        return None
    return declared_accelerator(hardware.memory_gib, hardware.bandwidth_gb_s, hardware.teraflops)
