"""What one engine step computes, read from vLLM's SchedulerOutput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class NewRequest(Protocol):
    """A request scheduled for the first time, or again after a preemption."""

    req_id: str
    num_computed_tokens: int


class CachedRequests(Protocol):
    """The other scheduled requests; computed tokens are those before the step."""

    req_ids: list[str]
    num_computed_tokens: list[int]


class Output(Protocol):
    """The part of vLLM's SchedulerOutput that is read."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]: ...
    @property
    def scheduled_cached_reqs(self) -> CachedRequests: ...
    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...
    @property
    def total_num_scheduled_tokens(self) -> int: ...


class Features(NamedTuple):
    """The terms of the step law: see arithmetic.Law."""

    prefill: int
    decodes: int
    kv: int
    pairs: float


def step_features(output: Output, drafts: int) -> Features:
    """Features of a step; a request with more than one token, beyond its drafts, computes a piece of its prompt."""
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    prefill, pairs, kv, decodes = 0, 0.0, sum(cached.num_computed_tokens), len(cached.req_ids)
    if not output.scheduled_new_reqs and output.total_num_scheduled_tokens == len(scheduled):
        return Features(0, decodes, kv + decodes, 0.0)  # one token each, as in most steps
    chunks = [(scheduled[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    # Tokens beyond one each that are still to be found; requests within their prompt are the last ones in the list.
    beyond = output.total_num_scheduled_tokens - len(scheduled) - sum(tokens - 1 for tokens, _ in chunks)
    index = len(cached.req_ids)
    while beyond > 0 and index > 0:
        index -= 1
        tokens, before = scheduled[cached.req_ids[index]], cached.num_computed_tokens[index]
        beyond -= tokens - 1
        if tokens > 1 + drafts:
            decodes -= 1
            kv -= before
            chunks.append((tokens, before))
    for tokens, before in chunks:
        prefill += tokens
        pairs += tokens * (before + 0.5 * tokens)
    return Features(prefill, decodes, kv + decodes, pairs)
