"""Builders for tests of the twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from holdfast.cli.simulate import declare
from holdfast.domain.service import Slo
from holdfast.enginemodel.host import (
    ASYNCHRONOUS,
    NO_FRONT_END,
    SYNCHRONOUS,
    FrontEnd,
    Graphs,
    usual_host,
)
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.policy_port import Policy
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.scenario import Scenario

SLO = Slo(ttft_seconds=2.0, tpot_seconds=0.1, objective=0.99, window_seconds=3600.0)
LAW = StepLaw(0.004, 3e-5, 1e-4, 2e-8, 4e-9)
LIMITS = st.builds(
    SchedulerLimits,
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(12, 1500),
    kv_tokens=st.integers(960, 6000),
    max_num_active_seqs=st.none() | st.integers(1, 12),
    max_num_queued_reqs=st.none() | st.integers(0, 20),
    max_num_queued_tokens=st.none() | st.integers(0, 4000),
    long_prefill_token_threshold=st.sampled_from([0, 0, 64, 333]),
)
"""Limits that small requests meet often."""

FRONT_ENDS = st.sampled_from(
    [NO_FRONT_END, NO_FRONT_END, FrontEnd(2e-3, 1e-6, 2e-4, 1e-3, 1e-3), FrontEnd(token_seconds=3e-3)]
)
HOSTS = st.builds(
    lambda depth, edge, factor, front_end: replace(
        usual_host(8, Graphs(edge=edge), depth).slower(factor), front_end=front_end
    ),
    st.sampled_from([SYNCHRONOUS, ASYNCHRONOUS, ASYNCHRONOUS]),
    st.sampled_from([4, 100, 512, None]),
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    FRONT_ENDS,
)
"""Hosts of engines that schedule ahead and of those that do not, from one that costs nothing on."""


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


def drawn_workload(made: Sequence[tuple[float, int, int, int]]) -> Workload:
    """Requests from tuples of gap, prompt, output and cached prompt tokens."""
    gaps, prompts, outputs, cached = zip(*made, strict=True)
    return workload(np.cumsum(gaps), prompts, outputs, cached)


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


def play(content: dict[str, Any], folder: Path, policy: Policy) -> Finished:
    """The scenario under a policy, with the first seed."""
    path = scenario_file(folder, content)
    scenario = Scenario.read(path)
    return simulate(scenario, [declare(scenario, each, path, folder, 1) for each in scenario.services], policy, 1)


def ready(finished: Finished, at: float) -> int:
    """Replicas of the first service that serve then."""
    sizes = finished.sizes[0]
    return next(count for moment, count in zip(sizes.at, sizes.ready, strict=True) if moment >= at)
