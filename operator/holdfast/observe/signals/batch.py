"""Batch requests are no demand: what plugins say of them is taken out of vLLM's own numbers, which have all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.domain.signals import AcceleratorTraffic, BatchClassTraffic, BatchTraffic
from holdfast.observe.series.queries import BATCH_ENDED, BATCH_UNFINISHED
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.counts import Counts

_SUMS = ("done", "prompt_tokens", "output_tokens", "started_prompt_tokens", "cached_prompt_tokens")
"""Terms of the plugin's sums over batch requests, in the order of BatchTraffic."""


def name_of(sample: Sample) -> str:
    """Return the name under which a number of batch requests is counted."""
    if name := sample.label("class"):
        return f"{sample.label('metric')} {name}"
    return f"batch {sample.label('state') or sample.label('term')}"


def batch_traffic(cells: Iterable[Counts]) -> BatchTraffic:
    """Return the batch requests on all accelerators; a class is missing where no engine tells of it."""
    found = [(values.counts, values.mean_copies()) for values in cells]

    def count(name: str) -> float:
        return max(0.0, sum(counts.get(name, 0.0) / copies for counts, copies in found))

    rows = {name for counts, _ in found for name in counts if name.startswith(f"{BATCH_UNFINISHED} ")}
    names = sorted(row.removeprefix(f"{BATCH_UNFINISHED} ") for row in rows)
    return BatchTraffic(
        tuple(
            BatchClassTraffic(name, count(f"{BATCH_UNFINISHED} {name}"), count(f"{BATCH_ENDED} {name}"))
            for name in names
        ),
        *map(count, map("batch {}".format, _SUMS)),
    )


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
