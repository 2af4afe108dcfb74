"""`holdfast bench` beside vLLM's `bench serve`: the same raw run, the same endpoint, the same figures."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.server import Server, Settings
from e2e.vllm.environment import Environment
from e2e.vllm.installed import installed_vllm
from holdfast.cli.main import main
from holdfast.enginemodel.host import Host
from holdfast.tools.bench.figures.results import Results, Spread, measure
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.generators.vllm import VllmGenerator
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import (
    ArrivalRate,
    Endpoint,
    Generator,
    LatencyBounds,
    Load,
    LoadStep,
    Run,
)
from tests.emulator.emulator_builders import MODEL, engine

pytestmark = pytest.mark.vllm

RATE = ArrivalRate(rps=8.0, cv=1.0, prompt_tokens=64, output_tokens=32)
REQUESTS = 160
# Without the machine's noise: the emulator takes 30 ms a step whatever else runs, as long as it runs at all.
SLOW_STEPS = Host(launch_seconds=(0.03, 0.03, 0.03))
COMPARED = ("mean_tpot_ms", "p50_tpot_ms", "p50_itl_ms", "mean_e2el_ms")
# A neighbour on the same cores only ever adds: of rounds that disagree, the least of each client is compared.
ROUNDS = 3


@pytest.fixture(scope="module")
def vllm() -> Environment:
    """The installed engine, whose client is used here."""
    return installed_vllm()


async def sent(generator: Generator, url: str) -> Run:
    planned = workload.endless(workload.fixed(RATE.prompt_tokens, RATE.output_tokens), 1, REQUESTS)
    if not isinstance(generator, VllmGenerator):
        lengths = workload.fixed(RATE.prompt_tokens, RATE.output_tokens)
        steps = (LoadStep(0.0, RATE.rps),)
        planned = iter(workload.at_rate(steps, False, RATE.cv, 2 * REQUESTS / RATE.rps, lengths, 1)[:REQUESTS])
    load = Load(planned, REQUESTS, rate=RATE)
    return await generator.run(Endpoint(url, MODEL), load, lambda record: None)


def vllm_generator(vllm: Environment) -> VllmGenerator:
    command = (sys.executable, "-m", "vllm.entrypoints.cli.main")
    return VllmGenerator(str(vllm.model), command, vllm.variables())


def ours(results: Results) -> dict[str, float]:
    told = {
        "request_throughput": results.request_rps,
        "output_throughput": results.output_tokens_per_second,
        "total_token_throughput": results.total_tokens_per_second,
    }
    spreads: dict[str, Spread] = {
        "ttft": results.ttft,
        "tpot": results.tpot,
        "itl": results.itl,
        "e2el": results.e2e,
    }
    for name, spread in spreads.items():
        told |= {f"mean_{name}_ms": spread.mean, f"p50_{name}_ms": spread.p50, f"p99_{name}_ms": spread.p99}
    return {name: value * (1000.0 if name.endswith("_ms") else 1.0) for name, value in told.items()}


async def test_our_figures_of_vllms_raw_run_are_vllms_own_within_a_percent(vllm: Environment) -> None:
    generator = vllm_generator(vllm)
    async with engine(speed=1.0, engine_host=SLOW_STEPS) as client:
        run = await sent(generator, client.base)
    results = measure(run.records, LatencyBounds(), 0.0, 0.0)
    found = ours(results)
    theirs: dict[str, Any] = {name: generator.summary[name] for name in found}
    assert len(run.records) == REQUESTS
    # vLLM's clock of the run also has what it does before the first and after the last request.
    longer = generator.summary["duration"] / results.window.seconds
    assert longer >= 1.0
    of_the_run = {name: value / (1.0 if name.endswith("_ms") else longer) for name, value in found.items()}
    assert of_the_run == pytest.approx(theirs, rel=0.01)


async def test_both_clients_see_the_same_of_one_engine(vllm: Environment) -> None:
    theirs, mine = dict.fromkeys(COMPARED, math.inf), dict.fromkeys(COMPARED, math.inf)
    for _ in range(ROUNDS):
        for least, generator in ((theirs, vllm_generator(vllm)), (mine, OwnGenerator())):
            async with engine(speed=1.0, engine_host=SLOW_STEPS) as client:
                run = await sent(generator, client.base)
            seen = ours(measure(run.records, LatencyBounds(), 0.0, 0.0))
            least |= {name: min(seen[name], least[name]) for name in COMPARED}
            await asyncio.sleep(0)
        if mine == _about(theirs):
            break
    assert mine == _about(theirs)


def _about(figures: dict[str, float]) -> Any:
    """Two draws of Poisson arrivals, and a client in the engine's own process: the same within what that does."""
    return pytest.approx(figures, rel=0.1)


def test_the_work_that_vllm_counts_places_a_load_under_the_roofline(vllm: Environment, tmp_path: Path) -> None:
    told = tmp_path / "bench.json"
    load = ("--concurrency", "4", "--duration", "5s", "--prompt-tokens", "64", "--output-tokens", "32", "--prompts=ids")
    with Server(Settings(vllm, tmp_path, arguments=("--enable-mfu-metrics",))) as server:
        words = ["bench", "--url", server.url, *load, "--accelerator", "l40s", "--max-client-lag", "60s"]
        assert main([*words, "--json", str(told)]) == 0
    results = json.loads(told.read_text())["results"]
    # Four sequences share one reading of the weights: a few FLOP a byte, far below any accelerator's ridge.
    assert 1.0 < results["engine"]["work"]["flops"] / results["engine"]["work"]["memory_bytes"] < 100.0
    assert results["compute_bound"] is False
