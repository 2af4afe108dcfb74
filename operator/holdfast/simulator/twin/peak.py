"""The smallest size that attains the objective all along: what one pays who knows the load and never scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.simulator.twin.policies import Static
from holdfast.simulator.twin.results import attains
from holdfast.simulator.twin.run import Declared, Finished, simulate
from holdfast.simulator.twin.scenario import Scenario

STATIC_PEAK = "static-peak"


def static_peak(
    scenario: Scenario, declared: Sequence[Declared], seed: int, progress: Callable[[float], None]
) -> Finished:
    """The run of that size, by halving between 1 and the service's maximum; the maximum where none attains it."""
    runs: dict[int, Finished] = {}

    def enough(replicas: int) -> bool:
        runs[replicas] = simulate(scenario, declared, Static(replicas), seed, progress)
        return attains(runs[replicas])

    size = smallest(enough, declared[0].spec.max_replicas)
    if size not in runs:
        enough(size)
    return replace(runs[size], policy=f"{STATIC_PEAK}:{size}")


def smallest(enough: Callable[[int], bool], most: int) -> int:
    """The smallest size from 1 to `most` that is enough, by halving, as if all larger ones were; `most` if none is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
