"""Compute- or memory-bound, from what the engine counts of its work."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.cli.main import main
from holdfast.domain.engine import StepSums
from holdfast.enginemodel.catalog import AcceleratorShape, find_accelerator, find_model
from holdfast.enginemodel.phases import GpuWork
from holdfast.tools.bench.figures import roofline
from holdfast.tools.bench.figures.engine import EngineSample, read_sample, reported
from holdfast.tools.bench.figures.results import Results, as_json, measure
from holdfast.tools.bench.figures.summary import of_run
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.bench.pages import report
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


STEPS = """vllm:kv_cache_usage_perc{engine="0"} 0.25
holdfast:step_sums_total{model_name="m",engine="0",term="one"} %d
holdfast:step_sums_total{model_name="m",engine="0",term="decodes"} %g
holdfast:step_sums_total{model_name="m",engine="0",term="kv"} %g
holdfast:step_sums_total{model_name="m",engine="0",term="seconds"} %g
holdfast:limits{model_name="m",engine="0",name="tokens_per_step"} 2048
"""
LAW = "".join(
    f'holdfast:step_law{{model_name="m",engine="0",coefficient="{name}"}} {value}\n'
    for name, value in {"c0": 0.02, "c1": 2e-5, "c2": 1e-4, "c3": 1e-8, "c4": 0.0, "launch_decodes": 0.001}.items()
)


def phased(*pages: str) -> Results:
    """A run of Qwen3-8B during which the plugin's metrics were these."""
    looks = [read_sample(page, float(at)) for at, page in enumerate(pages)]
    engine = reported([look for look in looks if look is not None])
    model = find_model("Qwen/Qwen3-8B")
    return replace(measure(steady(100), LatencyBounds()), engine=engine, kv_model=model, accelerator=L40S)


def test_each_phase_has_its_place_by_the_steps_that_the_plugin_counts_and_its_law() -> None:
    found = phased(STEPS % (100, 16.0, 0.16, 2.0) + LAW, STEPS % (200, 32.0, 0.32, 4.0) + LAW)
    assert found.engine is not None
    assert found.engine.sums == StepSums(100.0, 0.0, 1600.0, 16_000.0, 0.0, 2.0)
    told = dict(report.rates(found))
    assert "roofline" not in told, "vLLM itself counts nothing here"
    assert told["roofline, decode"].startswith("memory-bound on l40s")
    assert told["roofline, decode"].endswith(f"(a step of {1000 * (0.02 + 16 * 1.001e-4):.3g} ms)")
    written = as_json(found, "", "", 0.99, "")["results"]["phases"]
    assert written["decode"]["roofs"]["compute_bound"] is False
    assert written["prefill"]["seconds"] == pytest.approx(0.02 + 2e-5 * round(found.prompt_tokens))


def test_engines_next_to_each_other_have_the_limit_of_one() -> None:
    more = "".join(f'holdfast:limits{{engine="{at}",name="tokens_per_step"}} 2048\n' for at in (1, 2, 3))
    sample = read_sample(STEPS % (100, 16.0, 0.16, 2.0) + more)
    assert sample is not None
    assert sample.tokens_per_step == 2048.0


BEFORE, AFTER = STEPS % (100, 16.0, 0.16, 2.0), STEPS % (200, 32.0, 0.32, 4.0)


def test_a_gpu_of_a_pipeline_does_the_work_of_its_own_layers_between_two_results() -> None:
    stages = 'holdfast:engine_info{engine="0",tensor_parallel="1",pipeline_parallel="4"} 1\n'
    whole, piped = (phased(BEFORE, AFTER + LAW + more).phases.decode for more in ("", stages))
    assert whole is not None
    assert piped is not None
    assert (piped.flops, piped.memory_bytes) == (whole.flops / 4, whole.memory_bytes / 4)
    assert piped.seconds == whole.seconds, "seconds between results are those of one stage"


@pytest.mark.parametrize("law", ["", LAW.replace("0.02", "NaN"), 'holdfast:step_law{coefficient="c0"} 1\n'])
def test_without_a_fitted_law_steps_are_as_slow_as_all_steps_were(law: str) -> None:
    decode = phased(BEFORE, AFTER + law).phases.decode
    assert decode is not None
    assert decode.seconds == pytest.approx(2.0 / 100, rel=1e-6), "all of these steps were decodes"


@pytest.mark.parametrize(
    "pages",
    [(BEFORE,), (AFTER, BEFORE), (BEFORE, AFTER.replace(" 4", " NaN")), (BEFORE, STEPS % (200, 32.0, 0.32, 2.0))],
    ids=["one look", "began anew", "no number", "no time"],
)
def test_what_is_no_step_tells_nothing(pages: tuple[str, ...]) -> None:
    found = phased(*pages)
    assert not [name for name, _ in report.rates(found) if name.startswith("roofline")]
    assert as_json(found, "", "", 0.99, "")["results"]["phases"] == {"prefill": None, "decode": None}


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
