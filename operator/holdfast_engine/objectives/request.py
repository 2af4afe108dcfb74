"""The part of vLLM's Request that is read."""

from __future__ import annotations

from typing import Protocol, TypeVar

from holdfast_engine.objectives.handover import goes_on
from holdfast_engine.objectives.rules import Ending

OWN_REQUEST = "holdfast_own_request"
"""In the ASGI scope of the one token that the pod asks of itself: no client's request, in no count."""
OWN_NAME_VARIABLE = "HOLDFAST_OWN_REQUEST_NAME"
"""Has the name of that request. The launcher draws it at each start of the engine, so that no client knows it."""


class Status(Protocol):
    """vLLM's RequestStatus."""

    @property
    def name(self) -> str: ...


class Adapter(Protocol):
    """vLLM's LoRARequest."""

    @property
    def lora_int_id(self) -> int: ...


class StructuredOutput(Protocol):
    """vLLM's StructuredOutputRequest; without a grammar until that is compiled."""

    @property
    def grammar(self) -> object: ...


class Request(Protocol):
    """A request inside the engine; `arrival_time` is the API server's wall clock."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def status(self) -> Status: ...
    def __hash__(self) -> int: ...


class QueuedRequest(Request, Protocol):
    """A request in vLLM's own queues, with what it may wait for."""

    @property
    def lora_request(self) -> Adapter | None: ...
    @property
    def structured_output_request(self) -> StructuredOutput | None: ...
    @property
    def num_stale_output_tokens(self) -> int: ...
    @property
    def drop_stale_output(self) -> bool: ...


Queued = TypeVar("Queued", bound=QueuedRequest)


def is_own(request: Request, own_name: str) -> bool:
    """Whether this is the one token that the pod asks of itself; nothing is where it has no name for that."""
    return bool(own_name) and request.request_id.startswith(f"cmpl-{own_name}-")


def is_notice(request: Request) -> bool:
    """Whether it only has the engine free what a prefill engine keeps: vLLM tells so of a request that it turned away,
    or whose client left. What came of it as a request is known without it."""
    return bool(getattr(request, "abort_immediately", False))


_ENDINGS = {"FINISHED_ABORTED": Ending.ABORTED, "FINISHED_ERROR": Ending.FAILED}


def ending_of(request: Request, *, hands_over: bool = False) -> Ending:
    """How a finished request ended, in an engine that `hands_over` prompts or not. One whose stop string the API server
    saw ends as an aborted one: both are judged by what they got."""
    found = _ENDINGS.get(request.status.name, Ending.FINISHED)
    return Ending.HANDED_OVER if hands_over and found is Ending.FINISHED and goes_on(request) else found
