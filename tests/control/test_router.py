"""A router comes and goes without a gap, and one that takes no requests is a problem once it should."""

from __future__ import annotations

import pytest

from holdfast.api.reasons import Reason
from holdfast.control.objects.objects import Objects
from holdfast.control.objects.plan import plan
from holdfast.control.objects.router_problem import no_image, router_problem
from holdfast.domain.decision import Action
from holdfast.domain.node_inventory import Inventory
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render import RenderSettings
from tests.control.parts import as_watched, decision, llmservice, parts, with_router
from tests.fakes import FakeApi, RefusingApi

SERVICES = "/api/v1/namespaces/prod/services"
ROUTER = "/apis/apps/v1/namespaces/prod/deployments/chat-router"
ROUTED = parts(llmservice(router={}))
BUDGET = "/apis/policy/v1/namespaces/prod/poddisruptionbudgets/chat-router"


class World:
    """A service of one ready replica; `clients`: the label by which the clients' Service selects, as last written."""

    def __init__(self, api: FakeApi | None = None, **spec: object) -> None:
        self.api = api or FakeApi()
        self.objects = Objects(self.api, RenderSettings(pod_files={"a.py": ""}, activator_image="holdfast:1"))
        self.spec = spec
        self.generation, self.now = 1, 0.0
        self.away_since: float | None = 0.0
        self.clients = ""

    def edit(self, **spec: object) -> None:
        """Change the spec."""
        self.spec, self.generation = spec, self.generation + 1

    async def tick(self, ticks: int = 1) -> list[tuple[str, str]]:
        """Let some ticks happen; return the writes of the last one."""
        for _ in range(ticks):
            self.now += 5.0
            self.api.requests.clear()
            part = self._part()
            changes = plan(
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
            for _, path, _, body in self.api.requests:
                if path == f"{SERVICES}/chat" and body:
                    (self.clients,) = body["spec"]["selector"]
        return self.api.writes()

    def _part(self) -> ServiceParts:
        service = llmservice(generation=self.generation, **self.spec)
        part = as_watched(parts(service, sizes={"h100": 1}, ready={"h100": 1}), self.api)
        return with_router(part, self.away_since) if ROUTER in self.api.objects else part


async def test_clients_are_led_to_a_router_once_it_is_ready_and_to_the_replicas_while_it_is_not() -> None:
    world = World(router={})
    await world.tick(3)
    assert world.api.objects[ROUTER]["spec"]["replicas"] == 2
    assert {f"{SERVICES}/chat-replicas", BUDGET} <= set(world.api.objects)
    assert world.clients == "holdfast.dev/service"
    world.away_since = None
    assert await world.tick() == [("PATCH", f"{SERVICES}/chat")]
    assert world.clients == "holdfast.dev/router"
    assert await world.tick() == []
    world.away_since = world.now
    assert await world.tick() == [("PATCH", f"{SERVICES}/chat")]
    assert world.clients == "holdfast.dev/service"


async def test_an_edited_number_of_router_pods_is_written_and_repaired() -> None:
    world = World(router={})
    world.away_since = None
    await world.tick(3)
    world.edit(router={"replicas": 1})
    assert set(await world.tick()) == {("PATCH", ROUTER), ("DELETE", BUDGET)}
    assert world.api.objects[ROUTER]["spec"]["replicas"] == 1


async def test_a_removed_router_loses_its_clients_first_and_its_way_to_the_replicas_last() -> None:
    world = World(router={})
    world.away_since = None
    await world.tick(3)
    world.edit()
    assert set(await world.tick()) == {("PATCH", f"{SERVICES}/chat"), ("DELETE", BUDGET)}
    assert world.clients == "holdfast.dev/service"
    assert await world.tick() == [("DELETE", ROUTER)]
    assert await world.tick() == [("DELETE", f"{SERVICES}/chat-replicas")]
    assert not {ROUTER, BUDGET, f"{SERVICES}/chat-replicas"} & set(world.api.objects)


@pytest.mark.parametrize("status", [403, 409, 422])
async def test_a_removed_router_stays_while_the_clients_cannot_be_led_away_from_it(status: int) -> None:
    world = World(api := RefusingApi("nothing", status), router={})
    world.away_since = None
    await world.tick(3)
    world.edit()
    api.kind = "services/chat"
    assert ("DELETE", ROUTER) not in await world.tick(3)
    assert ROUTER in api.objects
    api.kind = "nothing"
    assert ("PATCH", f"{SERVICES}/chat") in await world.tick()
    assert await world.tick() == [("DELETE", ROUTER)]


async def test_a_deployment_of_this_name_that_is_no_router_is_not_deleted() -> None:
    world = World(accelerators=[{"name": "h100"}, {"name": "router"}])
    await world.tick()
    world.api.objects[ROUTER] = {
        "kind": "Deployment",
        "metadata": {"name": "chat-router", "namespace": "prod", "ownerReferences": [{"uid": "uid-chat"}]},
        "spec": {},
    }
    part = as_watched(parts(llmservice(), sizes={"h100": 1}), world.api)
    changes = plan(
        part, decision(part, Action.HOLD, h100=1), Inventory(()), pod_monitor=False, admission=lambda *_: None
    )
    unwanted = world.objects.work(part, changes, 100.0).unwanted
    assert "Deployment" not in {live.kind for live in unwanted}


@pytest.mark.parametrize(
    ("away_since", "now", "told"),
    [
        pytest.param(None, 10_000.0, False, id="it is ready"),
        pytest.param(0.0, 89.0, False, id="the first replica has been ready for 59 s"),
        pytest.param(0.0, 90.0, True, id="the first replica has been ready for 60 s"),
        pytest.param(1_000.0, 1_059.0, False, id="it has been away for 59 s"),
        pytest.param(1_000.0, 1_060.0, True, id="it has been away for 60 s"),
        pytest.param(1_000.0, 900.0, False, id="clocks differ"),
    ],
)
def test_a_router_that_takes_no_requests_is_told_after_a_minute(
    away_since: float | None, now: float, told: bool
) -> None:
    part = with_router(parts(llmservice(router={}), ready={"h100": 2}), away_since)
    problems = router_problem(part, now)
    assert [problem.reason for problem in problems] == [Reason.ROUTER_UNAVAILABLE] * told


def test_a_router_without_a_replica_to_send_requests_to_is_no_problem() -> None:
    part = with_router(parts(llmservice(router={})), away_since=0.0)
    assert router_problem(part, 10_000.0) == ()
    assert router_problem(parts(llmservice(), ready={"h100": 1}), 10_000.0) == ()


def test_a_router_that_cannot_run_is_told_at_once() -> None:
    (problem,) = no_image(parts(llmservice(router={})), has_router=False)
    assert "set --activator-image" in problem.message
    assert no_image(parts(llmservice()), has_router=False) == no_image(ROUTED, has_router=True) == ()
