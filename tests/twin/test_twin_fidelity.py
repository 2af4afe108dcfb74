"""The twin against recorded runs of real engines; skips where the data folder is absent."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.twin_fidelity import RUNS, Recorded, compare
from benchmarks.twin_trend import SWEEP, arrivals, spearman, trends
from tests.shared_data import shared_data


@pytest.mark.data
@pytest.mark.parametrize("run", RUNS, ids=[run.folder for run in RUNS])
def test_a_real_engines_latencies_are_met_within_the_limits(run: Recorded) -> None:
    data = shared_data("vllm_groundtruth", run.folder).parents[1]
    found = compare(run, data)
    assert found.within, found.errors


@pytest.mark.data
def test_the_run_short_of_memory_preempts_about_as_often() -> None:
    data = shared_data("vllm_groundtruth", RUNS[0].folder).parents[1]
    assert compare(RUNS[0], data).preemptions == pytest.approx(186, rel=0.1)


@pytest.mark.data
def test_limits_are_ranked_as_real_engines_ranked_them() -> None:
    found = {trend.engine: trend for trend in trends(shared_data(*SWEEP.split("/")).parents[2])}
    assert len(found) == 5
    for trend in found.values():
        if len(trend.limits) == 2:
            assert min(trend.correlations(0)) > 0.99
    swept = found["RTX5090", "qwen_3b"]
    assert swept.limits == (512, 1024, 2048, 4096, 8192, 16384)
    assert fmean(swept.correlations(0)) > 0.8
    assert fmean(swept.correlations(1)) > 0.8
    assert min(swept.correlations(0) + swept.correlations(1)) > 0.4


def test_ranks_agree_where_the_order_is_the_same() -> None:
    assert spearman([1.0, 2.0, 9.0], [5.0, 6.0, 7.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 9.0], [7.0, 6.0, 5.0]) == pytest.approx(-1.0)


def test_phases_bring_their_rates_one_after_another() -> None:
    at = list(arrivals("100:1,100:5", seed=0))
    assert at == sorted(at)
    assert sum(moment < 100.0 for moment in at) == pytest.approx(100, abs=30)
    assert sum(moment >= 100.0 for moment in at) == pytest.approx(500, abs=70)
