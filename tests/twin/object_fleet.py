"""Engines with the plugin's fast loop: its own code, as in the emulator, on the twin's clock.

One object per request and step, so a hundred times slower than the compiled loop, which is held to what happens here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from holdfast.domain.service import Slo
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.enginetimer import host_of
from holdfast.enginemodel.frontdesk import FrontDesk
from holdfast.enginemodel.pipeline import Pipeline
from holdfast.enginemodel.replay import ReplayClock
from holdfast.enginemodel.scheduler import LoraRequest, SequenceStatus, StepPlan
from holdfast.enginemodel.scheduler import Sequence as Request
from holdfast.twin.arrays import arrivals, step_end
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.arrays.state_arrays import (
    BATCH_SUMS,
    ENTERING,
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
from holdfast.twin.arrays.timers import Floats
from holdfast_engine.law.leastsquares import UNITS
from holdfast_engine.law.steplaw import BLOCK
from holdfast_engine.objectives.claims import CLAIMED, header_key
from holdfast_engine.objectives.rules import SERVICE_CLASS, Limits
from holdfast_engine.stats import stats_fields
from tests.fakes import GivenLimits

WORD = "word"
"""What keeps claims of headers apart from those of bodies."""


@dataclass(slots=True)
class _Engine:
    scheduler: FastLoopScheduler
    clock: ReplayClock
    pipeline: Pipeline
    desk: FrontDesk
    entering: deque[tuple[float, float, int]] = field(default_factory=deque)
    numbers: dict[Request, int] = field(default_factory=dict)


class ObjectFleet(EngineFleet):
    """A fleet of emulated engines; `told` are the limits for each kind."""

    def __init__(
        self, workload: Workload, kinds: Sequence[EngineSpec], slo: Slo, routing: Routing, told: Sequence[Limits]
    ) -> None:
        super().__init__(workload, kinds, slo, routing, told)
        self._told, numbers = tuple(told), workload.of_class
        names = ["", *(each.name for each in told[0].classes)]
        self._claims = [names[of] for of in ([0] * len(workload) if numbers is None else numbers.tolist())]
        self._engines: dict[int, _Engine] = {}

    def add(self, kind: int = 0) -> int:
        number = super().add(kind)
        clock, engine = ReplayClock(self.now), self.kinds[kind]
        timer = engine.started_timer
        graphs = host_of(timer).graphs.captured
        scheduler = FastLoopScheduler(engine.limits, GivenLimits(self._told[kind]), clock, graphs, own_name=WORD)
        desk = FrontDesk(host_of(timer).front_end)
        self._engines[number] = _Engine(scheduler, clock, Pipeline(timer), desk)
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
            where = int(arrivals.route(world, number))
            if where == NOBODY:
                requests[number]["state"] = UNSERVED
            else:
                self._advance(where, at)
                self._read(number, where, at)
            number += 1
        book["next_request"] = number
        self._advance_all(until)
        self.now = until

    def verdicts(self, engines: Sequence[int]) -> Floats:
        """As the compiled loop tells them: bad ones are those that were refused, too."""
        return np.array([self._verdicts(self._engines[number].scheduler) for number in engines])

    def _verdicts(self, scheduler: FastLoopScheduler) -> list[float]:
        found: list[float] = []
        for each in self._told[0].classes:
            tally = scheduler.loop.ledger.classes[each.name]
            bad = sum(tally.bad.values()) + scheduler.rejected[each.name]
            found += [tally.good, bad, tally.unjudged if each.is_batch else 0.0]
        return found

    def _held_blocks(self) -> Floats:
        held = np.zeros(len(self._world.engines))
        for number, engine in self._engines.items():
            held[number] = sum(sequence.blocks for sequence in engine.numbers)
        return held

    def _advance_all(self, until: float) -> None:
        for number in sorted(self._engines):
            self._advance(number, until)

    def _advance(self, number: int, until: float) -> None:
        engine = self._engines[number]
        pipeline, entering = engine.pipeline, engine.entering
        while True:
            if entering and entering[0][0] <= pipeline.due and entering[0][0] < until:
                self._enter(number, engine, *entering.popleft())
            elif pipeline.due < until:
                self._turn(number, engine, pipeline.due)
            else:
                break
        self._note(number, engine)

    def _turn(self, number: int, engine: _Engine, now: float) -> None:
        scheduler, pipeline, record = engine.scheduler, engine.pipeline, self._world.engines[number]
        engine.clock.now, pipeline.stretch = now, float(record["stretch"])
        if pipeline.ending:
            self._complete(number, engine, now)
        plan = pipeline.begin(scheduler, now)
        if plan is not None:
            record["cached_tokens"] += _found_in_cache(plan)
            record["preemptions"] += len(plan.preempted)
            for sequence in (*plan.admitted, *plan.preempted):
                running = sequence.status is SequenceStatus.RUNNING
                self._world.requests[engine.numbers[sequence]]["state"] = RUNNING if running else WAITING
        if pipeline.due == NEVER:
            record["idle_at"] = now

    def _read(self, number: int, where: int, at: float) -> None:
        engine, request = self._engines[where], self._world.requests[number]
        request["engine"], request["state"] = where, ENTERING
        read_at, enters_at = engine.desk.read(at, int(request["prompt"]))
        if enters_at <= at and not engine.entering:
            self._enter(where, engine, enters_at, read_at, number)
        else:
            engine.entering.append((enters_at, read_at, number))
        self._note(where, engine)

    def _enter(self, where: int, engine: _Engine, now: float, read_at: float, number: int) -> None:
        record, request = self._world.engines[where], self._world.requests[number]
        engine.clock.now = max(engine.clock.now, now)
        if engine.scheduler.sends_away():
            # The headers of a stream go out before it waits: its client comes over another connection next time.
            self._world.connections[request["connection"]]["engine"] = NOBODY
        prompt, output, claim = int(request["prompt"]), int(request["output"]), self._claims[number]
        own, scheduler = self._told[0].by_name[claim], engine.scheduler
        header = SERVICE_CLASS if own.adapter else claim
        CLAIMED.set(header)
        refused = scheduler.refuse(prompt) is not None
        if refused or not scheduler.fits(prompt, output):
            request["state"] = REJECTED
            record["rejected"] += not own.is_batch
            scheduler.rejected[header] += not refused
            return
        sequence = Request(prompt, output, read_at, int(request["cached"]))
        sequence.sampling_params = SimpleNamespace(extra_args={header_key(WORD): header})
        sequence.lora_request = LoraRequest(claim) if own.adapter else None
        engine.scheduler.add(sequence)
        engine.numbers[sequence] = number
        request["state"] = WAITING
        record["outstanding_tokens"] += prompt
        engine.pipeline.wake(now)

    def _complete(self, where: int, engine: _Engine, now: float) -> None:
        """Apply a step that ended, and write down what clients saw of it."""
        emitted = engine.pipeline.end(engine.scheduler, now)
        engine.desk.write(emitted, now)
        self._world.engines[where]["output_tokens"] += len(emitted)
        for sequence in emitted:
            if sequence.generated == 1:
                step_end.start_answer(self._world, where, engine.numbers[sequence], now, sequence.first_seen_at)
            if sequence.status is SequenceStatus.FINISHED:
                self._finish(where, engine, sequence)
        for sequence in engine.scheduler.too_old():
            engine.scheduler.abort(sequence)
            self._world.requests[engine.numbers.pop(sequence)]["state"] = LOST
            self._world.engines[where]["outstanding_tokens"] -= sequence.prompt_tokens

    def _finish(self, where: int, engine: _Engine, sequence: Request) -> None:
        number = engine.numbers.pop(sequence)
        request = self._world.requests[number]
        request["generated"], request["preemptions"] = sequence.generated, sequence.preemptions
        # The scheduler has freed the blocks already; the record says so after the step.
        step_end.finish(self._world, where, number, sequence.last_seen_at)

    def _note(self, number: int, engine: _Engine) -> None:
        """Write down what /metrics would show now."""
        record, scheduler = self._world.engines[number], engine.scheduler
        record["due"], record["enters_at"] = engine.pipeline.due, engine.entering[0][0] if engine.entering else NEVER
        record["running"], record["waiting"] = len(scheduler.running), len(scheduler.waiting)
        record["free_blocks"], record["queued_tokens"] = scheduler.free_blocks, scheduler.queued_prompt_tokens
        record["waiting_late"] = scheduler.loop.queue.order.sizes[2]
        ledger, batch = scheduler.loop.ledger, scheduler.loop.batch
        judged = [tally for name, tally in ledger.classes.items() if not self._told[0].by_name[name].is_batch]
        counted = [dict(zip(stats_fields.COUNTS, tally.numbers, strict=False)) for tally in (ledger.own, *judged)]
        for name in EXACT:
            record[name] = sum(each[name.removeprefix("judged_")] for each in counted)
        for name, value in zip(BATCH_SUMS, batch.sums, strict=True):
            record[name] = value
        record["batch_running"], record["batch_waiting"] = batch.running, scheduler.loop.queue.order.batch_count
        fit = scheduler.loop.fit
        for term, name in enumerate(STEPS):
            record[name] = UNITS[term] * (fit.sums[term] + fit.rows[BLOCK][term])


def _found_in_cache(plan: StepPlan) -> int:
    """Tokens of prompts that begin with this step, and that need no computing."""
    return sum(
        before for sequence, _, before in plan.prefills if sequence in plan.admitted and not sequence.preemptions
    )
