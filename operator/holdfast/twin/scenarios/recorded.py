"""A scenario of one service and the requests that it had: nothing fails, and GPUs are there for all its replicas."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.api.llmservice import LLMService
from holdfast.api.quantities import format_duration
from holdfast.domain.service import ServiceSpec
from holdfast.enginemodel.prior import option_shape
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.scenario import Scenario

NAME = "recorded"


def recorded(
    service: LLMService, spec: ServiceSpec, load: Workload, cold_start_seconds: float
) -> tuple[Scenario, Declared]:
    """The scenario with the service's first accelerator; BadInput where the twin has no step times of that.

    `spec` is what decisions know of the service.
    """
    option = spec.accelerators[0]
    shape = None if option.hardware else option_shape(option)
    if shape is None:
        raise BadInput(f"{option.name}: its step times are not known; the twin plays those of holdfast catalog")
    here = {
        "system": shape.system,
        "gpus": spec.max_replicas * option.gpus_per_replica,
        "coldStart": format_duration(cold_start_seconds),
    }
    arrivals = {"arrivals": {"trace": {"path": NAME, "format": "csv"}}}
    scenario = Scenario.model_validate(
        {
            "name": NAME,
            "duration": format_duration(math.ceil(load.at[-1] + 1e-9)),
            "services": [{"name": NAME, "spec": service.spec, "workload": arrivals}],
            "cluster": {"accelerators": {option.name: here}},
        }
    )
    return scenario, Declared(service, replace(spec, accelerators=(option,)), load, {})


def beginning_with(declared: Declared, replicas: int) -> Declared:
    """The service with so many replicas at the first request, under policies without a size of their own."""
    return replace(declared, initial_replicas={declared.spec.accelerators[0].name: replicas})
