"""A run as series over time, for the picture."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from e2e.demo.run import Run
from e2e.load import verdict

Series = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests per second by time of arrival, in bins that begin at `seconds`."""

    seconds: Series
    good: Series
    slow: Series
    rejected: Series
    lost: Series
    bin_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles over the arrivals of the seconds before each moment; NaN where nothing finished."""

    seconds: Series
    p50: Series
    p95: Series
    p99: Series


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas by state, one value per sample."""

    seconds: Series
    ready: Series
    starting: Series
    draining: Series


def arrivals(run: Run, bin_seconds: float = 3.0) -> Arrivals:
    """Count arrivals by what became of them."""
    edges = np.arange(0.0, run.facts.scenario.duration_seconds + bin_seconds, bin_seconds)
    kinds: dict[str, list[float]] = {"good": [], "slow": [], "rejected": [], "lost": []}
    for record in verdict.judged(run.records):
        if verdict.is_good(record, run.facts.objectives):
            kind = "good"
        elif verdict.is_lost(record):
            kind = "lost"
        else:
            kind = "rejected" if record.status == "rejected" else "slow"
        kinds[kind].append(record.scheduled_at - run.facts.start)
    rates = {kind: np.histogram(at, edges)[0] / bin_seconds for kind, at in kinds.items()}
    return Arrivals(edges[:-1], rates["good"], rates["slow"], rates["rejected"], rates["lost"], bin_seconds)


def ttft(run: Run, width_seconds: float = 10.0) -> Latency:
    """Return percentiles of the time to the first token, in seconds."""
    pairs = [
        (record.scheduled_at - run.facts.start, verdict.ttft_seconds(record))
        for record in run.records
        if record.first_token_at is not None
    ]
    return _sliding(pairs, run.facts.scenario.duration_seconds, width_seconds)


def tpot(run: Run, width_seconds: float = 10.0) -> Latency:
    """Return percentiles of the time per output token of complete answers, in seconds."""
    pairs = [
        (record.scheduled_at - run.facts.start, verdict.tpot_seconds(record))
        for record in run.records
        if record.status == "ok"
    ]
    return _sliding(pairs, run.facts.scenario.duration_seconds, width_seconds)


def replicas(run: Run) -> Replicas:
    """Return how many replicas were ready, starting and draining."""
    seen = [sample for sample in run.samples if sample.at >= run.facts.start - 5.0]
    return Replicas(
        np.array([sample.at - run.facts.start for sample in seen], dtype=float),
        *(np.array([s.count(state) for s in seen], dtype=float) for state in ("ready", "starting", "draining")),
    )


def _sliding(pairs: list[tuple[float, float]], duration: float, width: float) -> Latency:
    at = np.array([pair[0] for pair in pairs])
    values = np.array([pair[1] for pair in pairs])
    moments = np.arange(width, duration + 1e-9, 2.0)
    rows = []
    for moment in moments:
        inside = values[(at >= moment - width) & (at < moment)] if len(values) else values
        rows.append(np.quantile(inside, [0.5, 0.95, 0.99], method="higher") if len(inside) else [np.nan] * 3)
    p50, p95, p99 = np.array(rows, dtype=float).reshape(-1, 3).T
    return Latency(moments, p50, p95, p99)
