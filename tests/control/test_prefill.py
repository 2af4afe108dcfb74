"""A prefill pool comes with its size, is repaired, goes when it is removed, and is in the status."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.objects.objects import Objects
from holdfast.control.objects.plan import Plan, plan
from holdfast.control.status.report import cost_per_hour, standing, status_of
from holdfast.domain.cluster import ClusterProblem, Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action
from holdfast.domain.node_inventory import Inventory
from holdfast.observe.objects.cluster import ObservedDeployment, PrefillPool, ServiceParts
from holdfast.render import RenderSettings
from tests.control.parts import as_watched, decision, llmservice, parts, with_router
from tests.fakes import FakeApi

APPS = "/apis/apps/v1/namespaces/prod/deployments"
POOL = f"{APPS}/chat.prefill-h100"
PAIR: dict[str, Any] = {"router": {}, "replicas": 1, "prefill": {"replicas": 2}}


class World:
    """A service of one ready replica."""

    changes: Plan

    def __init__(self, image: str = "holdfast:1", **spec: Any) -> None:
        self.api = FakeApi()
        self.objects = Objects(self.api, RenderSettings(pod_files={"a.py": ""}, activator_image=image))
        self.spec, self.generation, self.now = spec, 1, 0.0

    def edit(self, **spec: Any) -> None:
        """Change the spec."""
        self.spec, self.generation = spec, self.generation + 1

    async def tick(self, ticks: int = 1) -> list[tuple[str, str]]:
        """Let some ticks happen; return the writes of the last one."""
        for _ in range(ticks):
            self.now += 5.0
            self.api.requests.clear()
            part = self._part()
            changes = self.changes = plan(
                part,
                decision(part, Action.HOLD, h100=1),
                Inventory(()),
                pod_monitor=False,
                admission=lambda *_: 7,
                router=self.objects.has_router(part),
            )
            work = self.objects.work(part, changes, self.now)
            births = await self.objects.apply(part, work, self.now)
            await self.objects.create(part, births, changes.births, self.now)
            await self.objects.clear_away(part, work, self.now)
        return self.api.writes()

    def problems(self) -> tuple[ClusterProblem, ...]:
        """Return what the last writes met."""
        return self.objects.problems(self._part())

    def _part(self) -> ServiceParts:
        service = llmservice(generation=self.generation, **self.spec)
        part = as_watched(parts(service, sizes={"h100": 1}, ready={"h100": 1}), self.api)
        part = with_router(part) if f"{APPS}/chat-router" in self.api.objects else part
        return dataclasses.replace(part, prefill=PrefillPool() if service.spec.prefill else None)


async def test_a_prefill_pool_is_created_once_with_its_size_and_an_edit_of_it_is_written() -> None:
    world = World(**PAIR)
    await world.tick(3)
    assert world.api.objects[POOL]["spec"]["replicas"] == 2
    assert await world.tick() == []
    world.edit(**{**PAIR, "prefill": {"replicas": 5}})
    assert await world.tick() == [("PATCH", POOL)]
    assert world.api.objects[POOL]["spec"]["replicas"] == 5


async def test_a_removed_prefill_pool_leaves_nothing_and_takes_nothing_of_the_service_with_it() -> None:
    alone, world = World(router={}, replicas=1), World(**PAIR)
    await alone.tick(3)
    await world.tick(3)
    assert POOL in world.api.objects
    world.edit(router={}, replicas=1)
    await world.tick(3)
    assert not [path for path in world.api.objects if "prefill" in path]
    assert set(alone.api.objects) <= set(world.api.objects)


async def test_a_prefill_pool_on_another_accelerator_replaces_the_one_before() -> None:
    world = World(**PAIR)
    await world.tick(3)
    world.edit(**{**PAIR, "prefill": {"replicas": 2, "accelerators": [{"name": "l40s", "costPerHour": 1.0}]}})
    await world.tick(2)
    assert POOL not in world.api.objects
    assert world.api.objects[f"{APPS}/chat.prefill-l40s"]["spec"]["replicas"] == 2


async def test_without_an_image_for_the_router_nothing_of_the_pool_is_made_or_awaited() -> None:
    world = World(image="", **PAIR)
    await world.tick(3)
    assert not [path for path in world.api.objects if "prefill" in path]
    assert not world.changes.moves


def foreign(world: World, name: str) -> str:
    """A Service of another LLMService by this name; its path."""
    path = f"/api/v1/namespaces/prod/services/{name}"
    owner = {"kind": "LLMService", "name": "other", "uid": "uid-other", "controller": True}
    world.api.put_object(path, {"metadata": {"name": name, "namespace": "prod", "ownerReferences": [owner]}})
    return path


@pytest.mark.parametrize("name", ["chat-replicas", "chat-prefill-replicas"])
async def test_no_router_is_made_that_would_find_the_engines_of_another_service(name: str) -> None:
    world = World(**PAIR)
    taken = foreign(world, name)
    await world.tick(3)
    assert f"{APPS}/chat-router" not in world.api.objects
    assert [problem.reason for problem in world.problems()] == [Reason.NAME_CONFLICT]
    del world.api.objects[taken]
    await world.tick()
    assert f"{APPS}/chat-router" in world.api.objects


async def test_a_router_that_runs_is_not_led_to_the_engines_of_another_service() -> None:
    world = World(router={}, replicas=1)
    await world.tick(3)
    before = world.api.objects[f"{APPS}/chat-router"]["spec"]
    foreign(world, "chat-prefill-replicas")
    world.edit(**PAIR)
    await world.tick(3)
    assert world.api.objects[f"{APPS}/chat-router"]["spec"] == before
    assert [problem.reason for problem in world.problems()] == [Reason.NAME_CONFLICT]


def pair(*phases: ReplicaPhase, problems: tuple[ClusterProblem, ...] = (), **words: str) -> ServiceParts:
    """A service of one ready replica and a pool of two prefill engines, in these phases."""
    engines = tuple(
        Replica(f"chat.prefill-h100-{number}", "h100", phase, created_at=0.0, **words)
        for number, phase in enumerate(phases)
    )
    deployed = ObservedDeployment(Placement("h100", 2, workload=Workload("chat.prefill-h100")), problems)
    part = parts(llmservice(**PAIR), ready={"h100": 1}, sizes={"h100": 1})
    return dataclasses.replace(part, prefill=PrefillPool(engines, deployed))


READY, STARTING, FAILING = ReplicaPhase.READY, ReplicaPhase.STARTING, ReplicaPhase.FAILING


@pytest.mark.parametrize(
    ("part", "status", "reason", "words"),
    [
        (pair(READY, READY), "True", "Serving", "1 of 1 replica is ready"),
        (pair(READY, STARTING), "True", "Serving", "; 1 of 2 prefill engines is ready"),
        (pair(STARTING), "False", "PrefillNotReady", "0 of 2 prefill engines are ready, so the replicas serve whole"),
        (pair(FAILING, reason="ImagePullBackOff"), "False", "PrefillNotReady", "h100-0: ImagePullBackOff"),
        (
            pair(problems=(ClusterProblem("QuotaExceeded", "no quota for pods"),)),  # type: ignore[arg-type]
            "False",
            "PrefillNotReady",
            "no quota for pods",
        ),
    ],
    ids=["both pools serve", "one engine is missing", "none is ready", "none can be", "none may be"],
)
def test_a_service_is_ready_while_both_of_its_pools_serve(
    part: ServiceParts, status: str, reason: str, words: str
) -> None:
    decided = decision(part, Action.HOLD, h100=1)
    told = status_of(part, decided, BatchingStatus(), {}, now=0.0)
    (found,) = [each for each in told["conditions"] if each["type"] == "Ready"]
    assert (found["status"], found["reason"]) == (status, reason)
    assert words in found["message"]
    assert [each.status for each in standing(part, decided, 0.0) if each.type == "Ready"] == [status]


def test_a_status_lists_both_pools_and_what_they_cost_together() -> None:
    part = pair(READY, STARTING)
    told = status_of(part, decision(part, Action.HOLD, h100=1), BatchingStatus(), {}, now=0.0)
    assert told["pools"] == [
        {"name": "chat", "role": "Decode", "desired": 1, "ready": 1},
        {"name": "chat.prefill", "role": "Prefill", "desired": 2, "ready": 1},
    ]
    assert told["replicas"]["summary"] == "1/1"
    assert cost_per_hour(part) == 9.0


def test_a_service_of_one_pool_has_no_pools_in_its_status() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    assert "pools" not in status_of(part, decision(part, Action.HOLD, h100=1), BatchingStatus(), {}, now=0.0)
