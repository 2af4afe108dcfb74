"""Edits of a service while it is measured: only those of what its figure depends on cost the capacity of a replica."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control.parts import llmservice, parts
from tests.control.test_benchmarks import SUMMARY, TUNED, Play

ENGINE_STAYS: dict[str, dict[str, Any]] = {
    "bounds": {"scaling": {"min": 2, "max": 9}},
    "a size": {"replicas": 3},
    "a floor": {
        "scaling": {"schedules": [{"name": "day", "timezone": "UTC", "start": "08:00", "end": "18:00", "min": 2}]}
    },
    "a budget": {"budget": {"maxCostPerHour": 20.0}},
    "a priority": {"priority": 7},
    "a price": {"accelerators": [{"name": "h100", "costPerHour": 2.0}, {"name": "l40s", "costPerHour": 1.0}]},
    "one accelerator less": {"accelerators": [{"name": "h100", "costPerHour": 3.0}]},
    "mode": {"mode": "Recommend"},
    "the window": {"slo": {"ttft": "1s", "tpot": "50ms", "window": "6h"}},
    "the same objectives in other words": {"slo": {"ttft": "1000ms", "tpot": "0.05s", "objective": "99%"}},
}
ENGINE_CHANGES: dict[str, dict[str, Any]] = {
    "the model": {"model": {"uri": "Qwen/Qwen3-32B"}},
    "quantization": {"model": {"uri": "Qwen/Qwen3-8B", "quantization": "fp8"}},
    "the image": {"engine": {"image": "vllm/vllm-openai:v0.33.0"}},
    "an argument": {"engine": {"args": ["--enforce-eager"]}},
    "a variable": {"engine": {"env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]}},
    "GPUs": {"accelerators": [{"name": "h100", "count": 2}]},
    "another accelerator": {"accelerators": [{"name": "l40s"}]},
    "TTFT": {"slo": {"ttft": "2s", "tpot": "50ms"}},
    "TPOT": {"slo": {"ttft": "1s", "tpot": "40ms"}},
    "E2E": {"slo": {"ttft": "1s", "tpot": "50ms", "e2e": "20s"}},
    "the objective": {"slo": {"ttft": "1s", "tpot": "50ms", "objective": "95%"}},
}
LIMITS: dict[str, dict[str, Any]] = {
    "overload": {"overload": "Reject"},
    "limits": {"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}},
    "who chooses them": {"batching": {"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 2048}},
}


@pytest.fixture
def sweeping() -> Play:
    play = Play()
    play.declare()
    return play


@pytest.fixture
def tuning() -> Play:
    play = Play()
    play.deploy()
    play.declare({"sweep": None, "tune": {}})
    return play


def edit(play: Play, **spec: Any) -> None:
    """The service's spec from now on; its one replica on h100 stays."""
    play.services = [parts(llmservice("chat", generation=2, **spec), ready={"h100": 1})]


async def measured(play: Play, edited: dict[str, Any], left: Any) -> bool:
    """Whether a capacity was found by a run during which the service was edited."""
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning"), play.message()
    edit(play, **edited)
    await play.tick()
    play.end(left)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    return "capacity" in play.status()


@pytest.mark.parametrize("name", ENGINE_STAYS)
async def test_an_edit_that_leaves_the_engine_as_it_is_costs_no_capacity(
    name: str, sweeping: Play, tuning: Play
) -> None:
    assert await measured(sweeping, ENGINE_STAYS[name], SUMMARY), sweeping.message()
    assert await measured(tuning, ENGINE_STAYS[name], TUNED), tuning.message()
    assert tuning.status()["capacity"]["engine"] == sweeping.status()["capacity"]["engine"]


@pytest.mark.parametrize("name", ENGINE_CHANGES)
async def test_an_edit_of_what_the_figure_depends_on_leaves_no_capacity_and_says_why(
    name: str, sweeping: Play, tuning: Play
) -> None:
    assert not await measured(sweeping, ENGINE_CHANGES[name], SUMMARY)
    assert not await measured(tuning, ENGINE_CHANGES[name], TUNED)
    for play in (sweeping, tuning):
        assert "engine, limits or objectives of the service were edited during the run" in play.message()


@pytest.mark.parametrize("name", LIMITS)
async def test_limits_of_the_service_are_those_of_its_replicas_and_not_of_an_engine_that_is_tuned(
    name: str, sweeping: Play, tuning: Play
) -> None:
    assert not await measured(sweeping, LIMITS[name], SUMMARY)
    assert await measured(tuning, LIMITS[name], TUNED), tuning.message()


async def test_objectives_of_the_service_count_for_its_replicas_whatever_judges_the_run(
    sweeping: Play, tuning: Play
) -> None:
    """Its plugins follow them; an engine that is started to be tuned serves nobody else."""
    own = {"slo": {"ttft": "3s", "tpot": "80ms"}}
    sweeping.declare(own, generation=2)
    tuning.declare({"sweep": None, "tune": {}, **own}, generation=2)
    assert not await measured(sweeping, ENGINE_CHANGES["TPOT"], SUMMARY)
    assert await measured(tuning, ENGINE_CHANGES["TPOT"], TUNED), tuning.message()


async def test_a_run_that_an_older_operator_began_loses_its_capacity_by_any_edit(sweeping: Play) -> None:
    await sweeping.tick()
    del sweeping.status()["engines"]["digest"]
    sweeping.restart()
    assert not await measured(sweeping, ENGINE_STAYS["bounds"], SUMMARY)


async def test_an_edit_that_is_undone_before_the_end_costs_the_capacity_all_the_same(tuning: Play) -> None:
    await tuning.tick()
    edit(tuning, **ENGINE_CHANGES["the image"])
    await tuning.tick()
    edit(tuning)
    assert not await measured(tuning, {}, TUNED)


async def test_an_edit_that_is_not_valid_costs_nothing_if_it_is_put_right(tuning: Play) -> None:
    await tuning.tick()
    tuning.services = []
    await tuning.tick()
    assert tuning.told() == ("Running", "BenchmarkRunning")
    assert await measured(tuning, ENGINE_STAYS["bounds"], TUNED), tuning.message()


async def test_a_service_that_is_gone_at_the_end_leaves_no_capacity(tuning: Play) -> None:
    await tuning.tick()
    tuning.services = []
    tuning.end(TUNED)
    await tuning.tick()
    assert tuning.told() == ("Succeeded", "Measured")
    assert "capacity" not in tuning.status()
    assert "the service was deleted" in tuning.message()


async def test_what_was_measured_is_remembered_over_a_restart(tuning: Play) -> None:
    await tuning.tick()
    tuning.restart()
    assert not await measured(tuning, ENGINE_CHANGES["the model"], TUNED)


async def test_replicas_of_several_accelerators_are_told_as_such(sweeping: Play) -> None:
    sweeping.resize(h100=1, l40s=1)
    await sweeping.tick()
    assert "digest" not in sweeping.status()["engines"]
    sweeping.end(SUMMARY)
    await sweeping.tick()
    assert "capacity" not in sweeping.status()
    assert "replicas on several accelerators answered" in sweeping.message()
