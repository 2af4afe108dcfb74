"""Requests of one run, in the format of `vllm bench serve --dataset-name=timed_trace`.

Every trace of a mix holds the same lengths in every block of requests, in another order, and the same number of
arrivals in its window: two seeds differ in what comes when, not in how much work there is.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from benchmarks.engine_overload.cells import Lengths, Mix, Window

# Lengths are drawn without repetition from so many quantiles.
_BLOCK = 64
# Names of prompts: no two runs share one, so that no prefix is ever cached.
_NAMES_PER_RUN = 1_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: seconds after the beginning, and tokens."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


def arrivals(mix: Mix, rate_rps: float, window: Window, seed: int) -> list[Arrival]:
    """Poisson arrivals, given their number before, in and after the window."""
    draw = random.Random(f"{mix.name} {seed}")
    moments: list[float] = []
    begin = 0.0
    for seconds in (window.warm_up_seconds, window.seconds, window.tail_seconds):
        moments += sorted(begin + seconds * draw.random() for _ in range(round(rate_rps * seconds)))
        begin += seconds
    prompts, outputs = _lengths(mix.prompt, draw), _lengths(mix.output, draw)
    return [Arrival(at, next(prompts), next(outputs)) for at in moments]


def to_jsonl(requests: list[Arrival], run: int) -> str:
    """The file that vLLM reads; prompts are named by one hash each."""
    lines = (
        {
            "timestamp": round(request.at_seconds, 6),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": [run * _NAMES_PER_RUN + number],
        }
        for number, request in enumerate(requests)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def quantiles(lengths: Lengths, count: int) -> list[int]:
    """The middles of `count` equally likely parts of the distribution, at least 1 token each."""
    sigma = math.sqrt(math.log1p(lengths.cv**2))
    normal = NormalDist(math.log(lengths.mean) - sigma**2 / 2, sigma)
    values = (math.exp(normal.inv_cdf((part + 0.5) / count)) for part in range(count))
    return [min(max(round(value), 1), lengths.most) for value in values]


def mean_tokens(lengths: Lengths) -> float:
    """What the lengths in a trace really average to: the quantiles know no extremes."""
    return math.fsum(quantiles(lengths, _BLOCK)) / _BLOCK


def _lengths(lengths: Lengths, draw: random.Random) -> Iterator[int]:
    values = quantiles(lengths, _BLOCK)
    while True:
        draw.shuffle(values)
        yield from values
