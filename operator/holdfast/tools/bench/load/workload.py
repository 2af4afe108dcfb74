"""What is sent: arrivals of every kind times lengths of every kind; the same seed gives the same again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from holdfast.tools.bench.load.load_generator import MOST_REQUESTS, MOST_TOKENS, LoadStep, Planned
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.replica.capacity import LengthPairs, lognormal_lengths
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.traces import read_trace
from holdfast.twin.scenarios.workload import renewals


def fixed(prompt_tokens: int, output_tokens: int) -> LengthPairs:
    """All requests alike."""
    return LengthPairs(np.array([prompt_tokens], np.int64), np.array([output_tokens], np.int64))


def spread(prompt_tokens: float, output_tokens: float, cv: float) -> LengthPairs:
    """Lengths around these means, lognormal, with this deviation / mean of both."""
    return lognormal_lengths(prompt_tokens, output_tokens, cv, MOST_TOKENS)


def recorded(path: Path, format_name: str) -> LengthPairs:
    """The pairs of a trace, to draw from."""
    trace = read_trace(path, format_name)
    return LengthPairs(trace.prompt_tokens, trace.output_tokens)


def at_rate(
    steps: Sequence[LoadStep], ramp: bool, cv: float, duration: float, lengths: LengthPairs, seed: int
) -> list[Planned]:
    """Arrivals whose rate steps, or goes in straight lines, from step to step; `cv` of the gaps is 1 for Poisson."""
    draw = np.random.default_rng([seed, 0])
    times, expected = _expected(steps, ramp, duration)
    if expected[-1] > MOST_REQUESTS:
        raise BadInput(f"{expected[-1]:.3g} requests: at most {MOST_REQUESTS:.3g}: lower --rate or --duration")
    moments = renewals(times, expected, cv, draw)
    if not len(moments):
        raise BadInput("no request arrives in this time: raise --rate or --duration")
    prompts, outputs = lengths.draw(len(moments), draw)
    return _planned(moments, prompts, outputs)


def from_trace(path: Path, format_name: str, duration: float, scale: float, begin: float) -> list[Planned]:
    """Requests as they were recorded, `scale` times as fast, from `begin` seconds of the recording on."""
    trace = read_trace(path, format_name, begin + duration * scale)
    inside = trace.at >= begin
    moments = (trace.at[inside] - begin) / scale
    kept = moments < duration
    if not kept.any():
        raise BadInput(f"{path}: no request in this part: lower --trace-start or raise --duration")
    chosen = Workload(moments, trace.prompt_tokens[inside], trace.output_tokens[inside], trace.cached_tokens[inside])
    return _planned(chosen.at[kept], chosen.prompt_tokens[kept], chosen.output_tokens[kept])


def endless(lengths: LengthPairs, seed: int, count: int | None = None) -> Iterator[Planned]:
    """Requests one after another for a closed loop; `count` of them, else without end."""
    draw = np.random.default_rng([seed, 0])
    left = math.inf if count is None else count
    while left > 0:
        size = int(min(left, 1024))
        prompts, outputs = lengths.draw(size, draw)
        yield from itertools.starmap(_unscheduled, zip(prompts.tolist(), outputs.tolist(), strict=True))
        left -= size


def _unscheduled(prompt: int, output: int) -> Planned:
    return Planned(0.0, prompt, output)


def _planned(moments: Floats, prompts: Integers, outputs: Integers) -> list[Planned]:
    return list(itertools.starmap(Planned, zip(moments.tolist(), prompts.tolist(), outputs.tolist(), strict=True)))


def _expected(steps: Sequence[LoadStep], ramp: bool, duration: float) -> tuple[Floats, Floats]:
    """Moments, and how many arrivals are expected by each: straight lines between them."""
    times = np.array([step.at_seconds for step in steps])
    rates = np.array([step.rps for step in steps])
    if ramp:
        grid = np.unique(np.concatenate([np.arange(0.0, duration, min(1.0, duration / 100)), times, [duration]]))
        grid = grid[grid <= duration]
        rate = np.interp(grid, times, rates)
        return grid, np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * np.diff(grid))])
    inside = times < duration
    borders = np.append(times[inside], duration)
    return borders, np.concatenate([[0.0], np.cumsum(np.diff(borders) * rates[inside])])
