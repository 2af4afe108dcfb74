"""Batch requests are no demand: what plugins say of them is taken out of vLLM's own numbers, which have all of them."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.signals import AcceleratorTraffic
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.counts import Counts


def name_of(sample: Sample) -> str:
    """Return the name under which a number of batch requests is counted."""
    return f"batch {sample.label('state') or sample.label('term')}"


def without_batch(seen: AcceleratorTraffic, values: Counts, copies: float) -> AcceleratorTraffic:
    """Return the counts without batch requests, and how many of these there are.

    Latencies stay as they are: they decide only where requests are not judged one by one, and then nobody knows
    classes. The KV cache is divided by running requests. A plugin of an older release does not say with how many
    prompt tokens batch began: then there are none of anyone, and the cached share that is known holds.
    """

    def count(name: str) -> float:
        return max(0.0, values.get(f"batch {name}")) / copies

    running, waiting, started, done = map(count, ("running", "waiting", "started", "done"))
    batch = running + waiting + started + done
    if not batch > 0.0:
        return seen
    others = max(0.0, seen.running - running)
    begun = max(0.0, seen.ttft_count - started)
    begun_tokens = count("started_prompt_tokens")
    prompt_tokens = max(0.0, seen.prompt_tokens - begun_tokens) if begun_tokens or not started else 0.0
    return replace(
        seen,
        batch=batch,
        running=others,
        waiting=max(0.0, seen.waiting - waiting),
        finished=max(0.0, seen.finished - done),
        ttft_count=begun,
        ttft_within=min(seen.ttft_within, begun),
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=max(0.0, seen.cached_prompt_tokens - count("cached_prompt_tokens")),
        length_samples=max(0.0, seen.length_samples - done),
        prompt_length_sum=max(0.0, seen.prompt_length_sum - count("prompt_tokens")),
        output_length_sum=max(0.0, seen.output_length_sum - count("output_tokens")),
        kv_usage=seen.kv_usage * (others / seen.running if seen.running > 0.0 else 1.0),
    )
