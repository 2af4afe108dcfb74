"""Histogram edges that engines are started with: one dense grid for all services, and the objectives at creation.

A share within an objective is exact only where an edge equals it. After the objective was edited the grid bounds the
share closely: neighbouring edges differ by a quarter to a half where objectives usually lie. About as many edges as
vLLM's own, so that Prometheus stores no more series.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.rendered.context import Objectives

TTFT_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0,
    7.5, 10.0, 15.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TPOT_SECONDS = (
    0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25,
    0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
)  # fmt: skip
E2E_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


def custom_histogram_buckets(objectives: Objectives) -> str:
    """The JSON of vLLM's --custom-histogram-buckets."""
    families = {
        "time_to_first_token": _with(TTFT_SECONDS, objectives.ttft_seconds),
        "inter_token_latency": _with(TPOT_SECONDS, objectives.tpot_seconds),
        "request_latency": _with(E2E_SECONDS, objectives.e2e_seconds),
    }
    return json.dumps(families, separators=(",", ":"))


def _with(grid: Sequence[float], objective_seconds: float | None) -> list[float]:
    return sorted({*grid, float(objective_seconds)} if objective_seconds else set(grid))
