"""The fast loop in the emulator: the engine plugin's own code, hooked in where the plugin hooks into vLLM's scheduler.

Nothing of holdfast_engine is copied here; `FastLoopScheduler` is to `Scheduler` what the plugin's class is to vLLM's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.emulator.client_reports import ClientReports
from holdfast.emulator.pairs import LEASE_SECONDS, read_blocks
from holdfast.enginemodel.scheduler import (
    AtDoor,
    Refusal,
    RejectReason,
    Scheduler,
    SchedulerLimits,
    SequenceStatus,
    StepPlan,
    WaitingQueue,
)
from holdfast.enginemodel.scheduler import Sequence as Request
from holdfast_engine import VERSION
from holdfast_engine.apiserver.admission import backlog_of, decide, is_behind, sends_away, terms_of
from holdfast_engine.apiserver.door import Door
from holdfast_engine.clients.written_file import ReportKind
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.law.captured_graphs import UNKNOWN_GRAPHS, CapturedGraphs
from holdfast_engine.objectives.claims import CLAIMED
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import RETRY_AFTER_SECONDS, SERVICE_CLASS, RejectionReason, retry_after_seconds
from holdfast_engine.stats.classfiles import CLASS_FIELDS, ClassFiles, at_door, claimed_in
from holdfast_engine.stats.engine_info import Identity
from holdfast_engine.stats.left_open import left_open
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import FIELDS
from holdfast_engine.stats.statsfile import StatsWriter

_REASONS = {RejectionReason.FULL: RejectReason.REQUESTS, RejectionReason.LATE: RejectReason.TTFT}


class FastLoopScheduler(Scheduler):
    """A scheduler that starts requests by deadline, within limits that keep the objectives, and counts the good ones.

    `clock` is that of the arrivals. With `reports` it hears when clients see their tokens. `rejected` are requests
    turned away before they reached the engine, by class. `own_name` is the word that keeps claims of headers apart.
    `stats` is the plugin's file, from which the next engine reads what this one left open; None writes none.
    """

    has_door = True

    def __init__(
        self,
        limits: SchedulerLimits,
        files: LimitsFiles,
        clock: Callable[[], float],
        graphs: CapturedGraphs = UNKNOWN_GRAPHS,
        reports: ClientReports | None = None,
        own_name: str = "",
        stats: Path | None = None,
    ) -> None:
        super().__init__(limits)
        self.rejected: Counter[str] = Counter()
        self.steps = 0
        start = StartLimits(self.active_sequences, self.tokens_per_step, graphs=graphs)
        self.loop = FastLoop(start, files, clock, clock, reports, own_name)
        self._reports = reports
        self._clock = clock
        self._door = Door()
        self.loop.look()
        if stats is not None:
            self.loop.inherit(left_open(stats))
        self._writer = None if stats is None else StatsWriter(stats, len(FIELDS))
        self._class_files = None if stats is None else ClassFiles(stats)
        self._publish()
        self.waiting = cast(WaitingQueue, self.loop.queue)
        self._names = itertools.count(1)
        self._outputs: dict[StepPlan, _Output] = {}

    def at_door(self, sequence: Request, waited_seconds: float, coming: Collection[Request]) -> AtDoor:
        """Whether a request that waited so long to be read is let in, as by the middleware; refusals are counted."""
        tokens, numbers = sum(each.prompt_tokens for each in coming), self._numbers_at_door()
        found = decide(numbers, sequence.prompt_tokens, len(coming), tokens, waited_seconds)
        if found.refused is not None:
            self._reject()
            return AtDoor.REFUSED
        if found.waits and self._reports is not None:
            sequence.request_id, sequence.held = f"held {next(self._names)}", True
            self._reports.tell(ReportKind.HELD, sequence.request_id, self._clock() - waited_seconds)
            return AtDoor.WAITS
        self._door.passed(is_behind(numbers, waited_seconds))
        return AtDoor.ENTERS

    def opens_door(self, now: float) -> bool:
        """Whether a request that waits at the door goes on."""
        return self._door.opens(now, self.sends_away)

    def refuse(self, prompt_tokens: int, past_door: bool = False) -> Refusal | None:
        """Why a request of this length that comes now is turned away, counted; None lets it in."""
        found = self._refused_by_cap() or (None if past_door else self._refused_at_door(prompt_tokens))
        if found is not None:
            self._reject()
        return found

    def sends_away(self) -> bool:
        """Whether the answers of now end their connections, as those of the middleware do."""
        return sends_away(self.numbers())

    def too_old(self) -> list[Request]:
        """Requests that have waited for longer than any may."""
        return cast(list[Request], self.loop.too_old())

    def step(self, now: float) -> StepPlan:
        """Preempt batch where others cannot start, set the limits of this step, then plan it."""
        leaving = self.loop.give_way(cast(list[Any], self.running), 0, self.kv_usage) if self.loop.batch.names else []
        preempted = [self.preempt(each) for each in cast(list[Request], leaving)]
        limits = self.loop.before_step(len(self.running))
        self.active_sequences = limits.active_sequences
        self.tokens_per_step = limits.tokens_per_step
        plan = super().step(now)
        if preempted:
            plan = replace(plan, preempted=(*preempted, *plan.preempted))
        output = _output_of(plan)
        self.loop.scheduled(output)
        if output.total_num_scheduled_tokens:
            self._outputs[plan] = output
        return plan

    def complete(self, plan: StepPlan, now: float) -> list[Request]:
        """Apply the step, then time it and judge what has finished."""
        self.loop.came()
        emitted = super().complete(plan, now)
        self.steps += 1
        ended = [each for each in emitted if each.status is SequenceStatus.FINISHED]
        for each in ended:
            each.handed_over = self.loop.hand_over(each, each.handed_over, LEASE_SECONDS)
        finished = [each.request_id for each in ended]
        self.loop.updated(self._outputs.pop(plan, _NOTHING), finished)
        self._publish()
        return emitted

    def look(self) -> None:
        """Take new limits, and count what is due, while the engine is idle."""
        if self.loop.look():
            self._publish()

    def abort(self, sequence: Request) -> None:
        """Take a request out, and judge it by what it got."""
        super().abort(sequence)
        self._report(ReportKind.GONE, sequence, self._clock())
        self.loop.finish([sequence.request_id])
        self._publish()

    def written(self, emitted: Iterable[Request]) -> None:
        """These requests' tokens are written, and seen by their clients at the times that stand in them."""
        for sequence in emitted:
            if sequence.generated == 1 and sequence.first_seen_at is not None:
                self._report(ReportKind.FIRST, sequence, sequence.first_seen_at)
            if sequence.status is SequenceStatus.FINISHED and sequence.last_seen_at is not None:
                self._report(ReportKind.LAST, sequence, sequence.last_seen_at)

    def numbers(self) -> dict[str, float]:
        """The record of the plugin, by name; what its own code costs is not measured here."""
        return dict(zip(FIELDS, [*self.loop.counts(), 0.0, float(self.steps), *self.loop.record()], strict=True))

    def class_numbers(self) -> dict[str, dict[str, float]]:
        """The numbers of the declared classes, by class and name."""
        found = self.loop.class_numbers().items()
        return {name: dict(zip(CLASS_FIELDS, numbers, strict=True)) for name, numbers in found}

    def _numbers_at_door(self) -> dict[str, float]:
        """The record, as a request finds it with the class that its header claims."""
        return self.numbers() | at_door(self.class_numbers().get, CLAIMED.get())

    def _reject(self) -> None:
        self.rejected[claimed_in(self.class_numbers().get, CLAIMED.get())] += 1

    def _refused_by_cap(self) -> Refusal | None:
        """vLLM's own caps, with the time to come again that the middleware adds."""
        reason = self.rejection()
        if reason is None:
            return None
        numbers = self.numbers()
        terms = terms_of(numbers)
        again = RETRY_AFTER_SECONDS[0] if terms is None else retry_after_seconds(terms, backlog_of(numbers), 0.0)
        return Refusal(reason, again)

    def _refused_at_door(self, prompt_tokens: int) -> Refusal | None:
        found = decide(self._numbers_at_door(), prompt_tokens)
        return None if found.refused is None else Refusal(_REASONS[found.refused], found.retry_after_seconds)

    def _enqueue(self, sequence: Request) -> None:
        if sequence.held and self._reports is not None:
            self._reports.tell(ReportKind.RESUMED, sequence.request_id, self._clock())
        sequence.request_id = str(next(self._names))
        came_at = sequence.arrived_at if sequence.sent_at is None else sequence.sent_at
        if self._reports is not None:
            self._reports.tell(ReportKind.STARTED, sequence.request_id, came_at)
        self.loop.arrive(sequence)
        read_blocks(sequence)
        super()._enqueue(sequence)
        self._publish()

    def _publish(self) -> None:
        if self._writer is not None and self._class_files is not None:
            self._writer.write(list(self.numbers().values()))
            self._class_files.write(self.loop.class_numbers())

    def _report(self, kind: ReportKind, sequence: Request, at: float) -> None:
        if self._reports is not None:
            self._reports.add(kind, sequence.request_id, at)


class FastLoopMetrics(EngineCollector):
    """The plugin's metrics of an emulated engine."""

    def __init__(
        self, scheduler: FastLoopScheduler, model_name: str, vllm_version: str, facts: Mapping[str, str]
    ) -> None:
        super().__init__(Identity(model_name, VERSION, vllm_version, facts), {0: Path()})
        self.rejected, self._scheduler = scheduler.rejected, scheduler
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def numbers(self, engine: int) -> Sequence[float]:
        """The record of the one engine."""
        return list(self._scheduler.numbers().values())

    def classes(self, engine: int) -> Mapping[str, Mapping[str, float]]:
        """The numbers of the declared classes, by class."""
        return self._scheduler.class_numbers()

    def render(self) -> bytes:
        """Their text, as it stands on /metrics."""
        return generate_latest(self._registry)

    def _is_declared(self, name: str) -> bool:
        return name == SERVICE_CLASS or name in self._scheduler.class_numbers()


@dataclass(slots=True)
class _New:
    req_id: str
    num_computed_tokens: int


@dataclass(slots=True)
class _Cached:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)

    def add(self, name: str, computed: int) -> None:
        self.req_ids.append(name)
        self.num_computed_tokens.append(computed)


@dataclass(slots=True, eq=False)
class _Output:
    """A step's plan as vLLM's SchedulerOutput tells it."""

    scheduled_new_reqs: list[_New] = field(default_factory=list)
    scheduled_cached_reqs: _Cached = field(default_factory=_Cached)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0


_NOTHING = _Output()


def _output_of(plan: StepPlan) -> _Output:
    output, admitted = _Output(total_num_scheduled_tokens=plan.tokens), set(plan.admitted)
    for sequence in plan.decodes:
        output.num_scheduled_tokens[sequence.request_id] = 1
        # The plan took its tokens as computed already.
        output.scheduled_cached_reqs.add(sequence.request_id, sequence.computed - 1)
    for sequence, chunk, before in plan.prefills:
        output.num_scheduled_tokens[sequence.request_id] = chunk
        if sequence in admitted:
            output.scheduled_new_reqs.append(_New(sequence.request_id, before))
        else:
            output.scheduled_cached_reqs.add(sequence.request_id, before)
    return output
