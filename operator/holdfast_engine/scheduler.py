"""vLLM's scheduler with the fast loop: `--scheduler-cls holdfast_engine.scheduler.HoldfastScheduler`.

It changes when a request runs, never what it answers. On a release of vLLM it does not know, or after any exception in
its own code, it is vLLM's own scheduler and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import threading
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from holdfast_engine import VERSION
from holdfast_engine.clients.written_file import WrittenReader
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.law.captured_graphs import captured_graphs
from holdfast_engine.objectives.limits import DEFAULT_LIMITS, LIMITS_VARIABLE, LimitsFiles
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE
from holdfast_engine.queue import batch
from holdfast_engine.queue.waiting import DeadlineQueue
from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.classfiles import ClassFiles
from holdfast_engine.stats.engine_info import identity_of
from holdfast_engine.stats.left_open import left_open
from holdfast_engine.stats.statsfile import StatsWriter
from holdfast_engine.versions import is_supported

_WATCH_SECONDS = 1.0

logger = logging.getLogger("vllm.holdfast")


class HoldfastScheduler(Scheduler):
    """Starts requests by deadline, within limits that keep the objectives, and counts which were good.

    An engine that schedules asynchronously gets it on top of vLLM's AsyncScheduler. That one plans a sequence's next
    token before the last one is known, and so ends an engine that schedules synchronously with pipeline parallelism.
    """

    waiting: RequestQueue
    max_num_active_reqs: int
    max_num_scheduled_tokens: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """On the base that vLLM takes by itself; its own scheduler where ours could not stand in for it."""
        config = kwargs.get("vllm_config") or args[0]
        stock = _other_stock_class(config)
        if stock is not None:
            logger.warning("holdfast: off, this engine wants vLLM's %s", stock.__name__)
            return stock(*args, **kwargs)
        bases = (cls, AsyncScheduler) if config.scheduler_config.async_scheduling else (cls,)
        return super().__new__(type(cls.__name__, bases, {}))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stock_active = self.max_num_active_reqs
        self._stock_tokens = self.max_num_scheduled_tokens
        self._loop: FastLoop | None = None
        self._writer: StatsWriter | None = None
        self._class_files: ClassFiles | None = None
        self._numbers: list[float] = []
        self._spent_seconds = 0.0
        self._steps = 0
        self._guard = _Guard(self)
        with self._guard:
            self._begin()

    def add_request(self, request: Request) -> None:
        """Count the request, then let vLLM queue it."""
        if self._loop is not None:
            with self._guard:
                self._loop.arrive(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Set the limits of this step, then let vLLM schedule it."""
        if self._loop is not None:
            with self._guard:
                if self._loop.batch.names:
                    self._give_way(self._loop)
                limits = self._loop.before_step(len(self.running))
                self.max_num_active_reqs = limits.active_sequences
                self.max_num_scheduled_tokens = limits.tokens_per_step
        output: SchedulerOutput = super().schedule(*args, **kwargs)
        if self._loop is not None:
            with self._guard:
                if self._loop.scheduled(output):
                    self._publish(self._loop)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Let vLLM take the results of a step, then time, count and publish."""
        if self._loop is not None:
            with self._guard:
                self._loop.came()
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        if self._loop is not None:
            with self._guard:
                self._steps += 1
                self._loop.updated(scheduler_output, self.finished_req_ids)
                if self._loop.is_record_due():
                    self._publish(self._loop)
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Let vLLM end requests that were aborted or failed, then judge them."""
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        if ended and self._loop is not None:
            with self._guard:
                # Requests that were reported may still wait in front of an engine that is at work: its next step knows.
                is_idle = not (self._loop.has_steps_in_flight or self.running)
                if is_idle:
                    self._loop.catch_up()
                self._loop.finish(request.request_id for request in ended)
                if is_idle:
                    self._publish(self._loop)
        return ended

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> tuple[dict[str, Any] | None, Any]:
        """Let vLLM free a request that has ended; a prefill engine adds to its answer when it came."""
        params, others = super()._free_request(request, *args, **kwargs)
        loop = self._loop
        if loop is not None and loop.ledger.hands_over:
            with self._guard:
                try:
                    params = loop.hand_over(request, params, self._lease_seconds())
                except Exception as error:
                    loop.failure = error  # vLLM is in the middle of a step: the next one begins with standing down
        return params, others

    def stand_down(self, reason: str) -> None:
        """Be vLLM's own scheduler from here on: its limits, and what waits in a queue of its own, by arrival.

        Only between two operations of vLLM.
        """
        logger.error("holdfast: off, the engine goes on as stock vLLM: %s", reason)
        self._loop = None
        self.max_num_active_reqs = self._stock_active
        self.max_num_scheduled_tokens = self._stock_tokens
        waiting = cast(object, self.waiting)
        if isinstance(waiting, DeadlineQueue):
            self.waiting = create_request_queue(self.policy)
            for request in waiting.in_arrival_order():
                self.waiting.add_request(request)
        self._tell_off()

    def _begin(self) -> None:
        path = stats_fields.stats_path(self.parallel_config.data_parallel_index)
        left = left_open(path, stats_fields.written_path())
        self._numbers = stats_fields.nothing_yet()
        self._writer = StatsWriter(path, len(stats_fields.FIELDS))
        self._writer.write(self._numbers)
        self._class_files = ClassFiles(path)
        identity = identity_of(self.vllm_config, vllm.__version__)
        stats_fields.identity_path(self.parallel_config.data_parallel_index).write_text(identity.to_json())
        if not is_supported(vllm.__version__):
            logger.warning("holdfast: off, it does not know vLLM %s", vllm.__version__)
            return
        missing = [name for name in RequestQueue.__abstractmethods__ if not hasattr(DeadlineQueue, name)]
        if missing:
            raise TypeError(f"the waiting queue of vLLM {vllm.__version__} also wants {', '.join(sorted(missing))}")
        files = LimitsFiles(map(Path, os.environ.get(LIMITS_VARIABLE, DEFAULT_LIMITS).split(os.pathsep)))
        reports, own_name = WrittenReader(stats_fields.written_path()), os.environ.get(OWN_NAME_VARIABLE, "")
        loop = FastLoop(self._capacity(), files, written=reports, own_name=own_name)
        if self.policy is SchedulingPolicy.FCFS:
            self.waiting = cast(RequestQueue, loop.queue)
        else:
            loop.others = self.waiting
        loop.look()
        loop.inherit(left)
        self._loop = loop
        self._publish(loop)
        threading.Thread(target=self._watch, name="holdfast-limits", daemon=True).start()
        logger.info("holdfast: %s on vLLM %s", VERSION, vllm.__version__)

    def _give_way(self, loop: FastLoop) -> None:
        """Preempt batch requests where others cannot start, as vLLM itself preempts for memory."""
        if self.policy is not SchedulingPolicy.FCFS:
            return
        passed_over = [
            each
            for each in self.deferred_waiting
            if each.request_id not in loop.batch.names and not self._holds_kv_blocks(each)
        ]
        slots = self.lora_config.max_loras if self.lora_config else math.inf
        deferred, lacks_slot = batch.held_up(passed_over, self.running, slots)
        leaving = loop.give_way(self.running, deferred, self.kv_cache_manager.usage, lacks_slot)
        batch.preempt(self.running, filter(self._request_blocks_can_be_freed, leaving), self._put_back)

    def _put_back(self, request: Request) -> None:
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)

    def _watch(self) -> None:
        """Take limits and reports while the engine is idle: between requests there are no steps that would."""
        while True:
            time.sleep(_WATCH_SECONDS)
            with self._guard.lock:
                loop = self._loop
                if loop is None:
                    return
                try:
                    if loop.look():
                        self._publish(loop)
                except Exception as error:
                    # vLLM may be in the middle of a step: the next one begins with standing down.
                    loop.failure = error
                    return

    def _capacity(self) -> StartLimits:
        model = self.vllm_config.model_config
        # A prompt whose parts must be computed as a whole would never start under a smaller limit.
        chunks = (
            self.scheduler_config.enable_chunked_prefill
            and not model.supports_multimodal_inputs
            and not self.need_mamba_block_aligned_split
        )
        graphs = captured_graphs(self.vllm_config.compilation_config)
        keeps = bool(self.cache_config.enable_prefix_caching)
        return StartLimits(self._stock_active, self._stock_tokens, chunks, self.num_spec_tokens, graphs, keeps)

    def _lease_seconds(self) -> float:
        """For how long vLLM keeps the KV cache of a request that was handed over."""
        transfer = self.vllm_config.kv_transfer_config
        return float(transfer.get_from_extra_config("kv_lease_duration", 30)) if transfer else 0.0

    def _publish(self, loop: FastLoop) -> None:
        if self._writer is not None:
            self._numbers = [*loop.counts(), self._spent_seconds, float(self._steps), *loop.record()]
            self._writer.write(self._numbers)
        if self._class_files is not None:
            self._class_files.write(loop.class_numbers())

    def _tell_off(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write(stats_fields.off(self._numbers))
        except Exception:
            # The log has said it, and what failed may be the writing itself: without a file /metrics says off too.
            with contextlib.suppress(OSError):
                self._writer.path.unlink(missing_ok=True)


def _other_stock_class(config: Any) -> type[Any] | None:
    """The scheduler without the plugin; None where ours can take its place."""
    if getattr(config, "diffusion_config", None) is not None:
        kind = "DiffusionAsyncScheduler" if config.scheduler_config.async_scheduling else "DiffusionScheduler"
        found: type[Any] = getattr(importlib.import_module("vllm.v1.core.sched.diffusion_scheduler"), kind)
        return found
    drafts = config.speculative_config is not None
    return Scheduler if drafts and not config.scheduler_config.async_scheduling else None


class _Guard:
    """Around everything of ours: one at a time, timed, and any exception turned into standing down."""

    def __init__(self, scheduler: HoldfastScheduler) -> None:
        self.lock = threading.Lock()
        self._scheduler = scheduler
        self._began = 0.0

    def __enter__(self) -> None:
        self.lock.acquire()
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> bool:
        self._scheduler._spent_seconds += time.perf_counter() - self._began
        self.lock.release()
        if not isinstance(error, Exception):
            return False
        logger.error("holdfast: %s", error, exc_info=error)
        self._scheduler.stand_down(f"{type(error).__name__}: {error}")
        return True
