"""Builders for tests of the twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike

from holdfast.domain.service import Slo
from holdfast.simulator.twin.fleet import Workload

SLO = Slo(ttft_seconds=2.0, tpot_seconds=0.1, objective=0.99, window_seconds=3600.0)


def workload(
    at: ArrayLike, prompts: Sequence[int], outputs: Sequence[int], cached: Sequence[int] | None = None
) -> Workload:
    """Requests from plain numbers."""
    moments = np.asarray(at, np.float64)
    zeros = np.zeros(len(moments), np.int64)
    return Workload(
        moments,
        np.asarray(prompts, np.int64),
        np.asarray(outputs, np.int64),
        zeros if cached is None else np.asarray(cached, np.int64),
    )


def small_scenario() -> dict[str, Any]:
    """Three minutes of a small service that one H100 carries, as a scenario file says it."""
    return {
        "name": "small",
        "duration": "3m",
        "warmup": "30s",
        "services": [
            {
                "name": "chat",
                "spec": {
                    "model": {"uri": "meta-llama/Llama-3.1-8B"},
                    "slo": {"ttft": "1s", "tpot": "50ms", "objective": "99%", "window": "5m"},
                    "accelerators": [{"name": "h100", "costPerHour": 3.0}],
                    "scaling": {"min": 1, "max": 6},
                },
                "workload": {
                    "arrivals": {"poisson": [{"at": "0s", "rps": 3}]},
                    "lengths": {"fixed": {"promptTokens": 500, "outputTokens": 100}},
                },
                "initialReplicas": {"h100": 1},
            }
        ],
        "cluster": {"accelerators": {"h100": {"system": "h100_sxm", "gpus": 6, "coldStart": "30s"}}},
    }


def scenario_file(folder: Path, content: dict[str, Any]) -> Path:
    """The scenario as a file."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
