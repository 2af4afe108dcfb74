"""The fast loop in the emulator: the engine plugin's own code, hooked in where the plugin hooks into vLLM's scheduler.

Nothing of holdfast_engine is copied here; `FastLoopScheduler` is to `Scheduler` what the plugin's class is to vLLM's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.emulator.client_reports import ClientReports
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
from holdfast_engine.admission import backlog_of, decide, is_behind, sends_away, terms_of
from holdfast_engine.captured_graphs import UNKNOWN_GRAPHS, CapturedGraphs
from holdfast_engine.door import Door
from holdfast_engine.engine_info import Identity
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.limits import LimitsFiles
from holdfast_engine.metrics import EngineCollector
from holdfast_engine.rules import RETRY_AFTER_SECONDS, RejectionReason, retry_after_seconds
from holdfast_engine.stats_fields import FIELDS
from holdfast_engine.written_file import ReportKind

"""The value of `--scheduler-cls` that turns the fast loop on, in vLLM as here."""

_REASONS = {RejectionReason.FULL: RejectReason.REQUESTS, RejectionReason.LATE: RejectReason.TTFT}


class FastLoopScheduler(Scheduler):
    """A scheduler that starts requests by deadline, within limits that keep the objectives, and counts the good ones.

    `clock` is that of the arrivals. With `reports` it hears when clients see their tokens. `rejected` are requests
    turned away before they reached the engine.
    """

    has_door = True

    def __init__(
        self,
        limits: SchedulerLimits,
        files: LimitsFiles,
        clock: Callable[[], float],
        graphs: CapturedGraphs = UNKNOWN_GRAPHS,
        reports: ClientReports | None = None,
    ) -> None:
        super().__init__(limits)
        self.rejected = 0
        self.steps = 0
        start = StartLimits(self.active_sequences, self.tokens_per_step, graphs=graphs)
        self.loop = FastLoop(start, files, clock, clock, reports)
        self._reports = reports
        self._clock = clock
        self._door = Door()
        self.loop.look()
        self.waiting = cast(WaitingQueue, self.loop.queue)
        self._names = itertools.count(1)
        self._outputs: dict[StepPlan, _Output] = {}

    def at_door(self, sequence: Request, waited_seconds: float, coming: Collection[Request]) -> AtDoor:
        """Whether a request that waited so long to be read is let in, as by the middleware; refusals are counted."""
        tokens, numbers = sum(each.prompt_tokens for each in coming), self.numbers()
        found = decide(numbers, sequence.prompt_tokens, len(coming), tokens, waited_seconds)
        if found.refused is not None:
            self.rejected += 1
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
        self.rejected += found is not None
        return found

    def sends_away(self) -> bool:
        """Whether the answers of now end their connections, as those of the middleware do."""
        return sends_away(self.numbers())

    def too_old(self) -> list[Request]:
        """Requests that have waited for longer than any may."""
        return cast(list[Request], self.loop.too_old())

    def step(self, now: float) -> StepPlan:
        """Set the limits of this step, then plan it."""
        limits = self.loop.before_step(len(self.running))
        self.active_sequences = limits.active_sequences
        self.tokens_per_step = limits.tokens_per_step
        plan = super().step(now)
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
        finished = [each.request_id for each in emitted if each.status is SequenceStatus.FINISHED]
        self.loop.updated(self._outputs.pop(plan, _NOTHING), finished)
        return emitted

    def abort(self, sequence: Request) -> None:
        """Take a request out, and judge it by what it got."""
        super().abort(sequence)
        self._report(ReportKind.GONE, sequence, self._clock())
        self.loop.finish([sequence.request_id])

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
        found = decide(self.numbers(), prompt_tokens)
        return None if found.refused is None else Refusal(_REASONS[found.refused], found.retry_after_seconds)

    def _enqueue(self, sequence: Request) -> None:
        if sequence.held and self._reports is not None:
            self._reports.tell(ReportKind.RESUMED, sequence.request_id, self._clock())
        sequence.request_id = str(next(self._names))
        came_at = sequence.arrived_at if sequence.sent_at is None else sequence.sent_at
        if self._reports is not None:
            self._reports.tell(ReportKind.STARTED, sequence.request_id, came_at)
        self.loop.arrive(sequence)
        super()._enqueue(sequence)

    def _report(self, kind: ReportKind, sequence: Request, at: float) -> None:
        if self._reports is not None:
            self._reports.add(kind, sequence.request_id, at)


class FastLoopMetrics(EngineCollector):
    """The plugin's metrics of an emulated engine."""

    def __init__(
        self, scheduler: FastLoopScheduler, model_name: str, vllm_version: str, facts: Mapping[str, str]
    ) -> None:
        super().__init__(Identity(model_name, VERSION, vllm_version, facts), {0: Path()})
        self._scheduler = scheduler
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def numbers(self, engine: int) -> Sequence[float]:
        """The record of the one engine."""
        return list(self._scheduler.numbers().values())

    def render(self) -> bytes:
        """Their text, as it stands on /metrics."""
        self.rejected = self._scheduler.rejected
        return generate_latest(self._registry)


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
