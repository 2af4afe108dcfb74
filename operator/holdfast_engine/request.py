"""The part of vLLM's Request that is read."""

from __future__ import annotations

from typing import Protocol

from holdfast_engine.rules import Ending

# What the pod's middleware asks for before it is ready goes by this name: no client's request, in no count.
WARM_UP_NAME = "holdfast-warm-up"
_WARM_UP_PREFIX = f"cmpl-{WARM_UP_NAME}-"


class Status(Protocol):
    """vLLM's RequestStatus."""

    @property
    def name(self) -> str: ...


class Request(Protocol):
    """A request inside the engine; `arrival_time` is the API server's wall clock."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def status(self) -> Status: ...
    def __hash__(self) -> int: ...


def is_warm_up(request: Request) -> bool:
    """Whether this is the one token that the pod asks of itself."""
    return request.request_id.startswith(_WARM_UP_PREFIX)


_ENDINGS = {"FINISHED_ABORTED": Ending.ABORTED, "FINISHED_ERROR": Ending.FAILED}


def ending_of(request: Request) -> Ending:
    """How a finished request ended. One whose stop string the API server saw ends as an aborted one: both are judged
    by what they got."""
    return _ENDINGS.get(request.status.name, Ending.FINISHED)
