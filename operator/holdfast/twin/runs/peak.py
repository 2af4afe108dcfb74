"""The smallest size that attains the objective all along: what one pays who knows the load and never scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.domain.service import ServiceSpec
from holdfast.twin.policies import Static
from holdfast.twin.runs.results import attains
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

STATIC_PEAK = "static-peak"


def static_peak(
    scenario: Scenario, declared: Sequence[Declared], seed: int, progress: Callable[[float], None]
) -> Finished:
    """The run of that size, by halving up to the service's maximum, or to what fits: the most where none attains."""
    runs: dict[int, Finished] = {}

    def enough(replicas: int) -> bool:
        runs[replicas] = simulate(scenario, declared, Static(replicas), seed, progress)
        return attains(runs[replicas])

    spec = declared[0].spec
    size = smallest(enough, min(spec.max_replicas, max(1, room(scenario, spec))))
    if size not in runs:
        enough(size)
    return replace(runs[size], policy=f"{STATIC_PEAK}:{size}")


def room(scenario: Scenario, spec: ServiceSpec) -> int:
    """Replicas of a service alone that the GPUs of its first accelerator hold."""
    first = spec.accelerators[0]
    return scenario.cluster.accelerators[first.name].gpus // first.gpus_per_replica


def smallest(enough: Callable[[int], bool], most: int) -> int:
    """The smallest size from 1 to `most` that is enough, by halving, as if all larger ones were; `most` if none is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
