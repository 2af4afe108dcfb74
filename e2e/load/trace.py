"""Recorded request traces, and load steps made out of them.

The excerpt in `examples/traces` was cut from the public recording with:

    python -m e2e.load.trace AzureLLMInferenceTrace_conv.csv --start 240 --seconds 1560 \
        --out examples/traces/azure-conv-excerpt.csv
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import itertools
import math
import pathlib
import random
from collections.abc import Iterable, Iterator, Sequence

COLUMNS = ("arrival_seconds", "prompt_tokens", "output_tokens")


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it was recorded; `at_seconds` counts from the start of the trace."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


class TraceError(ValueError):
    """A trace file that cannot be read, or that cannot carry the load asked of it."""


def read(path: pathlib.Path) -> list[Arrival]:
    """Read a trace in either known format, recognised by its header."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        header = lines.readline().strip()
    readers = {"TIMESTAMP,ContextTokens,GeneratedTokens": read_azure, ",".join(COLUMNS): read_csv}
    if header not in readers:
        raise TraceError(f"{path}: unknown header {header!r}; known are {', '.join(readers)}")
    return readers[header](path)


def read_azure(path: pathlib.Path) -> list[Arrival]:
    """Read AzureLLMInferenceTrace_*.csv: TIMESTAMP, ContextTokens, GeneratedTokens."""
    rows = (
        Arrival(_azure_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for row in _rows(path)
    )
    return _checked(path, rows)


def read_csv(path: pathlib.Path) -> list[Arrival]:
    """Read a CSV of arrival_seconds, prompt_tokens, output_tokens; the first arrival becomes second zero."""
    rows = (
        Arrival(float(row["arrival_seconds"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
        for row in _rows(path)
    )
    return _checked(path, rows)


def write_csv(path: pathlib.Path, arrivals: Iterable[Arrival]) -> None:
    """Write arrivals in the format of `read_csv`, to the millisecond."""
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((f"{a.at_seconds:.3f}", a.prompt_tokens, a.output_tokens) for a in arrivals)


def window(arrivals: Iterable[Arrival], start_seconds: float, end_seconds: float) -> list[Arrival]:
    """Cut out [start, end) and let it begin at zero."""
    return [
        dataclasses.replace(arrival, at_seconds=arrival.at_seconds - start_seconds)
        for arrival in arrivals
        if start_seconds <= arrival.at_seconds < end_seconds
    ]


def scale_rate(arrivals: Iterable[Arrival], factor: float) -> list[Arrival]:
    """Play the recording `factor` times as fast; inter-arrival CV and length mix stay as recorded."""
    if not (math.isfinite(factor) and factor > 0):
        raise TraceError(f"rate factor must be a positive number, not {factor}")
    return [dataclasses.replace(arrival, at_seconds=arrival.at_seconds / factor) for arrival in arrivals]


def clip_lengths(arrivals: Iterable[Arrival], max_prompt: int, max_output: int) -> list[Arrival]:
    """Shorten requests that the model's context cannot hold; every request keeps at least one token each way."""
    return [
        dataclasses.replace(
            arrival,
            prompt_tokens=min(max(arrival.prompt_tokens, 1), max_prompt),
            output_tokens=min(max(arrival.output_tokens, 1), max_output),
        )
        for arrival in arrivals
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadStep:
    """Base load, multiplied by `factor` in [start, end)."""

    base_rps: float
    factor: float
    start_seconds: float
    end_seconds: float
    duration_seconds: float

    def rate_rps(self, at_seconds: float) -> float:
        """Return the intended rate at one moment."""
        inside = self.start_seconds <= at_seconds < self.end_seconds
        return self.base_rps * (self.factor if inside else 1.0)


def stepped(recorded: Sequence[Arrival], step: LoadStep, seed: int = 1) -> list[Arrival]:
    """Build a load step out of a recording without inventing an arrival.

    As many consecutive, distinct slices of the recording as the peak needs are laid over one another, and each
    arrival is kept with probability wanted rate / recorded rate of those slices (seeded, so one seed is one schedule).
    A request that is kept at the base rate is kept at the peak too. Where the peak equals the recorded rate, the peak
    *is* the recording. Thinning leaves lengths and their order alone and moves the inter-arrival CV towards 1 (the
    conversation trace has 1.09); time scaling would keep the CV but also stretch every swing of the rate.

    Raises TraceError when the recording is too short for the peak.
    """
    slices = _slices_for_peak(recorded, step)
    recorded_rps = sum(map(len, slices)) / step.duration_seconds
    chooser = random.Random(seed)
    kept = [
        arrival
        for layer in slices
        for arrival in layer
        if chooser.random() * recorded_rps < step.rate_rps(arrival.at_seconds)
    ]
    return sorted(kept, key=lambda arrival: arrival.at_seconds)


def inter_arrival_cv(arrivals: Sequence[Arrival]) -> float:
    """Return the coefficient of variation of the gaps between arrivals; NaN below three arrivals."""
    gaps = [b.at_seconds - a.at_seconds for a, b in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    if len(gaps) < 2 or mean <= 0:
        return math.nan
    return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


def _slices_for_peak(recorded: Sequence[Arrival], step: LoadStep) -> list[list[Arrival]]:
    peak_rps = step.base_rps * max(step.factor, 1.0)
    slices: list[list[Arrival]] = []
    length = step.duration_seconds
    recorded_until = recorded[-1].at_seconds if recorded else 0.0
    while sum(map(len, slices)) < peak_rps * length:
        start = len(slices) * length
        if start + length > recorded_until:
            raise TraceError(
                f"the recording ({len(recorded)} requests in {recorded_until:.0f} s) cannot carry {peak_rps:.2f} req/s "
                f"for {length:.0f} s; lower the base rate or the factor, or use a longer recording"
            )
        slices.append(window(recorded, start, start + length))
    return slices


def _rows(path: pathlib.Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _azure_seconds(stamp: str) -> float:
    # Seven digits of fraction: one more than datetime reads.
    return datetime.datetime.fromisoformat(stamp[:26]).replace(tzinfo=datetime.UTC).timestamp()


def _checked(path: pathlib.Path, arrivals: Iterable[Arrival]) -> list[Arrival]:
    try:
        ordered = sorted(arrivals, key=lambda arrival: arrival.at_seconds)
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: not a trace: {error}") from error
    for arrival in ordered:
        if not math.isfinite(arrival.at_seconds) or arrival.prompt_tokens < 0 or arrival.output_tokens < 0:
            raise TraceError(f"{path}: impossible arrival {arrival}")
    first = ordered[0].at_seconds if ordered else 0.0
    return [dataclasses.replace(arrival, at_seconds=arrival.at_seconds - first) for arrival in ordered]


def main(argv: Sequence[str] | None = None) -> None:
    """Cut an excerpt out of a trace."""
    parser = argparse.ArgumentParser(prog="python -m e2e.load.trace", description=main.__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--start", type=float, default=0.0, help="seconds into the trace")
    parser.add_argument("--seconds", type=float, required=True, help="length of the excerpt")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args(argv)
    excerpt = window(read(options.trace), options.start, options.start + options.seconds)
    write_csv(options.out, excerpt)
    print(f"{len(excerpt)} requests, inter-arrival CV {inter_arrival_cv(excerpt):.2f} -> {options.out}")


if __name__ == "__main__":
    main()
