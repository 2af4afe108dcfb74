"""What a service owns stays as it should be, whoever deletes or edits it, and nothing is written without need."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.act.apply import WATCH_LAG_SECONDS
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.control.objects.objects import Objects
from holdfast.control.objects.plan import plan
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.node_inventory import Inventory
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render import RenderSettings
from tests.control.parts import as_watched, body, decision, llmservice, parts
from tests.fakes import FakeApi

CORE = "/api/v1/namespaces/prod"
DEPLOYMENT = "/apis/apps/v1/namespaces/prod/deployments/chat-h100"
REPLICA_SETS = "/apis/apps/v1/namespaces/prod/replicasets"
BUDGET = "/apis/policy/v1/namespaces/prod/poddisruptionbudgets/chat"
MONITOR = "/apis/monitoring.coreos.com/v1/namespaces/prod/podmonitors/chat"


class Listing(FakeApi):
    """Collections beside objects, for what pruning asks."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, list[dict[str, Any]]] = {REPLICA_SETS: [], f"{CORE}/pods": []}

    def _get(self, path: str, body: Any) -> dict[str, Any]:
        return {"items": self.lists[path]} if path in self.lists else super()._get(path, body)


class World:
    """One service of two replicas, with its objects in an API server and a watch that is never behind."""

    def __init__(self, files: str = "1", api: Listing | None = None, plugin: bytes = b"") -> None:
        self.api = api or Listing()
        self.objects = Objects(self.api, RenderSettings(pod_files={"a.py": files}, plugin=plugin))
        self.now = 0.0
        self.part = parts(sizes={"h100": 2}, ready={"h100": 2})
        self.size = 2

    async def tick(self, seconds: float = 5.0) -> list[tuple[str, str]]:
        """Let one tick happen; return its writes."""
        self.now += seconds
        self.api.requests.clear()
        part, decided = as_watched(self.part, self.api), self._decided()
        changes = plan(part, decided, Inventory(()), pod_monitor=True, admission=lambda *_: 7)
        work = self.objects.work(part, changes, self.now)
        births = await self.objects.apply(part, work, self.now)
        await self.objects.create(part, births, changes.births, self.now)
        await self.objects.clear_away(part, work, self.now)
        return self.api.writes()

    async def settle(self) -> None:
        """Create everything, and see that nothing more is to be done then."""
        whole, self.part = self.part, parts(self.part.service)
        self.part, _ = whole, await self.tick()
        await self.tick()
        assert await self.tick() == []

    def restart(self) -> None:
        """Another process goes on with what the status says."""
        status = {"objectDigests": list(self.objects.digests(self.part))}
        service = self.part.service.model_copy(update={"status": status})
        self.part = dataclasses.replace(self.part, service=service)
        self.objects = Objects(self.api, RenderSettings(pod_files={"a.py": "1"}))

    def _decided(self) -> Decision:
        return decision(self.part, Action.HOLD if self.part.deployed else Action.CREATE, h100=self.size)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.settle()
    return world


def files(world: World) -> str:
    (path,) = (path for path in world.api.objects if path.startswith(f"{CORE}/configmaps/chat-pod-"))
    return path


async def test_a_restart_writes_nothing_that_is_as_it_was_written(world: World) -> None:
    world.restart()
    assert await world.tick() == []
    world.restart()  # before anything was found correct once more, the status keeps what it said
    world.restart()
    assert await world.tick() == []


@pytest.mark.parametrize("path", [f"{CORE}/services/chat", f"{CORE}/serviceaccounts/chat", BUDGET, DEPLOYMENT])
async def test_what_was_deleted_or_edited_while_no_operator_ran_is_put_right(world: World, path: str) -> None:
    label = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}
    world.api.edit(path, label)
    world.restart()
    assert await world.tick() == [("PATCH", path)]
    if path != DEPLOYMENT:
        del world.api.objects[path]
        world.restart()
        assert ("PATCH", path) in await world.tick()
    assert await world.tick() == []


async def test_what_was_declared_while_no_operator_ran_is_written_after_the_restart(world: World) -> None:
    world.part = parts(llmservice(generation=2, engine={"args": ["--x=1"]}), sizes={"h100": 2}, ready={"h100": 2})
    world.restart()
    assert await world.tick() == [("PATCH", DEPLOYMENT)]


async def test_objects_of_another_service_of_the_same_name_are_not_taken_for_written(world: World) -> None:
    path = f"{CORE}/services/chat"
    world.api.objects[path]["metadata"]["uid"] = "another"
    world.restart()
    assert ("PATCH", path) in await world.tick()


OWNED = [f"{CORE}/services/chat", f"{CORE}/serviceaccounts/chat", BUDGET, MONITOR]


async def test_what_was_just_created_is_not_sized_again_while_the_watch_is_behind() -> None:
    world = World()
    world.part = parts(world.part.service)
    assert ("PATCH", DEPLOYMENT) in await world.tick()
    world.api.edit(DEPLOYMENT, {"spec": {"replicas": 7}})
    assert await world.tick(WATCH_LAG_SECONDS - 1.0) == []
    assert ("PATCH", DEPLOYMENT) in await world.tick(1.0)


@pytest.mark.parametrize("path", [*OWNED, "files"])
async def test_what_somebody_deletes_is_there_again_after_one_tick(world: World, path: str) -> None:
    path = files(world) if path == "files" else path
    before = world.api.objects.pop(path)
    assert await world.tick() == [("PATCH", path)]
    assert world.api.objects[path].get("spec") == before.get("spec")
    assert await world.tick() == []


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (f"{CORE}/services/chat", {"spec": {"selector": {"holdfast.dev/service": "other"}}}),
        (f"{CORE}/serviceaccounts/chat", {"automountServiceAccountToken": True}),
        (BUDGET, {"spec": {"maxUnavailable": 5}}),
        (MONITOR, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}),
        (DEPLOYMENT, {"spec": {"revisionHistoryLimit": 99}}),
        (DEPLOYMENT, {"metadata": {"annotations": {"holdfast.dev/pod-template": '{"spec": {}}'}}}),
    ],
)
async def test_what_somebody_edits_is_put_right_after_one_tick(world: World, path: str, change: dict[str, Any]) -> None:
    before = world.api.objects[path]
    world.api.edit(path, change)
    assert await world.tick() == [("PATCH", path)]
    rest = ("spec", "automountServiceAccountToken")
    assert [world.api.objects[path].get(field) for field in rest] == [before.get(field) for field in rest]
    assert world.api.objects[path]["metadata"]["labels"] == before["metadata"]["labels"]
    assert await world.tick() == []


async def test_the_same_edit_made_again_and_again_is_put_right_each_time(world: World) -> None:
    for _ in range(5):
        world.api.edit(BUDGET, {"spec": {"maxUnavailable": 5}})
        assert await world.tick() == [("PATCH", BUDGET)]
        assert await world.tick() == []


async def test_what_others_write_into_our_objects_causes_no_request(world: World) -> None:
    for turn in range(10):
        for path in OWNED:
            world.api.edit(path, {"metadata": {"annotations": {"them": str(turn)}}, "status": {"healthy": turn}})
        await world.tick()
        assert world.api.requests == []


async def test_a_restarted_operator_settles_with_one_apply_per_object(world: World) -> None:
    again = World(api=world.api)
    assert len(await again.tick()) == 7
    assert await again.tick() == []
    assert again.api.requests == []


async def test_somebody_elses_object_under_a_freed_name_is_named_and_left_alone(world: World) -> None:
    service = f"{CORE}/services/chat"
    del world.api.objects[service]
    world.api.put_object(service, {"metadata": {"name": "chat", "labels": {"holdfast.dev/service": "chat"}}})
    assert await world.tick() == []
    (problem,) = world.objects.problems(world.part)
    assert problem.reason == "NameConflict"
    assert "Service prod/chat" in problem.message
    del world.api.objects[service]
    assert await world.tick() == [("PATCH", service)]
    assert world.objects.problems(world.part) == ()


async def test_a_write_that_meets_another_one_is_no_problem_and_tried_again() -> None:
    class Conflicting(Listing):
        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path == BUDGET and conflicts:
                conflicts.pop()
                raise ApiError(409, "the object has been modified")
            return super()._patch(path, body)

    conflicts = [1, 2]
    world = World(api=Conflicting())
    await world.tick()
    assert BUDGET not in world.api.objects
    assert world.objects.problems(world.part) == ()
    await world.tick()
    assert BUDGET in world.api.objects


async def test_a_refused_object_is_a_problem_until_it_is_accepted_and_holds_up_no_other() -> None:
    class Refusing(Listing):
        refuse = True

        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path.startswith(f"{CORE}/services/") and self.refuse:
                raise ApiError(422, "spec.ports: no")
            return super()._patch(path, body)

    api = Refusing()
    world = World(api=api)
    await world.tick()
    assert [problem.reason for problem in world.objects.problems(world.part)] == ["ApplyFailed"]
    assert BUDGET in api.objects
    api.refuse = False
    await world.tick()
    assert world.objects.problems(world.part) == ()


async def test_a_template_that_cannot_be_rendered_is_told_once_and_leaves_what_runs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    whole, before = world.part, dict(world.api.objects)
    edited = parts(llmservice(generation=2), sizes={"h100": 2}, ready={"h100": 2})
    # Types refuse such a template; this is the net below them.
    spec = edited.service.spec.model_copy(update={"template": {"spec": {"volumes": {"a": "b"}}}})
    world.part = dataclasses.replace(edited, service=edited.service.model_copy(update={"spec": spec}))
    for _ in range(3):
        assert await world.tick() == []
    (problem,) = world.objects.problems(world.part)
    assert problem.reason is Reason.INVALID
    assert "spec.template" in problem.message
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert world.api.objects == before
    world.part = whole
    await world.tick()
    assert world.objects.problems(world.part) == ()


async def test_pod_files_that_somebody_put_in_the_place_of_ours_are_made_anew() -> None:
    class Immutable(Listing):
        theirs = ""

        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if self.objects.get(path, {}).get("metadata", {}).get("uid") == self.theirs:
                raise ApiError(422, "data: Forbidden: field is immutable when `immutable` is set")
            return super()._patch(path, body)

    api = Immutable()
    world = World(api=api)
    await world.settle()
    path = files(world)
    ours = api.objects.pop(path)
    meta = {**ours["metadata"], "uid": "another", "managedFields": []}
    api.theirs = api.put_object(path, {**ours, "metadata": meta, "data": {"a.py": "evil"}})["metadata"]["uid"]
    assert ("DELETE", path) in await world.tick()
    assert world.objects.problems(world.part) == ()
    await world.tick()
    assert api.objects[path]["data"] == ours["data"]
    assert await world.tick() == []


async def test_a_cluster_without_image_volumes_is_told_with_the_remedy() -> None:
    said = (
        "failed to create typed patch object (prod/chat-h100; apps/v1, Kind=Deployment): "
        '.spec.template.spec.volumes[name="model"].image: field not declared in schema'
    )
    api = Listing()
    api.fail_with = ApiError(500, said)
    world = World(api=api)
    await world.tick()
    told = {problem.message for problem in world.objects.problems(world.part)}
    assert (
        f"the API server rejected Deployment chat-h100: {said}; this cluster has no image volumes: use pvc://"
    ) in " ".join(told)


async def test_a_policy_that_denies_a_write_costs_no_pod_files() -> None:
    class Denying(Listing):
        denies = False

        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if self.denies and "/configmaps/" in path:
                raise ApiError(422, "ValidatingAdmissionPolicy 'owners' denied request: label owner is missing")
            return super()._patch(path, body)

    world = World(api=Denying())
    await world.settle()
    path = files(world)
    again = World(api=world.api)  # another leader, which applies everything once
    again.api.denies = True
    assert ("DELETE", path) not in await again.tick()
    assert path in again.api.objects
    assert "label owner is missing" in str(again.objects.problems(again.part))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (
            "deployments",
            ApiError(422, "spec.selector: Invalid value: {}: field is immutable"),
            "delete the Deployment and its pods",
        ),
        (
            "services",
            ApiError(422, "spec.clusterIP: field is immutable"),
            "the operator creates it again: kubectl -n prod delete service chat",
        ),
        ("services", ApiError(422, "spec.ports: no"), "rejected Service chat: spec.ports: no"),
    ],
)
async def test_what_can_never_become_ours_is_told_with_the_remedy(kind: str, error: ApiError, words: str) -> None:
    class Refusing(Listing):
        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if f"/{kind}/" in path:
                raise error
            return super()._patch(path, body)

    world = World(api=Refusing())
    world.part = parts(world.part.service)
    await world.tick()
    told = {problem.message for problem in world.objects.problems(world.part)}
    assert words in " ".join(told)


async def test_the_disruption_budget_goes_with_the_last_replica_even_after_a_restart(world: World) -> None:
    again = World(api=world.api)
    again.part, again.size = parts(sizes={"h100": 0}), 0
    assert ("DELETE", BUDGET) in await again.tick()
    assert BUDGET not in world.api.objects


async def test_a_deletion_that_failed_is_tried_again(world: World) -> None:
    world.part, world.size = parts(sizes={"h100": 0}), 0
    world.api.fail_with = ApiUnreachable("DELETE: timeout")
    with pytest.raises(ApiUnreachable):
        await world.tick()
    world.api.fail_with = None
    assert await world.tick() == [("DELETE", BUDGET), ("DELETE", f"{BUDGET}.loading")]


def owned_files(world: World, name: str) -> str:
    """Pod files of an earlier revision."""
    path = f"{CORE}/configmaps/{name}"
    world.api.put_object(path, {"metadata": {"name": name, "ownerReferences": [{"uid": "uid-chat"}]}})
    return path


def mounting(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "holdfast", "configMap": {"name": name}}]}


async def test_pod_files_that_nobody_mounts_are_deleted_and_all_others_stay(world: World) -> None:
    current = files(world)
    unused, rolled_back, draining = (owned_files(world, f"chat-pod-{n}") for n in ("aaa", "bbb", "ccc"))
    somebodys = f"{CORE}/configmaps/chat-pod-mine"
    world.api.put_object(somebodys, {"metadata": {"name": "chat-pod-mine"}})
    world.api.lists[REPLICA_SETS] = [{"spec": {"replicas": 0, "template": {"spec": mounting("chat-pod-bbb")}}}]
    world.api.lists[f"{CORE}/pods"] = [{"metadata": {"deletionTimestamp": "x"}, "spec": mounting("chat-pod-ccc")}]
    assert await world.tick() == [("DELETE", unused)]
    kept = {path for path in world.api.objects if "/configmaps/" in path}
    assert kept == {current, rolled_back, draining, somebodys}


async def test_a_new_plugin_is_written_when_pods_of_it_are_and_the_old_one_stays_as_long_as_they_do() -> None:
    old = World(plugin=b"old")
    await old.settle()
    current = files(old)
    upgraded = World(api=old.api, plugin=b"new")
    upgraded.part = old.part
    assert {path for _, path in await upgraded.tick()} <= set(old.api.objects), "nothing but what was there"
    assert files(upgraded) == current
    upgraded.part = parts(llmservice(generation=2, engine={"pluginRevision": 1}), sizes={"h100": 2}, ready={"h100": 2})
    written = await upgraded.tick()
    (new,) = (path for _, path in written if "/configmaps/chat-pod-" in path)
    assert new != current
    assert new in old.api.objects
    assert ("DELETE", current) in await upgraded.tick(), "no ReplicaSet and no pod names it"


async def test_limits_go_with_the_plugin() -> None:
    world = World(plugin=b"plugin")
    await world.settle()
    limits = f"{CORE}/configmaps/chat-engine-limits"
    assert limits in world.api.objects
    world.part = parts(llmservice(generation=2, engine={"plugin": "Disabled"}), sizes={"h100": 2}, ready={"h100": 2})
    assert ("DELETE", limits) in await world.tick()


async def test_pod_files_in_use_are_looked_after_every_five_minutes_only(world: World) -> None:
    kept = owned_files(world, "chat-pod-bbb")
    world.api.lists[REPLICA_SETS] = [{"spec": {"template": {"spec": mounting("chat-pod-bbb")}}}]
    await world.tick()
    for _ in range(50):
        await world.tick()
        assert world.api.requests == []
    world.api.lists[REPLICA_SETS] = []
    assert await world.tick(300.0) == [("DELETE", kept)]


async def test_no_pod_files_are_deleted_while_replicas_are_being_replaced(world: World) -> None:
    old = owned_files(world, "chat-pod-aaa")
    finished = world.part
    world.part = rolling(world.part)
    assert await world.tick() == []
    world.part = finished
    assert await world.tick() == [("DELETE", old)]


async def test_pod_files_of_a_draining_replica_are_looked_after_when_it_is_gone(world: World) -> None:
    old = owned_files(world, "chat-pod-aaa")
    finished = world.part
    leaving = dataclasses.replace(finished.replicas[0], name="old", phase=ReplicaPhase.DRAINING)
    world.part = dataclasses.replace(finished, replicas=(*finished.replicas, leaving))
    await world.tick()
    assert world.api.requests == []
    world.part = finished
    assert await world.tick() == [("DELETE", old)]


async def test_a_new_operator_keeps_the_files_that_running_engines_mount(world: World) -> None:
    mounted = files(world)
    upgraded = World("2", world.api)
    for _ in range(3):
        await upgraded.tick()
    assert mounted in world.api.objects
    upgraded.part = parts(llmservice(generation=2, engine={"args": ["--x=1"]}), sizes={"h100": 2}, ready={"h100": 2})
    await upgraded.tick()  # the edited template mounts the new files
    await upgraded.tick()
    assert mounted not in world.api.objects
    assert len([path for path in world.api.objects if "/configmaps/" in path]) == 1


async def test_nothing_is_pruned_where_no_deployment_is_known(world: World) -> None:
    old = owned_files(world, "chat-pod-aaa")
    world.part = parts()
    await world.tick()
    assert old in world.api.objects


async def test_services_that_are_gone_are_forgotten(world: World) -> None:
    world.objects.forget_all_but({})
    assert world.objects._states == {}


def rolling(part: ServiceParts) -> ServiceParts:
    deployed = tuple(
        dataclasses.replace(item, placement=dataclasses.replace(item.placement, rolling_out=True))
        for item in part.deployed
    )
    return dataclasses.replace(part, deployed=deployed)


async def test_no_pods_are_made_that_would_run_as_somebody_elses_service_account() -> None:
    world = World()
    account = {"metadata": {"name": "chat", "namespace": "prod", "uid": "theirs"}}
    world.api.objects[f"{CORE}/serviceaccounts/chat"] = account
    world.part = parts()
    await world.tick()
    assert [path for _, path in world.api.writes() if "deployments" in path] == []
    assert [problem.reason for problem in world.objects.problems(world.part)] == [Reason.NAME_CONFLICT]
    del world.api.objects[f"{CORE}/serviceaccounts/chat"]
    await world.tick()
    assert DEPLOYMENT in world.api.objects


MADE, BORN = "2026-11-21T10:00:00Z", "2026-11-21T12:00:00Z"


def heir(world: World, **changes: Any) -> World:
    """A service applied again after `kubectl delete --cascade=orphan`, before it has anything of its own."""
    for left in world.api.objects.values():
        left["metadata"] |= {"ownerReferences": [], "creationTimestamp": MADE}
    world.api.objects[DEPLOYMENT]["spec"]["replicas"] = 8
    again, meta = World(api=world.api), {**body()["metadata"], "uid": "uid-heir"}
    service = LLMService.parse({**body(), "metadata": meta})
    again.part, again.size = dataclasses.replace(parts(service), born=BORN), 1
    for name, value in changes.items():
        world.api.objects[DEPLOYMENT]["metadata"][name] = value
    return again


async def test_what_an_orphaning_deletion_left_behind_is_adopted_at_its_size(world: World) -> None:
    before = {path: left["metadata"]["uid"] for path, left in world.api.objects.items()}
    template = world.api.objects[DEPLOYMENT]["spec"]["template"]
    again = heir(world)
    assert sorted(await again.tick()) == sorted(("PATCH", path) for path in before), "no more than owner references"
    again.part = dataclasses.replace(parts(again.part.service, sizes={"h100": 8}, ready={"h100": 8}), born=BORN)
    again.size = 8
    await again.tick()
    assert await again.tick() == []
    assert again.objects.problems(again.part) == ()
    assert {path: left["metadata"]["uid"] for path, left in world.api.objects.items()} == before
    owners = {left["metadata"]["ownerReferences"][0]["uid"] for left in world.api.objects.values()}
    assert owners == {"uid-heir"}
    assert world.api.objects[DEPLOYMENT]["spec"]["replicas"] == 8
    assert world.api.objects[DEPLOYMENT]["spec"]["template"] == template, "no engine restarts"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ownerReferences": [{"uid": "uid-of-somebody"}]}, id="somebody owns it"),
        pytest.param({"labels": {"holdfast.dev/service": "chat"}}, id="not labelled as made by us"),
        pytest.param(
            {"labels": {"holdfast.dev/service": "other", "app.kubernetes.io/managed-by": "holdfast"}}, id="of another"
        ),
        pytest.param({"managedFields": []}, id="not written by us"),
        pytest.param({"creationTimestamp": BORN}, id="taken from this very service"),
        pytest.param({"creationTimestamp": None}, id="nobody knows how old"),
        pytest.param({"deletionTimestamp": BORN}, id="being deleted"),
    ],
)
async def test_what_is_no_estate_of_an_earlier_service_is_left_alone(world: World, changes: dict[str, Any]) -> None:
    again = heir(world, **changes)
    left = world.api.objects[DEPLOYMENT]["metadata"]["ownerReferences"]
    for _ in range(3):
        await again.tick()
    assert world.api.objects[DEPLOYMENT]["metadata"]["ownerReferences"] == left
    assert [problem.reason for problem in again.objects.problems(again.part)] == [Reason.NAME_CONFLICT]


async def test_an_orphan_that_somebody_took_at_the_same_moment_is_theirs(world: World) -> None:
    class Racing(Listing):
        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.put_object(path, self.objects[path])
            return super()._patch(path, body)

    again = heir(world)
    racing = Racing()
    racing.objects, racing._version = world.api.objects, 1_000
    again.objects = Objects(racing, RenderSettings(pod_files={"a.py": "1"}))
    await again.tick()
    assert not any(left["metadata"]["ownerReferences"] for left in racing.objects.values())
    assert again.objects.problems(again.part) == (), "looked at again by the next tick"


async def test_an_adoption_that_is_refused_is_told(world: World) -> None:
    again = heir(world)
    again.api.fail_with = ApiError(403, "no")
    await again.tick()
    assert {problem.reason for problem in again.objects.problems(again.part)} == {Reason.APPLY_FAILED}


class Resting:
    """A service that may rest, in an operator that knows the image of activators."""

    def __init__(self) -> None:
        self.api = Listing()
        self.objects = Objects(self.api, RenderSettings(pod_files={"a.py": ""}, activator_image="holdfast:1"))
        self.part = parts(llmservice(scaling={"min": 0}))
        self.holding, self.now = False, 0.0

    async def settle(self) -> None:
        """Let everything be made, and the size be seen."""
        await self.tick()
        self.part = parts(self.part.service, sizes={"h100": 1}, ready={"h100": 1})
        for _ in range(4):
            await self.tick()

    async def tick(self) -> list[tuple[str, str]]:
        """Let one tick happen; return its writes."""
        self.now += 5.0
        self.api.requests.clear()
        part = as_watched(self.part, self.api)
        decided = dataclasses.replace(decision(part, Action.HOLD, h100=1), holding=self.holding)
        changes = plan(
            part,
            decided,
            Inventory(()),
            pod_monitor=False,
            admission=lambda *_: 7,
            activator=self.objects.has_activator(part),
        )
        work = self.objects.work(part, changes, self.now)
        births = await self.objects.apply(part, work, self.now)
        await self.objects.create(part, births, changes.births, self.now)
        await self.objects.clear_away(part, work, self.now)
        return self.api.writes()

    def selector(self) -> dict[str, str]:
        found: dict[str, str] = self.api.objects[f"{CORE}/services/chat"]["spec"]["selector"]
        return found


async def test_a_service_that_may_rest_has_an_activator_of_one_pod() -> None:
    world = Resting()
    await world.settle()
    deployment = world.api.objects["/apis/apps/v1/namespaces/prod/deployments/chat-activator"]
    assert deployment["spec"]["replicas"] == 1
    assert {f"{CORE}/services/{name}" for name in ("chat", "chat-activator", "chat-engines")} <= set(world.api.objects)
    assert await world.tick() == []


async def test_clients_count_as_led_to_the_activator_once_the_api_server_has_it() -> None:
    world = Resting()
    await world.settle()
    key = world.part.spec.key
    assert world.objects.holding(key) is False
    world.holding = True
    assert await world.tick() == [("PATCH", f"{CORE}/services/chat")]
    assert "holdfast.dev/activator" in world.selector()
    await world.tick()
    assert world.objects.holding(key) is True
    world.holding = False
    await world.tick()
    assert world.objects.holding(key) is False


async def test_an_activator_that_leads_clients_stays_until_it_no_longer_does_though_the_service_may_not_rest() -> None:
    deployment = "/apis/apps/v1/namespaces/prod/deployments/chat-activator"
    world = Resting()
    await world.settle()
    world.holding = True
    await world.tick()
    world.part = parts(llmservice(generation=2), sizes={"h100": 1}, ready={"h100": 0})
    assert [path for method, path in await world.tick() if method == "DELETE"] == []
    assert "holdfast.dev/activator" in world.selector()
    world.holding = False
    writes = await world.tick()
    assert (("PATCH", f"{CORE}/services/chat") in writes, ("DELETE", deployment) in writes) == (True, False)
    assert ("DELETE", deployment) in await world.tick()


async def test_an_activator_goes_when_the_service_may_no_longer_rest_and_its_ways_once_it_holds_nothing() -> None:
    deployment = "/apis/apps/v1/namespaces/prod/deployments/chat-activator"
    ways = [("DELETE", f"{CORE}/services/{name}") for name in ("chat-activator", "chat-engines")]
    world = Resting()
    await world.settle()
    stays = world.api.objects[deployment]
    world.part = parts(llmservice(generation=2), sizes={"h100": 1}, ready={"h100": 1})
    assert ("DELETE", deployment) in await world.tick()
    assert [body for method, _, _, body in world.api.requests if method == "DELETE"] == [
        {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": stays["metadata"]["uid"]},
        }
    ]
    # The pod passes on what it holds; until it has gone the API server keeps the Deployment.
    stays["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.objects[deployment] = stays
    assert await world.tick() == []
    del world.api.objects[deployment]
    assert sorted(await world.tick()) == ways
    assert await world.tick() == []
    assert f"{CORE}/services/chat" in world.api.objects
