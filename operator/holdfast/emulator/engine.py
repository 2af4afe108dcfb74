"""The scheduler loop in real time: steps take as long as the step timer says, tokens go out when a step ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.emulator.metrics import EngineMetrics
from holdfast.emulator.pairs import read_blocks
from holdfast.enginemodel.enginetimer import host_of
from holdfast.enginemodel.frontdesk import FrontDesk
from holdfast.enginemodel.pipeline import Pipeline
from holdfast.enginemodel.roofline import StepWork
from holdfast.enginemodel.scheduler import Refusal, RejectReason, Scheduler, Sequence, SequenceStatus, StepPlan
from holdfast.enginemodel.steplaw import StepTimer
from holdfast_engine.apiserver.admission import CAPS
from holdfast_engine.objectives.rules import RejectionReason

LONGEST_LAG_SECONDS = 1.0
"""How far behind the clock the steps may be and still catch up; a host that stalls longer loses the rest."""

IDLE_LOOK_SECONDS = 0.5
"""How often an engine without requests looks for new limits; one with requests does so between its steps."""


TOO_OLD = "The request waited for too long without its turn. Please try again later."


class Sink(Protocol):
    """Where the tokens of one request go."""

    def token(self) -> None:
        """One more token, not the last."""

    def finish(self) -> None:
        """The last token."""

    def fail(self, message: str) -> None:
        """No more tokens, for this reason."""


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine, or on its way there, and where its tokens go."""

    sequence: Sequence
    sink: Sink
    max_tokens: int
    finish_reason: str = "length"
    entered: bool = True


class EmulatedEngine:
    """One engine on the running event loop's clock.

    `speed` 2 makes every step take half as long; `work` estimates what a step computes and moves, None counts none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        timer: StepTimer,
        metrics: EngineMetrics,
        *,
        speed: float = 1.0,
        work: Callable[[StepPlan], StepWork] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.metrics = metrics
        self._pipeline = Pipeline(timer, stretch=1.0 / speed)
        self._desk = FrontDesk(host_of(timer).front_end.slower(1.0 / speed))
        self._jobs: dict[Sequence, Job] = {}
        self._estimate = work
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self, prompt_tokens: int) -> Refusal | None:
        """Why a request of this length is refused now, counted; None lets it in."""
        refusal = self.scheduler.refuse(prompt_tokens)
        if refusal is not None:
            late = refusal.reason is RejectReason.TTFT
            cap = CAPS[RejectionReason.LATE] if late else refusal.reason.value
            self.metrics.add("vllm:admission_rejections", 1, cap)
        return refusal

    def submit(self, job: Job) -> None:
        """Let a request in; it is queued once an API server would have read it."""
        self._jobs[job.sequence] = job
        self._idle.clear()
        loop = asyncio.get_running_loop()
        job.sequence.arrived_at, enters_at = self._desk.read(job.sequence.arrived_at, job.sequence.prompt_tokens)
        if enters_at <= loop.time():
            self._enter(job)
        else:
            job.entered = False
            loop.call_at(enters_at, self._enter, job)

    def _enter(self, job: Job) -> None:
        if job.sequence in self._jobs:
            job.entered = True
            if not isinstance(self.scheduler, FastLoopScheduler):
                read_blocks(job.sequence)
            self.scheduler.add(job.sequence)
            self._work.set()

    def abort(self, job: Job) -> None:
        """Forget a request whose client went away; a finished one stays finished."""
        if self._jobs.pop(job.sequence, None) is not None:
            if job.entered:
                self.scheduler.abort(job.sequence)
            self._settle()

    async def idle(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()

    async def run(self) -> None:
        """Step for ever. A late step shortens the wait for the next one, so that lateness does not add up."""
        loop, pipeline = asyncio.get_running_loop(), self._pipeline
        while True:
            if pipeline.due == math.inf:
                if not self.scheduler.unfinished:
                    await self._arrival()
                pipeline.wake(loop.time())
            await asyncio.sleep(max(0.0, pipeline.due - loop.time()))
            now = loop.time()
            if pipeline.ending:
                self._deliver(pipeline.oldest, now)
                self._end_too_old()
            plan = pipeline.begin(self.scheduler, max(pipeline.due, now - LONGEST_LAG_SECONDS), now)
            if plan is not None:
                self._count_step(plan)

    def sends_away(self) -> bool:
        """Whether the fast loop wants clients to come over other connections."""
        return isinstance(self.scheduler, FastLoopScheduler) and self.scheduler.sends_away()

    async def _arrival(self) -> None:
        self._work.clear()
        scheduler = self.scheduler
        if isinstance(scheduler, FastLoopScheduler):
            while not self._work.is_set():
                scheduler.look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._work.wait(), IDLE_LOOK_SECONDS)
        await self._work.wait()

    def refresh_gauges(self) -> None:
        """Bring the gauges up to date before a scrape."""
        scheduler, metrics = self.scheduler, self.metrics
        metrics.set("vllm:num_requests_running", len(scheduler.running))
        metrics.set("vllm:num_requests_waiting", len(scheduler.waiting))
        metrics.set("vllm:num_requests_waiting_by_reason", len(scheduler.waiting), "capacity")
        metrics.set("vllm:kv_cache_usage_perc", scheduler.kv_usage)

    def _count_step(self, plan: StepPlan) -> None:
        metrics = self.metrics
        if not plan.empty:
            metrics.observe("vllm:iteration_tokens_total", plan.tokens)
        if plan.preempted:
            metrics.add("vllm:num_preemptions", len(plan.preempted))
        for sequence in plan.admitted:
            if sequence.preemptions == 0:
                local = sequence.cached_tokens - sequence.read_tokens
                metrics.add("vllm:prefix_cache_queries", sequence.prompt_tokens)
                metrics.add("vllm:prefix_cache_hits", local)
                if sequence.read_tokens:
                    metrics.add("vllm:external_prefix_cache_queries", sequence.prompt_tokens - local)
                    metrics.add("vllm:external_prefix_cache_hits", sequence.read_tokens)

        if self._estimate is not None and not plan.empty:
            work = self._estimate(plan)
            metrics.add("vllm:estimated_flops_per_gpu", work.flops)
            metrics.add("vllm:estimated_read_bytes_per_gpu", work.read_bytes)
            metrics.add("vllm:estimated_write_bytes_per_gpu", work.written_bytes)

    def _deliver(self, plan: StepPlan, now: float) -> None:
        gaps = self.metrics.histograms["vllm:inter_token_latency_seconds"]
        last = {sequence: sequence.last_token_at for sequence in plan.decodes}
        # A preempted sequence gets its next token from a step that computes its prompt again.
        last |= {sequence: sequence.last_token_at for sequence, _, _ in plan.prefills}
        emitted = self._pipeline.end(self.scheduler, now)
        self._desk.write(emitted, now)
        self.scheduler.written(emitted)
        self.metrics.add("vllm:generation_tokens", len(emitted))
        for sequence in emitted:
            previous = last.get(sequence)
            if previous is not None:
                gaps.observe(now - previous)
            elif sequence.generated == 1:
                self._count_first_token(sequence, now)
            if sequence.status is SequenceStatus.FINISHED:
                self._finish(sequence)
            else:
                self._hand_out(sequence, self._jobs[sequence].sink.token, now)

    def _finish(self, sequence: Sequence) -> None:
        job = self._jobs.pop(sequence)
        count_finished(self.metrics, job)
        self._hand_out(sequence, job.sink.finish, sequence.last_token_at or 0.0)
        self._settle()

    def _hand_out(self, sequence: Sequence, hand_out: Callable[[], None], now: float) -> None:
        """Give the client its token when it would see it."""
        seen_at = sequence.last_seen_at or now
        if seen_at <= now:
            hand_out()
        else:
            asyncio.get_running_loop().call_at(seen_at, hand_out)

    def _count_first_token(self, sequence: Sequence, now: float) -> None:
        metrics, cached, read = self.metrics, sequence.cached_tokens, sequence.read_tokens
        metrics.observe("vllm:time_to_first_token_seconds", now - sequence.arrived_at)
        metrics.add("vllm:prompt_tokens", sequence.prompt_tokens)
        metrics.add("vllm:prompt_tokens_by_source", sequence.prompt_tokens - cached, "local_compute")
        metrics.add("vllm:prompt_tokens_by_source", cached - read, "local_cache_hit")
        metrics.add("vllm:prompt_tokens_by_source", read, "external_kv_transfer")
        metrics.add("vllm:prompt_tokens_cached", cached)
        metrics.add("vllm:prompt_tokens_cached_by_source", cached - read, "device")
        metrics.add("vllm:prompt_tokens_cached_by_source", read, "p2p")

    def _end_too_old(self) -> None:
        """End what has waited for longer than the limits allow, as the middleware of a real engine does."""
        if not isinstance(self.scheduler, FastLoopScheduler):
            return
        for sequence in self.scheduler.too_old():
            job = self._jobs[sequence]
            self.abort(job)
            job.sink.fail(TOO_OLD)

    def _settle(self) -> None:
        if not self._jobs:
            self._idle.set()


def count_finished(metrics: EngineMetrics, job: Job) -> None:
    """Count a finished request as vLLM does: every per-request histogram once."""
    sequence = job.sequence
    arrived, scheduled = sequence.arrived_at, sequence.scheduled_at or sequence.arrived_at
    first, last = sequence.first_token_at or scheduled, sequence.last_token_at or scheduled
    gaps = sequence.generated - 1
    observations = {
        "e2e_request_latency_seconds": last - arrived,
        "request_queue_time_seconds": scheduled - arrived,
        "request_prefill_time_seconds": first - scheduled,
        "request_inference_time_seconds": last - scheduled,
        "request_decode_time_seconds": last - first,
        "request_time_per_output_token_seconds": (last - first) / gaps if gaps else 0.0,
        "request_prompt_tokens": sequence.prompt_tokens,
        "request_generation_tokens": sequence.generated,
        "request_max_num_generation_tokens": sequence.generated,
        "request_params_max_tokens": job.max_tokens,
        "request_params_n": 1,
        "request_num_preemptions": sequence.preemptions,
        "request_prefill_kv_computed_tokens": sequence.prompt_tokens - sequence.cached_tokens,
    }
    for name, value in observations.items():
        metrics.observe(f"vllm:{name}", value)
    metrics.add("vllm:request_success", 1, job.finish_reason)
