"""Figures of one run from the records of `vllm bench serve --save-detailed`.

Goodput is the number of good requests among those that arrived in the window, per second of that window. vLLM's own
figure divides all good requests, those of the warm-up included, by a time that contains the drain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.engine_overload.cells import Slo, Window
from benchmarks.engine_overload.trace import Arrival


class RecordsError(ValueError):
    """The records are not those of the requests that were sent."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the requests that arrived in the window; rates are per second of it, medians NaN where nothing was served.

    `lag_seconds` is by how much the client was late with its latest request. `beyond_pace_share`: what the steps of a
    paced engine took beyond its pace, as a share of that; NaN of any other.
    """

    arrived: int
    good: int
    failed: int
    goodput_rps: float
    ttft_p50_seconds: float
    tpot_p50_seconds: float
    vllm_goodput_rps: float
    duration_seconds: float
    served_rps: float
    lag_seconds: float
    beyond_pace_share: float = math.nan


def figures(found: dict[str, Any], requests: list[Arrival], slo: Slo, window: Window) -> Figures:
    """Judge every request by its own record; one that failed is never good."""
    starts = _column(found, "start_times", len(requests))
    lags = [start - request.at_seconds for start, request in zip(starts, requests, strict=True)]
    first = min(lags)
    rows = zip(
        (start - first for start in starts),
        _column(found, "ttfts", len(requests)),
        _column(found, "latencies", len(requests)),
        _column(found, "output_lens", len(requests)),
        _column(found, "errors", len(requests)),
        strict=True,
    )
    end = window.warm_up_seconds + window.seconds
    steady = [_Answer(*row[1:]) for row in rows if window.warm_up_seconds <= row[0] < end]
    served = [answer for answer in steady if answer.is_served]
    good = sum(answer.is_good(slo) for answer in served)
    completed, duration = int(found["completed"]), float(found["duration"])
    return Figures(
        arrived=len(steady),
        good=good,
        failed=len(steady) - len(served),
        goodput_rps=good / window.seconds,
        ttft_p50_seconds=_median([answer.ttft_seconds for answer in served]),
        tpot_p50_seconds=_median([answer.tpot_seconds for answer in served if answer.tokens > 1]),
        vllm_goodput_rps=float(found["request_goodput"]),
        duration_seconds=duration,
        served_rps=completed / duration if duration > 0.0 else 0.0,
        lag_seconds=max(lags) - first,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    ttft_seconds: float
    latency_seconds: float
    tokens: int
    error: str

    @property
    def is_served(self) -> bool:
        return not self.error and self.ttft_seconds > 0.0 and self.tokens > 0

    @property
    def tpot_seconds(self) -> float:
        return (self.latency_seconds - self.ttft_seconds) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def is_good(self, slo: Slo) -> bool:
        return self.ttft_seconds <= slo.ttft_seconds and self.tpot_seconds <= slo.tpot_seconds


def _column(found: dict[str, Any], name: str, length: int) -> list[Any]:
    column = found.get(name)
    if not isinstance(column, list) or len(column) != length:
        raise RecordsError(f"{name} does not hold {length} requests")
    return column


def _median(values: list[float]) -> float:
    return float(median(values)) if values else math.nan
