"""Batch requests are no demand: they are taken out of vLLM's own numbers, which have all requests."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.signals import AcceleratorTraffic
from holdfast.domain.value import value


@value
class BatchCounts:
    """What plugins say of batch requests: how many run and wait now, the rest gained over the interval.

    `prompt_tokens` and `output_tokens` are of requests that are `done`, `started_prompt_tokens` of all that `started`.
    """

    running: float = 0.0
    waiting: float = 0.0
    started: float = 0.0
    done: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    started_prompt_tokens: float = 0.0
    cached_prompt_tokens: float = 0.0


def without_batch(seen: AcceleratorTraffic, batch: BatchCounts) -> AcceleratorTraffic:
    """Return the counts without batch requests, and how many of these there are.

    Latencies stay as they are: they decide only where requests are not judged one by one, and then nobody knows
    classes. The KV cache is divided by running requests. A plugin of an older release does not say with how many
    prompt tokens batch began: then there are none of anyone, and the cached share that is known holds.
    """
    count = batch.running + batch.waiting + batch.started + batch.done
    if not count > 0.0:
        return seen
    others = max(0.0, seen.running - batch.running)
    begun, tokens = max(0.0, seen.ttft_count - batch.started), batch.started_prompt_tokens
    return replace(
        seen,
        batch=count,
        running=others,
        waiting=max(0.0, seen.waiting - batch.waiting),
        finished=max(0.0, seen.finished - batch.done),
        ttft_count=begun,
        ttft_within=min(seen.ttft_within, begun),
        prompt_tokens=max(0.0, seen.prompt_tokens - tokens) if tokens or not batch.started else 0.0,
        cached_prompt_tokens=max(0.0, seen.cached_prompt_tokens - batch.cached_prompt_tokens),
        length_samples=max(0.0, seen.length_samples - batch.done),
        prompt_length_sum=max(0.0, seen.prompt_length_sum - batch.prompt_tokens),
        output_length_sum=max(0.0, seen.output_length_sum - batch.output_tokens),
        kv_usage=seen.kv_usage * (others / seen.running if seen.running > 0.0 else 1.0),
    )
