"""Engines with the plugin's fast loop: its own code, as in the emulator, on the twin's clock.

One object per request and step, so a hundred times slower than the compiled loop, which is held to what happens here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.domain.service import Slo
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.replay import ReplayClock
from holdfast.enginemodel.scheduler import Sequence as Request
from holdfast.enginemodel.scheduler import SequenceStatus, StepPlan
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.twin import engines
from holdfast.twin.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.state_arrays import (
    EXACT,
    LEAST_OUTSTANDING,
    LOST,
    NEVER,
    NOBODY,
    REJECTED,
    RUNNING,
    STEPS,
    UNSERVED,
    WAITING,
)
from holdfast.twin.timers import Floats
from holdfast_engine.leastsquares import UNITS
from holdfast_engine.limits import LimitsFiles
from holdfast_engine.rules import Limits


class GivenLimits(LimitsFiles):
    """Limits that are there from the start, in place of files."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(list[Path]())
        self._given: Limits | None = limits

    def poll(self, now: float) -> Limits | None:
        """The limits at the first look, then nothing new."""
        given, self._given = self._given, None
        self.current = given or self.current
        return given


@dataclass(slots=True)
class _Engine:
    scheduler: FastLoopScheduler
    clock: ReplayClock
    timer: StepTimer
    plan: StepPlan | None = None
    numbers: dict[Request, int] = field(default_factory=dict)


class ObjectFleet(EngineFleet):
    """A fleet of emulated engines; `told` are the limits for each kind."""

    def __init__(
        self, workload: Workload, kinds: Sequence[EngineSpec], slo: Slo, routing: Routing, told: Sequence[Limits]
    ) -> None:
        super().__init__(workload, kinds, slo, routing, told)
        self._told = tuple(told)
        self._engines: dict[int, _Engine] = {}

    def add(self, kind: int = 0) -> int:
        number = super().add(kind)
        clock, engine = ReplayClock(self.now), self.kinds[kind]
        scheduler = FastLoopScheduler(engine.limits, GivenLimits(self._told[kind]), clock)
        self._engines[number] = _Engine(scheduler, clock, engine.timer)
        return number

    def remove(self, engine: int) -> int:
        del self._engines[engine]
        return super().remove(engine)

    def advance(self, until: float) -> None:
        """Let time pass: the same order of events as in the compiled loop."""
        world, requests, book = self._world, self._world.requests, self._world.book[0]
        number = int(book["next_request"])
        while number < len(requests) and requests[number]["at"] <= until:
            at = float(requests[number]["at"])
            if book["router"] == LEAST_OUTSTANDING:
                self._advance_all(at)
            where = int(engines.route(world, number))
            if where == NOBODY:
                requests[number]["state"] = UNSERVED
            else:
                self._advance(where, at)
                self._arrive(number, where, at)
            number += 1
        book["next_request"] = number
        self._advance_all(until)
        self.now = until

    def _held_blocks(self) -> Floats:
        held = np.zeros(len(self._world.engines))
        for number, engine in self._engines.items():
            held[number] = sum(sequence.blocks for sequence in engine.numbers)
        return held

    def _advance_all(self, until: float) -> None:
        for number in sorted(self._engines):
            self._advance(number, until)

    def _advance(self, number: int, until: float) -> None:
        engine, record = self._engines[number], self._world.engines[number]
        if not record["due"] < until:
            return
        scheduler, due = engine.scheduler, float(record["due"])
        while due < until:
            engine.clock.now = due
            if engine.plan is not None:
                self._complete(number, engine, due)
            if scheduler.unfinished:
                engine.plan = scheduler.step(due)
                record["cached_tokens"] += _found_in_cache(engine.plan)
                record["preemptions"] += len(engine.plan.preempted)
                for sequence in (*engine.plan.admitted, *engine.plan.preempted):
                    running = sequence.status is SequenceStatus.RUNNING
                    self._world.requests[engine.numbers[sequence]]["state"] = RUNNING if running else WAITING
                due += float(record["stretch"]) * engine.plan.seconds(engine.timer)
            else:
                engine.plan, record["idle_at"], due = None, due, NEVER
        record["due"] = due
        self._note(number, engine)

    def _arrive(self, number: int, where: int, at: float) -> None:
        engine, record, request = self._engines[where], self._world.engines[where], self._world.requests[number]
        request["engine"] = where
        engine.clock.now = max(engine.clock.now, at)
        if engine.scheduler.sends_away():
            # The headers of a stream go out before it waits: its client comes over another connection next time.
            self._world.connections[request["connection"]]["engine"] = NOBODY
        prompt, output = int(request["prompt"]), int(request["output"])
        if engine.scheduler.refuse(prompt) is not None or not engine.scheduler.fits(prompt, output):
            request["state"] = REJECTED
            record["rejected"] += 1
            return
        sequence = Request(prompt, output, at, int(request["cached"]))
        engine.scheduler.add(sequence)
        engine.numbers[sequence] = number
        request["state"] = WAITING
        record["outstanding_tokens"] += prompt
        if record["due"] == NEVER:
            record["due"] = at
        self._note(where, engine)

    def _complete(self, where: int, engine: _Engine, now: float) -> None:
        """Apply a step that ended, and write down what clients saw of it."""
        assert engine.plan is not None
        emitted = engine.scheduler.complete(engine.plan, now)
        self._world.engines[where]["output_tokens"] += len(emitted)
        for sequence in emitted:
            if sequence.generated == 1:
                engines.start_answer(self._world, where, engine.numbers[sequence], now)
            if sequence.status is SequenceStatus.FINISHED:
                self._finish(where, engine, sequence, now)
        for sequence in engine.scheduler.too_old():
            engine.scheduler.abort(sequence)
            self._world.requests[engine.numbers.pop(sequence)]["state"] = LOST
            self._world.engines[where]["outstanding_tokens"] -= sequence.prompt_tokens

    def _finish(self, where: int, engine: _Engine, sequence: Request, now: float) -> None:
        number = engine.numbers.pop(sequence)
        request = self._world.requests[number]
        request["generated"], request["preemptions"] = sequence.generated, sequence.preemptions
        # The scheduler has freed the blocks already; the record says so after the step.
        engines.finish(self._world, where, number, now)

    def _note(self, number: int, engine: _Engine) -> None:
        """Write down what /metrics would show now."""
        record, scheduler = self._world.engines[number], engine.scheduler
        record["running"], record["waiting"] = len(scheduler.running), len(scheduler.waiting)
        record["free_blocks"], record["queued_tokens"] = scheduler.free_blocks, scheduler.queued_prompt_tokens
        record["waiting_late"] = scheduler.loop.queue.order.sizes[2]
        for name, value in zip(EXACT, scheduler.loop.counts(), strict=True):
            record[name] = value
        fit = scheduler.loop.fit
        for term, name in enumerate(STEPS):
            record[name] = UNITS[term] * (fit.sums[term] + fit._block[term])


def _found_in_cache(plan: StepPlan) -> int:
    """Tokens of prompts that begin with this step, and that need no computing."""
    return sum(
        before for sequence, _, before in plan.prefills if sequence in plan.admitted and not sequence.preemptions
    )
