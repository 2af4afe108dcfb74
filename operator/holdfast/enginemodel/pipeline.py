"""The clock of one engine: what its host does next, and when its GPU is done with the steps in flight.

This is `EngineCore.step_with_batch_queue`: while fewer steps are in flight than the engine may have, its thread
schedules and launches the next one; then it waits for the oldest, takes its results, and goes on. An arrival is seen
by the next step that is scheduled.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from holdfast.enginemodel.enginetimer import gpu_of, host_of
from holdfast.enginemodel.host import Host, done_at
from holdfast.enginemodel.scheduler import Scheduler, Sequence, StepPlan
from holdfast.enginemodel.steplaw import StepTimer


@dataclass(frozen=True, slots=True)
class Launched:
    """A step in flight, and when the GPU is done with it."""

    plan: StepPlan
    done_at: float


@dataclass(slots=True)
class Pipeline:
    """One engine's thread and GPU; every time in seconds, `stretch` times as long as the timer says.

    At `due` the thread turns to the next thing: where `ending`, the oldest step in flight ends, and a step is planned
    in any case. An idle engine is never due.
    """

    timer: StepTimer
    stretch: float = 1.0
    due: float = math.inf
    ending: bool = False
    host_at: float = -math.inf
    gpu_at: float = -math.inf
    in_flight: deque[Launched] = field(default_factory=deque)

    def wake(self, now: float) -> None:
        """A request came: an idle engine turns to it."""
        if self.due == math.inf:
            self.due, self.ending = now, False

    @property
    def oldest(self) -> StepPlan:
        """The step in flight that ends next."""
        return self.in_flight[0].plan

    def end(self, scheduler: Scheduler, now: float) -> list[Sequence]:
        """Take the results of the oldest step, at `due`; returns who got a token."""
        return scheduler.complete(self.in_flight.popleft().plan, now)

    def begin(self, scheduler: Scheduler, now: float, clock: float | None = None) -> StepPlan | None:
        """Plan and launch the next step where anything can be computed, and say what is due next.

        `clock` is what the scheduler reads as the time, where that is not `now`. Returns the step in flight, if any.
        """
        plan = scheduler.step(now if clock is None else clock) if scheduler.unfinished else None
        # With nothing in flight a plan without a token is a step all the same: it must not come again at once.
        launches = plan is not None and not (plan.empty and self.in_flight)
        if plan is not None and launches:
            self._launch(plan, now)
        else:
            self.host_at = now
        self._look_ahead(scheduler, launches)
        return plan

    def _launch(self, plan: StepPlan, now: float) -> None:
        host, stretch = host_of(self.timer), self.stretch
        launch_at = now + stretch * (host.schedule_seconds + host.sequence_seconds * plan.sequences)
        self.host_at = launch_at + stretch * host.launch(plan.tokens, bool(plan.prefills))
        seconds = stretch * plan.seconds(gpu_of(self.timer))
        lead, tail = stretch * host.lead_seconds, stretch * host.tail_seconds
        self.gpu_at = done_at(launch_at, self.host_at, self.gpu_at, seconds, lead, tail)
        self.in_flight.append(Launched(plan, self.gpu_at))

    def _look_ahead(self, scheduler: Scheduler, launched: bool) -> None:
        host = host_of(self.timer)
        self.ending = not (launched and scheduler.unfinished and len(self.in_flight) < host.depth)
        if not self.ending:
            self.due = self.host_at
        elif self.in_flight:
            self.due = self._end_of(host, self.in_flight[0])
        else:
            self.due, self.ending = math.inf, False

    def _end_of(self, host: Host, oldest: Launched) -> float:
        taking = host.update_seconds + host.sequence_seconds * oldest.plan.sequences
        return max(self.host_at, oldest.done_at) + self.stretch * taking
