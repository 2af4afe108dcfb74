"""The twin against recorded runs of real engines; skips where the data folder is absent."""

from __future__ import annotations

import pytest

from benchmarks.twin_fidelity import RUNS, Recorded, compare
from tests.shared_data import shared_data

pytestmark = pytest.mark.data


@pytest.mark.parametrize("run", RUNS, ids=[run.folder for run in RUNS])
def test_a_real_engines_latencies_are_met_within_the_limits(run: Recorded) -> None:
    data = shared_data("vllm_groundtruth", run.folder).parents[1]
    found = compare(run, data)
    assert found.within, found.errors


def test_the_run_short_of_memory_preempts_about_as_often() -> None:
    data = shared_data("vllm_groundtruth", RUNS[0].folder).parents[1]
    assert compare(RUNS[0], data).preemptions == pytest.approx(186, rel=0.1)
