"""The API server's end of vLLM's engine: what the middleware asks of it. It needs vLLM only when it is used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from holdfast_engine.apiserver.admission import CAPS
from holdfast_engine.objectives.rules import RejectionReason

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestState

_OWN = "holdfast_own"

logger = logging.getLogger("vllm.holdfast")


class Frontend:
    """Counts refusals, reports new requests, and ends requests that have waited for too long."""

    def __init__(self, engine: AsyncLLM, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seen_at: dict[str, float] = {}

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that vLLM serves."""
        return int(self._engine.model_config.max_model_len)

    def follow(self, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Have every new request pass `watched`, which is given vLLM's own function; one of them at a time.

        It runs before the engine hears of the request, in the task of the client's request.
        """
        processor = self._engine.output_processor
        add_request = getattr(processor.add_request, _OWN, processor.add_request)
        ours = watched(add_request)
        setattr(ours, _OWN, add_request)
        setattr(processor, "add_request", ours)  # noqa: B010  # mypy allows no assignment to a method

    def count_refusal(self, refused: RejectionReason) -> None:
        """Count as vLLM counts its own; our stat logger hears of it too."""
        self._engine._record_admission_rejection(CAPS[refused])

    async def end_older_than(self, seconds: float, patient: set[str]) -> None:
        """End what has been seen waiting for longer: its client gets a 503 that says so. The `patient` wait on; what
        has gone is taken out of them.

        To be called now and then. vLLM notes arrivals by the clock of the wall, which may be set meanwhile, and only
        where it keeps statistics.
        """
        now, states = self._clock(), self._engine.output_processor.request_states
        patient.intersection_update(states)
        waiting = (name for name, state in states.items() if _waits(state) and name not in patient)
        self._seen_at = {name: self._seen_at.get(name, now) for name in waiting}
        ended = [states[name] for name, seen_at in self._seen_at.items() if seen_at <= now - seconds]
        if not ended:
            return
        for state in ended:
            await self._end(state, f"The request waited {seconds:.0f} s without its turn. Please try again later.")
        logger.warning("holdfast: ended %d requests that had waited for %.0f s", len(ended), seconds)

    async def give_back(self, names: set[str]) -> None:
        """End those of these requests that wait: their clients get a 503 and may send them to another replica."""
        states = self._engine.output_processor.request_states
        for name in sorted(names):
            if name in states and _waits(states[name]):
                await self._end(states[name], "This replica is about to be removed. Please send the request again.")

    async def _end(self, state: RequestState, message: str) -> None:
        from vllm.exceptions import GracefulHTTPError

        queue, name = state.queue, state.request_id
        if queue is None:
            return
        states = self._engine.output_processor.request_states
        siblings = [state]
        if state.parent_req is not None:
            # One answer of several: the client gets all of them or an error.
            name = state.parent_req.request_id
            siblings = [states[child] for child in state.parent_req.child_requests if child in states]
        for each in siblings:
            # vLLM would tell of an abort as of an answer that ended well.
            each.queue = None
        await self._engine.abort(name, internal=True)
        queue.put(GracefulHTTPError(message, HTTPStatus.SERVICE_UNAVAILABLE))


def streams(request: EngineCoreRequest) -> bool:
    """Whether its tokens are written as they come."""
    params = request.sampling_params
    return params is not None and params.output_kind.name == "DELTA"


def prompt_tokens(request: EngineCoreRequest) -> int:
    """Tokens of its prompt; 0 where it came as embeddings."""
    return len(request.prompt_token_ids or ())


def _waits(state: RequestState) -> bool:
    """Whether it has all its input, and no token yet."""
    return state.is_prefilling and not state.streaming_input
