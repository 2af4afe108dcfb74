"""Compute- or memory-bound, from what the engine counts of its work."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.cli.main import main
from holdfast.enginemodel.catalog import AcceleratorShape, find_accelerator
from holdfast.tools.bench import report, roofline
from holdfast.tools.bench.engine import EngineSample, read_sample, reported
from holdfast.tools.bench.load_generator import LatencyBounds
from holdfast.tools.bench.results import Results, as_json, measure
from holdfast.tools.bench.roofline import GpuWork
from holdfast.tools.bench.summary import of_run
from tests.tools.bench.bench_builders import steady

L40S = find_accelerator("l40s")
METRICS = """vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:estimated_flops_per_gpu_total{engine="0"} 2e+12
vllm:estimated_flops_per_gpu_total{engine="1"} 4e+12
vllm:estimated_read_bytes_per_gpu_total{engine="0"} 1e+10
vllm:estimated_read_bytes_per_gpu_total{engine="1"} 1e+10
vllm:estimated_write_bytes_per_gpu_total{engine="0"} 2e+9
vllm:estimated_write_bytes_per_gpu_total{engine="1"} 2e+9
"""


def look(flops: float, memory_bytes: float, at: float) -> EngineSample:
    """One look at an engine that has done so much."""
    return EngineSample(0.5, 1.0, 0.0, 0.0, 1000.0, flops, memory_bytes, at)


def seen(*looks: EngineSample) -> GpuWork | None:
    """The work between these looks."""
    found = reported(list(looks))
    assert found is not None
    return found.work


def results(work: GpuWork | None, accelerator: AcceleratorShape | None = L40S) -> Results:
    """A run during which an engine did this."""
    engine = reported([look(0.0, 0.0, 0.0)])
    assert engine is not None
    return replace(measure(steady(100), LatencyBounds()), engine=replace(engine, work=work), accelerator=accelerator)


def test_work_is_counted_per_gpu_of_all_engines_of_a_server() -> None:
    sample = read_sample(METRICS, 5.0)
    assert sample is not None
    assert (sample.gpu_flops, sample.gpu_memory_bytes, sample.looked_at) == (3e12, 1.2e10, 5.0)


@pytest.mark.parametrize(("flops", "bound"), [(1e12, "memory"), (1e13, "compute")])
def test_beyond_the_ridge_compute_binds_and_below_it_memory(flops: float, bound: str) -> None:
    work = seen(look(1e9, 1e9, 100.0), look(1e9 + flops, 1e9 + 1e10, 110.0))
    assert work is not None
    told = dict(report.rates(results(work)))["roofline"]
    assert told.startswith(f"{bound}-bound on l40s: {work.intensity:.3g} FLOP a byte")
    assert f"{100 * flops / 10.0 / 0.362e15:.3g} % of its FLOP/s, {100 * 1e9 / 0.864e12:.3g} % of its bandwidth" in told
    assert as_json(results(work), "", "", 0.99, "")["results"]["compute_bound"] is (bound == "compute")
    summary = of_run(results(work)).run
    assert summary is not None
    assert summary.compute_bound is (bound == "compute")


@pytest.mark.parametrize(
    "last",
    [
        look(0.0, 0.0, 10.0),
        look(5.0, 0.0, 10.0),
        look(-5.0, 5.0, 10.0),
        look(math.nan, 5.0, 10.0),
        look(5.0, math.inf, 10.0),
        look(5.0, 5.0, 0.0),
    ],
)
def test_an_engine_that_does_not_count_or_began_anew_has_no_position(last: EngineSample) -> None:
    assert seen(look(0.0, 0.0, 0.0), last) is None
    assert "roofline" not in dict(report.rates(results(None)))
    assert as_json(results(None), "", "", 0.99, "")["results"]["compute_bound"] is None


def test_without_an_accelerator_the_intensity_is_told_alone() -> None:
    assert roofline.told(GpuWork(100.0, 10.0, 1.0), None).startswith("10 FLOP a byte of memory traffic (--accelerator")


def test_an_unknown_accelerator_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--url", "http://x", "--rate", "1", "--accelerator", "abacus"])
    assert ended.value.code == 2
    assert "'abacus' is unknown: give one of" in capsys.readouterr().err
