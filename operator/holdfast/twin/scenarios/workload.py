"""Requests of a service from what its scenario says of arrivals and lengths; the same seed gives the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.scenario import ArrivalProcess, RatesFile, RequestLengths, TraceFile, WorkloadFile
from holdfast.twin.scenarios.traces import read_rates, read_trace

MOST_REQUESTS = 20_000_000
COPY_SECONDS = 1.0
"""Mean seconds between a recorded request and a copy of it that a scale above 1 adds."""


def make_workload(given: WorkloadFile, duration_seconds: float, folder: Path, seed: int) -> Workload:
    """Draw the requests that arrive in a run; BadInput where files cannot be used."""
    draw = np.random.default_rng([seed, 0])
    trace = given.arrivals.trace
    if trace is not None:
        recorded = read_trace(folder / trace.path, trace.format, duration_seconds)
        found = _scaled(recorded, trace.scale, draw)
        found = _until(found, duration_seconds, again=recorded.at[-1] < duration_seconds)
    else:
        at = _moments(given.arrivals, duration_seconds, folder, draw)
        zeros = np.zeros(len(at), np.int64)
        found = Workload(at, zeros, zeros, zeros)
    if given.lengths is not None:
        prompts, outputs = _lengths(given.lengths, len(found), folder, draw)
        found = Workload(found.at, prompts, outputs, found.cached_tokens)
    if len(found) == 0:
        raise BadInput("no request arrives in this scenario: raise its rates or its duration")
    return found


def with_classes(load: Workload, numbers: Mapping[int, float], seed: int) -> Workload:
    """Give each request one of the classes of these numbers with the chance that is its share, or none of them."""
    lots = np.random.default_rng([seed, 2]).random(len(load))
    borders = np.cumsum(list(numbers.values()))
    places = np.searchsorted(borders, lots, side="right")
    return replace(load, of_class=np.array([*numbers, 0], np.int64)[places])


def _moments(given: ArrivalProcess, duration: float, folder: Path, draw: np.random.Generator) -> Floats:
    if given.rates is not None:
        times, rates = _recorded(given.rates, duration, folder)
        return renewals(*_steps(times, rates, duration), given.rates.cv, draw)
    assert given.poisson is not None
    times = np.array([step.at for step in given.poisson])
    rates = np.array([step.rps for step in given.poisson])
    curve = _ramp(times, rates, duration) if given.ramp else _steps(times, rates, duration)
    return renewals(*curve, 1.0, draw)


def renewals(times: Floats, expected: Floats, cv: float, draw: np.random.Generator) -> Floats:
    """Moments of a Gamma renewal process, its time stretched so that `expected` arrivals have come by `times`.

    `cv` is the coefficient of variation of the gaps: 1 is a Poisson process.
    """
    total = float(expected[-1])
    if total > MOST_REQUESTS:
        raise BadInput(f"{total:.3g} requests: a run takes at most {MOST_REQUESTS:.3g}")
    shape = 1.0 / cv**2
    parts: list[Floats] = []
    reached = 0.0
    while reached < total:
        gaps = draw.gamma(shape, 1.0 / shape, max(64, int((total - reached) * 1.02) + 1))
        parts.append(reached + np.cumsum(gaps))
        reached = float(parts[-1][-1])
    work = np.concatenate(parts) if parts else np.zeros(0)
    moments: Floats = np.interp(work[work < total], expected, times)
    return moments


def _steps(times: Floats, rates: Floats, duration: float) -> tuple[Floats, Floats]:
    """Borders of steps of constant rate, and the arrivals expected by each."""
    inside = times < duration
    borders = np.append(times[inside], duration)
    return borders, np.concatenate([[0.0], np.cumsum(np.diff(borders) * rates[inside])])


def _ramp(times: Floats, rates: Floats, duration: float) -> tuple[Floats, Floats]:
    """The same for a rate that goes in straight lines from step to step, second by second."""
    grid = np.append(np.arange(0.0, duration), duration)
    rate = np.interp(grid, times, rates)
    return grid, np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * np.diff(grid))])


def _recorded(given: RatesFile, duration: float, folder: Path) -> tuple[Floats, Floats]:
    times, rates = read_rates(folder / given.path)
    period = float(times[-1] + (times[1] - times[0] if len(times) > 1 else duration))
    if given.start + duration > period + 1e-9:
        raise BadInput(f"{given.path}: {period:g} s long: start and duration must lie inside")
    first = int(np.searchsorted(times, given.start, side="right")) - 1
    last = int(np.searchsorted(times, given.start + duration, side="left"))
    window = rates[first:last]
    if not window.max() > 0.0:
        raise BadInput(f"{given.path}: no requests in this part: choose another start")
    return np.maximum(times[first:last] - given.start, 0.0), window * (given.peak_rps / window.max())


def _scaled(trace: Workload, scale: float, draw: np.random.Generator) -> Workload:
    """Each request `scale` times on average: the first as recorded, copies a moment later with another's lengths."""
    if len(trace) * scale > MOST_REQUESTS:
        raise BadInput(f"{len(trace) * scale:.3g} requests: a run takes at most {MOST_REQUESTS:.3g}")
    copies = np.floor(scale + draw.random(len(trace))).astype(np.int64)
    source = np.repeat(np.arange(len(trace)), copies)
    first = np.concatenate([[True], np.diff(source) > 0])[: len(source)]
    later = np.where(first, 0.0, draw.exponential(COPY_SECONDS, len(source)))
    lengths = np.where(first, source, draw.integers(0, len(trace), len(source)))
    at = trace.at[source] + later
    order = np.argsort(at, kind="stable")
    return _taken(trace, at[order], lengths[order])


def _until(trace: Workload, duration: float, again: bool) -> Workload:
    """What comes before the end; `again`: the recording is shorter than that, and begins anew."""
    if len(trace) == 0 or not again:
        inside = trace.at < duration
        return _taken(trace, trace.at[inside], np.flatnonzero(inside))
    span = float(trace.at[-1]) + max(1e-3, float(trace.at[-1]) / max(1, len(trace) - 1))
    rounds = max(1, int(np.ceil(duration / span)))
    if rounds * len(trace) > MOST_REQUESTS:
        raise BadInput(f"a trace of {span:g} s would be repeated {rounds} times: choose a shorter duration")
    at = np.concatenate([trace.at + number * span for number in range(rounds)])
    inside = at < duration
    return _taken(trace, at[inside], np.tile(np.arange(len(trace)), rounds)[inside])


def _taken(trace: Workload, at: Floats, rows: Integers) -> Workload:
    return Workload(at, trace.prompt_tokens[rows], trace.output_tokens[rows], trace.cached_tokens[rows])


def _lengths(given: RequestLengths, count: int, folder: Path, draw: np.random.Generator) -> tuple[Integers, Integers]:
    if given.fixed is not None:
        fixed = given.fixed
        return np.full(count, fixed.prompt_tokens, np.int64), np.full(count, fixed.output_tokens, np.int64)
    assert isinstance(given.trace, TraceFile)
    trace = read_trace(folder / given.trace.path, given.trace.format)
    rows = draw.integers(0, len(trace), count)
    return trace.prompt_tokens[rows], trace.output_tokens[rows]
