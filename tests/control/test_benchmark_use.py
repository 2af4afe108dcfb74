"""Each result of a benchmark says whether sizing starts from it, as the tick was decided; nothing is written twice."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.control.tick.loop import Loop
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.snapshot import Timing
from holdfast.observe.objects.benchmarks import Benchmark
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.policy.settings import PolicySettings
from tests.control.parts import llmservice, parts
from tests.control.test_benchmark_edits import ENGINE_CHANGES, ENGINE_STAYS, LIMITS
from tests.control.test_benchmarks import CALM_SECONDS, FAILURE, ROOT, SUMMARY, Play, a_target
from tests.control.test_loop import Acting, NoMetrics, Telemetry
from tests.fakes import RefusingApi

CHAT, CODE = llmservice("chat"), llmservice("code", scaling={"min": 2}, slo={"ttft": "3s", "tpot": "80ms"})
OTHER = llmservice("other", model={"uri": "Qwen/Qwen3-32B"})


class Shown:
    """What the watches show of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def services(self) -> tuple[ServiceParts, ...]:
        return tuple(self._world.services)

    def benchmarks(self) -> tuple[Benchmark, ...]:
        return tuple(self._world.seen())

    def nodes(self) -> tuple[NodeOffer, ...]:
        return ()

    def invalid(self) -> tuple[Invalid, ...]:
        return ()


class World(Play):
    """The whole loop over the API server: it observes, decides, and tells."""

    def restart(self) -> None:
        super().restart()
        self.failures = Telemetry()
        self.loop = Loop(
            cluster=Shown(self),
            metrics=NoMetrics(),
            actuator=Acting(),  # type: ignore[arg-type]
            telemetry=self.failures,
            timing=Timing(5.0, 15.0),
            policy_settings=PolicySettings(),
            monotonic=self.clock,
            wall=self.clock,
            benchmarks=self.operator,
        )

    async def tick(self, seconds: float = 5.0) -> None:
        self.clock.advance(seconds)
        await self.loop.run_once()

    def serve(self, *services: LLMService) -> None:
        """These services from now on, of one replica each."""
        self.services = [parts(service, ready={"h100": 1}) for service in services]

    async def measure(self, name: str = "sweep", left: Any = SUMMARY, generation: int = 1) -> None:
        """A benchmark of chat begins and ends."""
        self.declare({"revision": generation}, name=name, generation=generation)
        await self.tick(CALM_SECONDS)
        assert self.told(name)[0] == "Running", self.message(name)
        self.end(left, code=0 if left is SUMMARY else 1)
        await self.tick()
        await self.tick()

    async def measure_what_cannot_be(self) -> None:
        """A result for prompts that fit into no KV cache of the model, which the operator has not looked at yet."""
        await self.measure()
        self.restart()
        self.status()["capacity"]["promptTokens"] = 9e6

    async def measured_at(self, rps: float) -> None:
        """A result that somebody may have written, which the operator has not looked at yet."""
        await self.measure()
        self.restart()
        self.status()["capacity"]["perReplicaRps"] = rps

    def use(self, name: str = "sweep") -> tuple[str, str]:
        """Status and reason of CapacityInUse; empty where it is not told."""
        found = self._use(name)
        return (found["status"], found["reason"]) if found else ("", "")

    def why(self, name: str = "sweep") -> str:
        return str(self._use(name)["message"])

    def _use(self, name: str) -> dict[str, Any]:
        told = self.status(name)["conditions"]
        return next((each for each in told if each["type"] == "CapacityInUse"), {})


@pytest.fixture
def world() -> World:
    return World()


async def test_a_result_that_sizes_services_says_which(world: World) -> None:
    world.serve(CHAT, CODE, OTHER)
    await world.measure()
    assert world.told() == ("Succeeded", "Measured")
    assert world.use() == ("True", "InForce")
    assert world.why().startswith("sizing of chat, code starts from this result, which is 0.074 times")
    assert world.status()["capacity"]["service"] == "chat"


async def test_a_newer_result_of_the_same_engine_takes_the_place_of_an_older_one(world: World) -> None:
    await world.measure("old")
    await world.measure("new")
    assert world.use("old") == ("False", "Superseded")
    assert "benchmark new has a newer result for this engine" in world.why("old")
    assert world.use("new") == ("True", "InForce")
    del world.api.objects[f"{ROOT}/new"]
    await world.tick()
    assert world.use("old") == ("True", "InForce"), "the newer one was deleted"


async def test_a_newer_run_that_finds_no_capacity_leaves_the_older_one_in_force_and_says_so(world: World) -> None:
    await world.measure()
    since = world.status()["conditions"][1]["lastTransitionTime"]
    await world.measure(left=FAILURE, generation=2)
    assert world.told() == ("Failed", "TargetUnreachable")
    assert world.use() == ("True", "InForce")
    assert "the result is of an earlier run, not of the newest" in world.why()
    assert world.status()["conditions"][1]["lastTransitionTime"] == since


async def test_another_benchmark_that_finds_no_capacity_supersedes_nothing(world: World) -> None:
    await world.measure("old")
    await world.measure("new", left=FAILURE)
    assert world.use("old") == ("True", "InForce")
    assert world.use("new") == ("", "")


@pytest.mark.parametrize("name", ["the image", "an argument", "a variable"])
async def test_a_result_of_an_engine_that_was_edited_since_says_so_and_stays_in_force(name: str, world: World) -> None:
    await world.measure()
    world.serve(llmservice("chat", generation=2, **ENGINE_CHANGES[name]))
    await world.tick()
    assert world.use() == ("True", "OlderEngine")
    assert "the engine of chat was edited since" in world.why()
    world.serve(CHAT)
    await world.tick()
    assert world.use() == ("True", "InForce")


@pytest.mark.parametrize("edited", [ENGINE_STAYS["bounds"], ENGINE_CHANGES["TTFT"], *LIMITS.values()])
async def test_bounds_objectives_and_limits_make_no_older_engine(edited: dict[str, Any], world: World) -> None:
    await world.measure()
    world.serve(llmservice("chat", generation=2, **edited))
    await world.tick()
    assert world.use() == ("True", "InForce"), "the model answers for any objectives and limits"


@pytest.mark.parametrize("services", [(), (OTHER,)])
async def test_a_result_that_no_service_has_an_engine_for_says_so(
    services: tuple[LLMService, ...], world: World
) -> None:
    await world.measure()
    world.serve(*services)
    await world.tick()
    assert world.use() == ("False", "NoSuchEngine")


async def test_a_result_that_the_model_cannot_be_scaled_to_is_not_called_in_force(world: World) -> None:
    await world.measure_what_cannot_be()
    await world.tick()
    assert world.use() == ("False", "Implausible")
    assert "chat: sized from the engine model alone" in world.why()


@pytest.mark.parametrize("rps", [0.01, 1e4])
async def test_a_result_far_off_the_model_counts_and_says_so(rps: float, world: World) -> None:
    await world.measured_at(rps)
    await world.tick()
    assert world.use() == ("True", "InForce")
    assert "times what the engine model says" in world.why()


async def test_what_stands_there_stays_while_a_service_is_not_decided_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it could be sized from the result is not known in such a tick."""
    await world.measure_what_cannot_be()
    await world.tick()
    monkeypatch.setattr("holdfast.control.tick.loop.decide", lambda snapshot, memory, *rest, **more: ((), memory))
    await world.tick()
    assert world.use() == ("False", "Implausible")


async def test_a_result_for_an_accelerator_that_is_not_in_use_is_judged_as_well(world: World) -> None:
    await world.measure_what_cannot_be()
    both = llmservice("chat", accelerators=[{"name": "l40s", "costPerHour": 0.1}, {"name": "h100", "costPerHour": 9.0}])
    world.services = [parts(both, ready={"l40s": 1})]
    await world.tick()
    assert world.use() == ("False", "Implausible")


async def test_what_stands_there_is_not_written_again_also_after_a_restart(world: World) -> None:
    await world.measure()
    await world.tick()
    before = len(world.api.requests)
    world.restart()
    for _ in range(3):
        await world.tick()
    assert len(world.api.requests) == before


async def test_a_result_that_somebody_took_away_is_not_said_to_be_in_use(world: World) -> None:
    await world.measure()
    world.restart()
    del world.status()["capacity"]
    await world.tick()
    assert world.use() == ("", "")
    assert world.told() == ("Succeeded", "Measured")


async def test_a_result_of_an_earlier_version_is_in_force_all_the_same(world: World) -> None:
    await world.measure()
    world.restart()
    for name in ("service", "build"):
        del world.status()["capacity"][name]
    world.serve(llmservice("chat", generation=2, **ENGINE_CHANGES["the image"]))
    await world.tick()
    assert world.use() == ("True", "InForce"), "it is not known whether the engine was edited"


async def test_an_api_server_that_refuses_the_status_ends_no_tick(world: World) -> None:
    await world.measure()
    refusing = RefusingApi("llmbenchmarks", 403)
    refusing.objects, world.api = world.api.objects, refusing
    world.restart()
    world.serve(OTHER)
    await world.tick()
    assert world.telemetry.errors == ["act"]
    assert world.failures.errors == []
    assert world.use() == ("True", "InForce")


async def test_a_service_reference_to_a_target_is_refused_by_the_whole_loop(world: World) -> None:
    world.services = [a_target()]
    world.declare()
    await world.tick()
    assert world.message() == (
        "chat has a target, and serviceRef is for Holdfast's engines; set target.url to their address instead"
    )
    assert world.jobs() == []
