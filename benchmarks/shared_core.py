"""What the plugin would cost if it ran the twin's arrays: one load, one fast loop written twice, each timed per step.

    python -m benchmarks.shared_core

Two ways to run the hooks of every step in Python, as the plugin must: the plugin's own objects and heaps, and the
twin's functions on numpy's records as they stand. CPU time of the hooks alone. One run, seed 0.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

# As in an engine's image: the twin's functions stay Python.
sys.modules["numba"] = None  # type: ignore[assignment]

import numpy as np  # noqa: E402

from holdfast.domain.service import Slo  # noqa: E402
from holdfast.emulator.fast_loop import FastLoopScheduler  # noqa: E402
from holdfast.enginemodel.replay import Arrival, ReplayClock, replay_on  # noqa: E402
from holdfast.enginemodel.scheduler import SchedulerLimits  # noqa: E402
from holdfast.enginemodel.steplaw import StepLaw  # noqa: E402
from holdfast.twin.arrays import fast_loop  # noqa: E402
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload  # noqa: E402
from holdfast_engine.law.arithmetic import Law  # noqa: E402
from holdfast_engine.objectives.rules import Limits, Objectives  # noqa: E402
from tests.fakes import GivenLimits  # noqa: E402

LAW = StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9)
SLO = Slo(ttft_seconds=1.0, tpot_seconds=0.05, objective=0.95, window_seconds=3600.0)
ENGINE = SchedulerLimits(256, 2048, 400_000)
RATE_RPS, SECONDS = 8.0, 60.0
TOLD = Limits(1, Objectives(SLO.ttft_seconds, SLO.tpot_seconds), prior=Law(*(getattr(LAW, f"c{n}") for n in range(5))))
OF_OBJECTS = ("before_step", "scheduled", "came", "updated", "arrive", "finish")
OF_ARRAYS = ("before_step", "scheduled", "step_ended", "answers_began", "answers_ended", "updated", "arrive")


class Timed:
    """CPU seconds in the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.steps += name == "scheduled"
            began = time.process_time()
            found = function(*given)
            self.seconds += time.process_time() - began
            return found

        return call

    @property
    def microseconds_per_step(self) -> float:
        return 1e6 * self.seconds / self.steps


def load() -> Workload:
    draw = np.random.default_rng(0)
    count = int(RATE_RPS * SECONDS)
    at = np.cumsum(draw.exponential(1.0 / RATE_RPS, count))
    prompts, outputs = draw.integers(50, 2000, count), draw.integers(200, 600, count)
    return Workload(at, prompts, outputs, np.zeros(count, np.int64))


def of_objects(asked: Workload) -> Timed:
    """The plugin's own code."""
    timed, clock = Timed(), ReplayClock()
    scheduler = FastLoopScheduler(ENGINE, GivenLimits(TOLD), clock)
    for name in OF_OBJECTS:
        setattr(scheduler.loop, name, timed.wrap(name, getattr(scheduler.loop, name)))
    columns = (asked.at, asked.prompt_tokens, asked.output_tokens)
    arrivals = [Arrival(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
    replay_on(scheduler, arrivals, LAW, clock)
    return timed


def of_arrays(asked: Workload) -> Timed:
    """The twin's functions."""
    timed, own = Timed(), {name: getattr(fast_loop, name) for name in OF_ARRAYS}
    for name, function in own.items():
        setattr(fast_loop, name, timed.wrap(name, function))
    fleet = EngineFleet(asked, [EngineSpec(LAW, ENGINE)], SLO, Routing("round-robin"), [TOLD])
    fleet.add()
    fleet.advance(math.inf)
    for name, function in own.items():
        setattr(fast_loop, name, function)
    return timed


def main() -> None:
    asked = load()
    own, found = of_objects(asked), of_arrays(asked)
    ratio = found.microseconds_per_step / own.microseconds_per_step
    print(f"{RATE_RPS:g} requests/s for {SECONDS:g} s, at most 256 sequences; microseconds of CPU per step")
    print(f"the plugin's objects and heaps        {own.microseconds_per_step:6.1f}  {own.steps} steps")
    print(f"the twin's functions, numpy's records {found.microseconds_per_step:6.1f}  {found.steps} steps")
    print(f"ratio                                 {ratio:6.1f}")


if __name__ == "__main__":
    main()
