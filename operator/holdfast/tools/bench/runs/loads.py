"""From checked options to a load, and to who sends it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.generators.vllm import VllmGenerator
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import ArrivalRate, Generator, Load, LoadStep, Planned
from holdfast.tools.bench.pages import report
from holdfast.twin.replica.capacity import LengthPairs

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
DURATION_SECONDS = 60.0
THROUGHPUT_REQUESTS, LATENCY_BATCHES = 1000, 30
"""vLLM's own numbers for `bench throughput` and `bench latency`."""

LATENCY_PROMPT_TOKENS = 32
"""Likewise, of `bench latency`; its answers have `OUTPUT_TOKENS`, too."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A load and its description."""

    load: Load
    told: str


def load_of(arguments: argparse.Namespace) -> Chosen:
    """What the options ask for; BadInput where a file cannot be used."""
    if arguments.trace is not None:
        return _recorded(arguments)
    lengths = lengths_of(arguments)
    if arguments.rate is not None or arguments.steps is not None:
        return _at_rate(arguments, lengths)
    return _closed(arguments, lengths)


def at_rate(arguments: argparse.Namespace, rps: float, seconds: float, seed: int) -> Load:
    """Arrivals of one rate for so long, lengths as asked for: one trial of a sweep."""
    steps = (LoadStep(0.0, rps),)
    planned = workload.at_rate(steps, False, arguments.cv, seconds, lengths_of(arguments), seed)
    return _open(arguments, planned, _rate(arguments, rps))


def generator_of(arguments: argparse.Namespace, model: str) -> Generator:
    """Who sends."""
    return VllmGenerator(arguments.tokenizer or model) if arguments.generator == "vllm" else OwnGenerator()


def _recorded(arguments: argparse.Namespace) -> Chosen:
    seconds = arguments.duration or math.inf
    planned = workload.from_trace(arguments.trace, arguments.format, seconds, arguments.speed, arguments.trace_start)[
        : arguments.requests
    ]
    told = f"{len(planned)} requests of {arguments.trace.name}, {arguments.speed:g} times as fast as recorded"
    return Chosen(_open(arguments, planned, None), told)


def _at_rate(arguments: argparse.Namespace, lengths: LengthPairs) -> Chosen:
    steps = arguments.steps or (LoadStep(0.0, arguments.rate),)
    seconds = arguments.duration or DURATION_SECONDS
    if arguments.requests is not None:
        # Long enough for all of them, however the gaps fall.
        spread = (1.0 + arguments.cv) * 6.0 * math.sqrt(arguments.requests)
        seconds = (arguments.requests + spread + 10.0) / max(step.rps for step in steps) + steps[-1].at_seconds
    planned = workload.at_rate(steps, arguments.ramp, arguments.cv, seconds, lengths, arguments.seed)
    planned = planned[: arguments.requests]
    rate = _rate(arguments, arguments.rate) if arguments.rate is not None else None
    shown = (
        f"{arguments.rate:g} req/s"
        if rate
        else ", ".join(f"{step.rps:g} req/s from {step.at_seconds:g} s" for step in steps)
    )
    return Chosen(_open(arguments, planned, rate), f"{len(planned)} arrivals, {shown} ({report.gaps(arguments.cv)})")


def _closed(arguments: argparse.Namespace, lengths: LengthPairs) -> Chosen:
    count = arguments.requests
    batches, size, stop = False, arguments.concurrency, math.inf
    if arguments.throughput:
        count = size = count or THROUGHPUT_REQUESTS
        told = f"{count} requests at once"
    elif arguments.latency:
        size, batches = arguments.latency, True
        count = count or size * LATENCY_BATCHES
        told = f"{math.ceil(count / size)} batches of {size}"
    else:
        stop = math.inf if count else arguments.duration or DURATION_SECONDS
        told = f"{size} at a time, " + (f"{count} requests" if count else f"{stop:g} s")
    planned = workload.endless(lengths, arguments.seed, count)
    load = Load(planned, count or 0, size, batches, stop, arguments.drain, arguments.seed, _rate(arguments, math.inf))
    return Chosen(load, told)


def _open(arguments: argparse.Namespace, planned: Sequence[Planned], rate: ArrivalRate | None) -> Load:
    return Load(planned, len(planned), drain_seconds=arguments.drain, seed=arguments.seed, rate=rate)


def lengths_of(arguments: argparse.Namespace) -> LengthPairs:
    """Prompt and output lengths as the options ask for them; BadInput where a file cannot be used."""
    if arguments.lengths is not None:
        return workload.recorded(arguments.lengths, arguments.format)
    prompt, output = means(arguments)
    if arguments.length_cv:
        return workload.spread(prompt, output, arguments.length_cv)
    return workload.fixed(prompt, output)


def spreads_of(arguments: argparse.Namespace) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean and CV of prompts and of outputs, as asked for or as a trace has them; BadInput as `lengths_of`."""
    if arguments.lengths is None:
        prompt, output = means(arguments)
        return (float(prompt), arguments.length_cv), (float(output), arguments.length_cv)
    lengths = lengths_of(arguments)
    columns = lengths.prompt_tokens, lengths.output_tokens
    prompts, outputs = ((float(each.mean()), float(each.std() / each.mean())) for each in columns)
    return prompts, outputs


def _rate(arguments: argparse.Namespace, rps: float) -> ArrivalRate | None:
    """For a generator that makes its own arrivals, where all requests are alike."""
    if arguments.lengths is not None or arguments.length_cv:
        return None
    return ArrivalRate(rps, arguments.cv, *means(arguments))


def means(arguments: argparse.Namespace) -> tuple[int, int]:
    """Mean prompt and output tokens as the options ask for them."""
    is_latency = getattr(arguments, "latency", None) is not None  # tune has no such option
    usual = LATENCY_PROMPT_TOKENS if is_latency else PROMPT_TOKENS
    return arguments.prompt_tokens or usual, arguments.output_tokens or OUTPUT_TOKENS
