"""vLLM's scheduler loop: what the next engine step computes (vllm/v1/core/sched/scheduler.py, release 0.33).

Running sequences first, in order; then waiting ones within the token budget. Prompts are computed in chunks, KV cache
is taken in blocks of 16 tokens, a sequence that finds no block preempts the youngest one, whose tokens are computed
again later. Nothing here knows a clock: `step` plans at a given time, `complete` applies the plan. As in vLLM's
AsyncScheduler, a step may be planned before the one before it is complete: the token that a sequence gets from a step
in flight counts as there. As in vLLM, the waiting queue and the limits of the next step may be exchanged while it runs.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.enginemodel.steplaw import Chunk, StepTimer

BLOCK_TOKENS = 16


class RejectReason(enum.StrEnum):
    """Which admission cap refused a request, or that its first token would come too late."""

    REQUESTS = "max_num_queued_reqs"
    TOKENS = "max_num_queued_tokens"
    TTFT = "ttft"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was turned away, and after how many seconds it may come again where that is known."""

    reason: RejectReason
    retry_after_seconds: int | None = None


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FINISHED_ABORTED = "aborted"


class AtDoor(enum.Enum):
    """What becomes of a request before the API server reads it."""

    ENTERS = "enters"
    WAITS = "waits"
    REFUSED = "refused"


_ALIVE = (SequenceStatus.WAITING, SequenceStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits by vLLM's names, None where vLLM has none by default; `kv_tokens` is the size of the KV cache."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    max_num_active_seqs: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    long_prefill_token_threshold: int = 0


@dataclass(frozen=True, slots=True)
class LoraRequest:
    """The part of vLLM's LoRARequest that is read."""

    lora_name: str


@dataclass(slots=True)
class SamplingParams:
    """The part of vLLM's SamplingParams that is read: `vllm_xargs` of the body, and what a header claims."""

    extra_args: dict[str, object] | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine; times in seconds, the rest in tokens and blocks.

    `cached_tokens` of the prompt are found in the prefix cache at the first admission. `in_flight` tokens come from
    steps that are planned and not complete. It came to the API server at `sent_at`, which read it at `arrived_at`. The
    engine has a token at `..._token_at`, its client at `..._seen_at`. A prompt plus answer that exceeds the KV cache is
    refused by `Scheduler.add`. It asks for the adapter `lora_request`. Properties have the names of vLLM's Request.
    Of the cached tokens `read_tokens` are another engine's; `handed_over` are the parameters for a decode engine.
    """

    prompt_tokens: int
    output_tokens: int
    arrived_at: float
    cached_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    computed: int = 0
    generated: int = 0
    in_flight: int = 0
    blocks: int = 0
    preemptions: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    first_seen_at: float | None = None
    last_seen_at: float | None = None
    request_id: str = ""
    sent_at: float | None = None
    held: bool = False
    lora_request: LoraRequest | None = None
    sampling_params: SamplingParams | None = None
    kv_transfer_params: dict[str, Any] | None = None
    read_tokens: int = 0
    handed_over: dict[str, Any] | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.computed

    @property
    def num_output_tokens(self) -> int:
        return self.generated

    @property
    def num_preemptions(self) -> int:
        return self.preemptions

    @property
    def arrival_time(self) -> float:
        return self.arrived_at

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens, those in flight included."""
        return self.prompt_tokens + self.generated + self.in_flight

    @property
    def prefilling(self) -> bool:
        """Whether its first token is still to come."""
        return self.generated == 0


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """What one step computes; `prefills` are (sequence, chunk, tokens before it), `emits` get a token from it."""

    prefills: tuple[tuple[Sequence, int, int], ...]
    decodes: tuple[Sequence, ...]
    decode_kv_tokens: int
    emits: tuple[Sequence, ...] = ()
    admitted: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.prefills and not self.decodes

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return len(self.decodes) + sum(chunk for _, chunk, _ in self.prefills)

    @property
    def sequences(self) -> int:
        """Sequences that the step computes something for."""
        return len(self.decodes) + len(self.prefills)

    def seconds(self, timer: StepTimer) -> float:
        """How long the step takes."""
        decodes = len(self.decodes)
        chunks: tuple[Chunk, ...] = tuple((chunk, prefix) for _, chunk, prefix in self.prefills)
        return timer.step_seconds(chunks, decodes, self.decode_kv_tokens / decodes if decodes else 0.0)


class WaitingQueue(Protocol):
    """The part of vLLM's RequestQueue that the loop uses."""

    def add_request(self, request: Sequence) -> None: ...
    def peek_request(self) -> Sequence: ...
    def pop_request(self) -> Sequence: ...
    def prepend_request(self, request: Sequence) -> None: ...
    def remove_requests(self, requests: Iterable[Sequence]) -> None: ...
    def __len__(self) -> int: ...


class FirstComeQueue(deque[Sequence]):
    """First come, first served."""

    def add_request(self, request: Sequence) -> None:
        self.append(request)

    def peek_request(self) -> Sequence:
        return self[0]

    def pop_request(self) -> Sequence:
        return self.popleft()

    def prepend_request(self, request: Sequence) -> None:
        self.appendleft(request)

    def remove_requests(self, requests: Iterable[Sequence]) -> None:
        for request in requests:
            self.remove(request)


class Scheduler:
    """The queues and the KV cache of one engine; `active_sequences` and `tokens_per_step` hold for the next step."""

    has_door = False
    """Whether requests are looked at before they are read."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.total_blocks = max(0, limits.kv_tokens) // BLOCK_TOKENS
        self.free_blocks = self.total_blocks
        self.running: list[Sequence] = []
        self.waiting: WaitingQueue = FirstComeQueue()
        self.queued_prompt_tokens = 0
        self.active_sequences = min(limits.max_num_seqs, limits.max_num_active_seqs or limits.max_num_seqs)
        self.tokens_per_step = limits.max_num_batched_tokens
        self._threshold = limits.long_prefill_token_threshold or limits.max_num_batched_tokens

    @property
    def unfinished(self) -> int:
        """Requests running or waiting."""
        return len(self.running) + len(self.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache's blocks in use."""
        return 1.0 - self.free_blocks / self.total_blocks if self.total_blocks else 0.0

    def rejection(self) -> RejectReason | None:
        """The admission cap that would refuse one more request now: requests are checked first, as vLLM does.

        The token cap ignores the size of the new request, so one request always fits.
        """
        most_requests, most_tokens = self.limits.max_num_queued_reqs, self.limits.max_num_queued_tokens
        if most_requests is not None and self.unfinished >= most_requests:
            return RejectReason.REQUESTS
        if most_tokens is not None and self.queued_prompt_tokens >= most_tokens:
            return RejectReason.TOKENS
        return None

    def at_door(self, sequence: Sequence, waited_seconds: float, coming: Collection[Sequence]) -> AtDoor:
        """What becomes of a request before it is read; vLLM reads all. `coming` have been read and are not here yet."""
        return AtDoor.ENTERS

    def opens_door(self, now: float) -> bool:
        """Whether a request that waits at the door goes on."""
        return True

    def refuse(self, prompt_tokens: int, past_door: bool = False) -> Refusal | None:
        """Why a request of this length that comes now is turned away; None lets it in."""
        reason = self.rejection()
        return None if reason is None else Refusal(reason)

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether the KV cache could hold such a request at all."""
        return _blocks(prompt_tokens + output_tokens) <= self.total_blocks

    def add(self, sequence: Sequence) -> None:
        """Append a request to the waiting queue; ValueError where the KV cache could never hold it."""
        if min(sequence.prompt_tokens, sequence.output_tokens) < 1:
            raise ValueError("a request has at least one prompt and one output token")
        if not self.fits(sequence.prompt_tokens, sequence.output_tokens):
            raise ValueError(f"{sequence.prompt_tokens} + {sequence.output_tokens} tokens exceed the KV cache")
        self._enqueue(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is; finished ones stay as they are."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove_requests((sequence,))
        else:
            return
        self._leave(sequence, SequenceStatus.FINISHED_ABORTED)

    def too_old(self) -> list[Sequence]:
        """Requests that have waited for longer than any may: here none."""
        return []

    def step(self, now: float) -> StepPlan:
        """Plan the next step and take the KV blocks it needs; every planned token counts as computed from here on."""
        planner = _Planner(self, now)
        planner.serve_running()
        if not planner.preempted:
            planner.admit_waiting()
        return planner.plan()

    def complete(self, plan: StepPlan, now: float) -> list[Sequence]:
        """Apply a step that ended now; returns the sequences that got a token, finished ones included, oldest first.

        Steps are completed in the order of their planning. A sequence that was preempted meanwhile gets its token.
        """
        emitted = [sequence for sequence in plan.emits if sequence.status in _ALIVE]
        finished = False
        for sequence in emitted:
            waited = sequence.status is SequenceStatus.WAITING
            self._emit(sequence, now)
            if sequence.status is SequenceStatus.FINISHED:
                finished = True
                if waited:
                    self.waiting.remove_requests((sequence,))
        if finished:
            self.running = [sequence for sequence in self.running if sequence.status is SequenceStatus.RUNNING]
        return emitted

    def written(self, emitted: Iterable[Sequence]) -> None:
        """The API server has written these requests' tokens; vLLM's scheduler does not care."""

    def take_blocks(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence the blocks for `tokens` tokens in all; False, and nothing changes, where they lack."""
        missing = _blocks(tokens) - sequence.blocks
        if missing > self.free_blocks:
            return False
        if missing > 0:
            sequence.blocks += missing
            self.free_blocks -= missing
        return True

    def preempt_last(self) -> Sequence:
        """Send the youngest running sequence back to the head of the queue, without its KV cache."""
        return self.preempt(self.running[-1])

    def preempt(self, victim: Sequence) -> Sequence:
        """Send a running sequence back to the queue, without its KV cache."""
        self.running.remove(victim)
        self.free_blocks += victim.blocks
        victim.blocks = victim.computed = victim.cached_tokens = victim.in_flight = 0
        victim.preemptions += 1
        victim.status = SequenceStatus.WAITING
        self.waiting.prepend_request(victim)
        return victim

    def admit_head(self, now: float) -> Sequence | None:
        """Move the first waiting sequence to the running ones if a slot and blocks for all its tokens are free."""
        if len(self.running) >= self.active_sequences:
            return None
        sequence = self.waiting.peek_request()
        if _blocks(sequence.tokens) > self.free_blocks:
            return None
        self.waiting.pop_request()
        self.running.append(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.computed = _cached_blocks(sequence) * BLOCK_TOKENS
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
        return sequence

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """Tokens of a sequence to compute next within the budget."""
        return min(sequence.tokens - sequence.computed, self._threshold, budget)

    def _enqueue(self, sequence: Sequence) -> None:
        self.queued_prompt_tokens += sequence.prompt_tokens
        self.waiting.add_request(sequence)

    def _emit(self, sequence: Sequence, now: float) -> None:
        if sequence.prefilling:
            self.queued_prompt_tokens -= sequence.prompt_tokens
            sequence.first_token_at = now
        sequence.in_flight = max(0, sequence.in_flight - 1)
        sequence.generated += 1
        sequence.last_token_at = now
        if sequence.generated >= sequence.output_tokens:
            self.free_blocks += sequence.blocks
            sequence.blocks = 0
            sequence.status = SequenceStatus.FINISHED

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        if sequence.prefilling:
            self.queued_prompt_tokens -= sequence.prompt_tokens
        self.free_blocks += sequence.blocks
        sequence.blocks = 0
        sequence.status = status


class _Planner:
    """One pass over the queues."""

    def __init__(self, scheduler: Scheduler, now: float) -> None:
        self.scheduler = scheduler
        self.now = now
        self.budget = scheduler.tokens_per_step
        self.prefills: list[tuple[Sequence, int, int]] = []
        self.decodes: list[Sequence] = []
        self.decode_kv_tokens = 0
        self.emits: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []

    def serve_running(self) -> None:
        """One decode token or the next chunk for every running sequence, oldest first."""
        running, position = self.scheduler.running, 0
        while position < len(running) and self.budget > 0:
            sequence = running[position]
            if sequence.generated + sequence.in_flight >= sequence.output_tokens:
                position += 1  # the last token is in flight
                continue
            tokens = self.scheduler.chunk(sequence, self.budget)
            if not self._make_room(sequence, sequence.computed + tokens):
                break
            self._schedule(sequence, tokens)
            position += 1

    def admit_waiting(self) -> None:
        """First chunks of waiting sequences, in the queue's order, until one does not fit."""
        while self.scheduler.waiting and self.budget > 0:
            sequence = self.scheduler.admit_head(self.now)
            if sequence is None:
                break
            tokens = self.scheduler.chunk(sequence, self.budget)
            self.scheduler.take_blocks(sequence, sequence.computed + tokens)
            self.admitted.append(sequence)
            self._schedule(sequence, tokens)

    def plan(self) -> StepPlan:
        return StepPlan(
            prefills=tuple(self.prefills),
            decodes=tuple(self.decodes),
            decode_kv_tokens=self.decode_kv_tokens,
            emits=tuple(self.emits),
            admitted=tuple(self.admitted),
            preempted=tuple(self.preempted),
        )

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Preempt the youngest sequences until the blocks suffice; False once the sequence itself had to go."""
        while not self.scheduler.take_blocks(sequence, tokens):
            victim = self.scheduler.preempt_last()
            self.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _schedule(self, sequence: Sequence, tokens: int) -> None:
        answering = sequence.generated + sequence.in_flight > 0
        if tokens == 1 and answering and sequence.computed >= sequence.prompt_tokens:
            self.decodes.append(sequence)
            self.decode_kv_tokens += sequence.computed + 1
        else:
            self.prefills.append((sequence, tokens, sequence.computed))
        sequence.computed += tokens
        self.budget -= tokens
        if sequence.computed == sequence.tokens:
            sequence.in_flight += 1
            self.emits.append(sequence)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _cached_blocks(sequence: Sequence) -> int:
    """Full blocks of the prompt found in the prefix cache; the last token is always computed."""
    return max(0, min(sequence.cached_tokens, sequence.prompt_tokens - 1)) // BLOCK_TOKENS
