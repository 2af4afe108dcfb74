"""Batch requests run in what the others leave: how many may start, and which of them leave where others cannot.

Pure functions of what the fast loop knows. A request that leaves is preempted as vLLM preempts for memory: it computes
again what the prefix cache has lost by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from holdfast_engine.law.arithmetic import LEAST_PREFILL_TOKENS, Law, linear_seconds, ratio
from holdfast_engine.objectives.request import Queued, QueuedRequest, Request, ending_of
from holdfast_engine.objectives.rules import Ending

# The rest of the KV cache is for the answers that run, and for a request that comes.
MOST_KV_USAGE = 0.9
# A request that comes during a step waits for the end of that step, and of another one that was launched ahead.
STEP_SHARE = 0.25
# Requests that wait this share of TTFT for their prompts need the time that batch takes of each step.
WAIT_SHARE = 0.5

STARTED, DONE, PROMPT_TOKENS, OUTPUT_TOKENS, STARTED_PROMPT_TOKENS, CACHED_PROMPT_TOKENS = range(6)
"""Places of the sums, in the order of stats_fields.BATCH_SUMS."""


class BatchRequests:
    """The batch requests of one engine: those in it, how many of them run, and stats_fields.BATCH_SUMS.

    `interrupted` ones left before their first token, which may still be under way: not every vLLM calls them new again.
    `deferred` other requests wait for something else than their turn. Other requests lack memory if the last step
    started them neither for lack of a sequence nor of tokens.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.interrupted: dict[str, Request] = {}
        self.running = self.deferred = 0
        self.sums = [0] * (CACHED_PROMPT_TOKENS + 1)
        self.lacks_memory = False

    def schedule(self, cached_tokens: int) -> None:
        """One starts, with so many tokens of its prompt from the prefix cache."""
        self.sums[CACHED_PROMPT_TOKENS] += cached_tokens

    def start(self, request: Request) -> None:
        """One got its first token."""
        self.interrupted.pop(request.request_id, None)
        self.sums[STARTED] += 1
        self.sums[STARTED_PROMPT_TOKENS] += request.num_prompt_tokens

    def end(self, request: Request) -> None:
        """One has left the engine."""
        self.names.discard(request.request_id)
        self.interrupted.pop(request.request_id, None)
        self.running = min(self.running, len(self.names))
        if ending_of(request) is Ending.FINISHED:
            self.sums[DONE] += 1
            self.sums[PROMPT_TOKENS] += request.num_prompt_tokens
            self.sums[OUTPUT_TOKENS] += request.num_output_tokens

    def put_last(self, running: list[Queued]) -> list[Queued]:
        """Put the running ones behind all other requests, for vLLM preempts the last ones first; returns them."""
        running.sort(key=lambda each: each.request_id in self.names)
        return [each for each in running if each.request_id in self.names]


def room(balanced: int, running: int, waiting: int, kv_usage: float) -> int:
    """How many batch requests may start: up to the sequences at which steps take as long as TPOT, all others counted.

    `waiting` are the other requests that wait. `kv_usage` is the share of the KV cache in use.
    """
    return max(0, balanced - running - waiting) if kv_usage <= MOST_KV_USAGE else 0


def held_up(passed_over: Sequence[QueuedRequest], running: Iterable[QueuedRequest], slots: float) -> tuple[int, bool]:
    """How many of the requests that vLLM has passed over cannot start now, even if sequences, tokens and memory are
    free; and whether any of them lacks nothing but one of so many LoRA slots.

    vLLM counts a request as passed over until it starts, even if its grammar has long been ready.
    """
    taken = {each.lora_request.lora_int_id for each in running if each.lora_request is not None}
    ready = [each for each in passed_over if not _is_blocked(each)]
    adapters = [each.lora_request.lora_int_id for each in ready if each.lora_request is not None]
    lacking = sum(each not in taken for each in adapters) if len(taken) >= slots else 0
    return len(passed_over) - len(ready) + lacking, lacking > 0


def _is_blocked(request: QueuedRequest) -> bool:
    """Whether a request waits for its grammar, for more input, or for what steps in flight still bring it."""
    if request.status.name == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        wanted = request.structured_output_request
        return wanted is None or wanted.grammar is None
    if request.status.name not in ("WAITING", "PREEMPTED"):
        return True
    return request.num_stale_output_tokens > 0 and not request.drop_stale_output


def prompt_left(request: Request) -> int:
    """Tokens of its prompt, or of what a preemption lost, that a running request has still before it; 0 or less where
    it decodes."""
    return request.num_prompt_tokens + request.num_output_tokens - 1 - request.num_computed_tokens


def leaving(batch: Sequence[Queued], sequences: int, tokens: float, prompt_tokens: float = 0.0) -> list[Queued]:
    """Which of the running batch requests leave, oldest first in `batch`, newest first here.

    All that still compute prompts, for these come before waiting requests in each step; but for the oldest ones that
    have no more than `prompt_tokens` before them. Then the newest, until so many sequences and tokens of KV cache are
    free.
    """
    found: list[Queued] = []
    for each in batch:
        prompt_tokens -= max(0, prompt_left(each))
        if prompt_tokens < 0.0 < prompt_left(each):
            found.insert(0, each)
    freed = sum(each.num_computed_tokens for each in found)
    for each in batch[::-1]:
        if len(found) >= sequences and freed >= tokens:
            break
        if each not in found:
            found.append(each)
            freed += each.num_computed_tokens
    return found


def preempt(running: list[Queued], leaving: Iterable[Queued], put_back: Callable[[Queued], None]) -> None:
    """Put requests back into the queue. Each stays in `running` until it waits there: where that fails, it goes on."""
    for each in leaving:
        put_back(each)
        running.remove(each)


def step_tokens(
    law: Law, ttft_seconds: float, decodes: int, kv_tokens: float, pairs_per_prefill: float, urgent_tokens: float
) -> float:
    """Most tokens of a step with batch in it: it ends within a share of TTFT, unless others' prompts take longer."""
    room_seconds = STEP_SHARE * ttft_seconds - linear_seconds(law, 0.0, decodes, kv_tokens, 0.0)
    prefill = ratio(room_seconds, law.c1 + law.c4 * pairs_per_prefill)
    return decodes + max(prefill, urgent_tokens, LEAST_PREFILL_TOKENS) if prefill < math.inf else math.inf
