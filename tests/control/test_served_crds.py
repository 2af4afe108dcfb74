"""An operator that is newer than the CRDs says so; what cannot be read changes nothing, and no tick waits for it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.api.crd import LLMBENCHMARK, LLMSERVICE
from holdfast.control.tick.served_crds import HOUR_SECONDS, PATH, SOON_SECONDS, ServedCrds
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.benchmarks import Benchmark
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.runtime.telemetry import Telemetry
from tests.api.served import document
from tests.control.parts import llmservice, parts
from tests.fakes import FakeApi, HangingApi, ManualClock

CHAT, CODE = ServiceKey("prod", "chat"), ServiceKey("prod", "code")
OLD, NEW = document("LLMService.spec.slo.e2e", "LLMBenchmark.spec.revision"), document()


def losing(*paths: str, name: str = "chat") -> ServiceParts:
    return dataclasses.replace(parts(llmservice(name)), not_stored=paths)


BENCHMARK = Benchmark(CHAT, "uid", 1, "", None, not_stored=("spec.revision",))


class World:
    """The comparison over an API server that shows a document, on a clock that the test moves."""

    def __init__(self, served: dict[str, Any] = OLD, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.clock = ManualClock(0.0)
        self.telemetry = Telemetry()
        self.crds = ServedCrds(self.api, self.telemetry, self.clock)
        self.serve(served)

    def serve(self, served: dict[str, Any]) -> None:
        self.api.put_object(PATH, served)

    async def tick(self, *services: ServiceParts, benchmarks: tuple[Benchmark, ...] = ()) -> dict[ServiceKey, Any]:
        """A tick, and what it set off in the background."""
        found = self.crds.lost_fields(services, benchmarks)
        while reading := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.wait(reading)
        return dict(found)

    def missing(self, crd: str = LLMSERVICE.name) -> float | None:
        return self.telemetry.registry.get_sample_value("holdfast_crd_missing_fields", {"crd": crd})


async def test_a_service_that_lost_a_field_is_named_from_the_tick_after_the_first_read() -> None:
    world, service = World(), losing("spec.priority", "spec.slo.e2e")
    assert await world.tick(service) == {}
    assert await world.tick(service, losing("spec.priority", name="code"), parts()) == {CHAT: ("spec.slo.e2e",)}
    assert (world.missing(), world.missing(LLMBENCHMARK.name)) == (1.0, 1.0)


async def test_crds_of_this_version_lack_nothing_whatever_an_object_did_not_keep() -> None:
    world = World(NEW)
    for _ in range(2):
        assert await world.tick(losing("spec.slo.e2e"), benchmarks=(BENCHMARK,)) == {}
    assert world.missing() == 0.0


@pytest.mark.parametrize(("served", "pause"), [(NEW, HOUR_SECONDS), (OLD, SOON_SECONDS), ({}, SOON_SECONDS)])
async def test_it_is_read_hourly_and_every_minute_while_it_is_too_old_or_unknown(
    served: dict[str, Any], pause: float
) -> None:
    world = World(served)
    for now, reads in ((0.0, 1), (pause - 1.0, 1), (pause, 2), (pause + 1.0, 2), (2.0 * pause, 3)):
        world.clock.now = now
        await world.tick()
        assert world.api.requests == [("GET", PATH, {}, None)] * reads


async def test_an_update_of_the_crd_ends_it_within_a_minute() -> None:
    world, service = World(), losing("spec.slo.e2e")
    await world.tick(service)
    world.serve(NEW)
    assert await world.tick(service)
    world.clock.now = SOON_SECONDS
    await world.tick(service)
    assert await world.tick(service) == {}
    assert world.missing() == 0.0


FAILURES = [ApiError(404, "not found"), ApiError(403, "forbidden"), ApiUnreachable("timeout"), RecursionError()]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_without_an_answer_nothing_is_said(failure: Exception) -> None:
    world = World()
    world.api.fail_with = failure
    for _ in range(2):
        assert await world.tick(losing("spec.slo.e2e")) == {}
    assert world.missing() is None


@pytest.mark.parametrize("failure", [*FAILURES, None], ids=repr)
async def test_without_a_further_answer_what_is_known_stays_known(failure: Exception | None) -> None:
    world, service = World(), losing("spec.slo.e2e")
    await world.tick(service)
    world.api.fail_with = failure
    world.serve({"components": {"schemas": {"a": None}}})
    world.clock.now = SOON_SECONDS
    await world.tick(service)
    assert await world.tick(service) == {CHAT: ("spec.slo.e2e",)}
    assert world.missing() == 1.0


async def test_a_failure_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for number, failure in enumerate([*FAILURES[:2], FAILURES[1], None]):
        world.api.fail_with, world.clock.now = failure, number * SOON_SECONDS
        await world.tick()
    told = [record.getMessage() for record in caplog.records if PATH in record.getMessage()]
    assert [text.split("(")[1].split(")")[0] for text in told] == ["404: not found", "403: forbidden"]


async def test_no_tick_waits_and_a_read_that_hangs_is_not_repeated() -> None:
    world = World(api=HangingApi(PATH))
    for now in (0.0, SOON_SECONDS, HOUR_SECONDS):
        world.clock.now = now
        assert world.crds.lost_fields([losing("spec.slo.e2e")], ()) == {}
        await asyncio.sleep(0)
    (reading,) = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    reading.cancel()


async def test_each_loss_is_logged_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.tick()
    caplog.clear()
    for lost in (True, True, False, True):
        services = [losing("spec.slo.e2e")] if lost else [parts()]
        await world.tick(*services, benchmarks=(BENCHMARK,))
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" no effect")[0] for text in told] == [
        "LLMBenchmark prod/chat: CrdTooOld: 1 field has",
        "LLMService prod/chat: CrdTooOld: 1 field has",
        "LLMService prod/chat: CrdTooOld: 1 field has",
    ]
    assert all("holdfast crd | kubectl apply -f -" in text for text in told)


async def test_an_old_crd_is_logged_once_and_its_update_as_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World(document("LLMService.spec.slo.e2e"))
    for number, served in enumerate((OLD, OLD, NEW, NEW)):
        world.serve(served)
        world.clock.now = number * SOON_SECONDS
        await world.tick()
    about = [record.getMessage() for record in caplog.records if LLMSERVICE.name in record.getMessage()]
    assert [text.partition(";")[0] for text in about] == [
        "CrdTooOld: CRD llmservices.holdfast.dev lacks 1 field of the operator's version (spec.slo.e2e)",
        "CRD llmservices.holdfast.dev has all fields of the operator's version again",
    ]
