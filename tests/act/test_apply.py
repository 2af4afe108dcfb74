"""What is written to the API server, by whom, and what never is."""

from typing import Any

import pytest

from holdfast.act.api import ApiUnreachable
from holdfast.act.apply import Applier, Due, ForeignObject, delete
from holdfast.rendered.live import RENDERING, SCALING, Live
from tests.fakes import FakeApi

PATH = "/apis/apps/v1/namespaces/prod/deployments/chat-h100"
SERVICE = "/api/v1/namespaces/prod/services/chat"


def manifest(image: str = "vllm:1") -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-h100", "namespace": "prod", "ownerReferences": [{"uid": "u1"}]},
        "spec": {"template": {"image": image}},
    }


def service(port: int = 8000) -> dict[str, Any]:
    meta = {"name": "chat", "namespace": "prod", "ownerReferences": [{"uid": "u1"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"port": port}}


def shown(api: FakeApi, kind: str = "Service", path: str = SERVICE) -> Live:
    """What the watch shows once it has caught up."""
    body = api.objects.get(path)
    return Live.of(kind, body) if body else Live.absent(kind, path.rpartition("/")[2])


async def applied(api: FakeApi, now: float = 0.0) -> Applier:
    """An applier that has written the Service and seen it."""
    applier = Applier(api)
    await applier.apply(service(), shown(api), now)
    assert applier.due(service(), shown(api), now) is None
    api.requests.clear()
    return applier


async def test_an_unchanged_manifest_is_due_once() -> None:
    api = FakeApi()
    applier = Applier(api)
    assert applier.due(service(), shown(api), 0.0) is Due.RENDERED
    await applier.apply(service(), shown(api), 0.0)
    assert applier.due(service(), shown(api), 0.0) is None
    assert applier.is_settled(service(), shown(api))


async def test_a_changed_manifest_is_due_again() -> None:
    api = FakeApi()
    applier = await applied(api)
    assert applier.due(service(9000), shown(api), 1.0) is Due.RENDERED
    await applier.apply(service(9000), shown(api), 1.0)
    assert api.objects[SERVICE]["spec"]["port"] == 9000


async def test_a_field_of_ours_that_somebody_edits_is_put_right() -> None:
    api = FakeApi()
    applier = await applied(api)
    api.edit(SERVICE, {"spec": {"port": 1}})
    assert applier.due(service(), shown(api), 1.0) is Due.DRIFTED
    await applier.apply(service(), shown(api), 1.0)
    assert api.objects[SERVICE]["spec"]["port"] == 8000
    assert applier.due(service(), shown(api), 1.0) is None


async def test_an_object_that_somebody_deletes_comes_back() -> None:
    api = FakeApi()
    applier = await applied(api)
    del api.objects[SERVICE]
    assert applier.due(service(), shown(api), 1.0) is Due.DRIFTED
    await applier.apply(service(), shown(api), 1.0)
    assert api.objects[SERVICE]["spec"]["port"] == 8000


async def test_an_object_that_was_deleted_here_and_is_wanted_again_was_deleted_by_nobody_else() -> None:
    api = FakeApi()
    applier = await applied(api)
    del api.objects[SERVICE]
    applier.forget(SERVICE)
    assert applier.due(service(), shown(api), 1.0) is Due.RENDERED


async def test_fields_of_others_are_theirs_however_often_they_change() -> None:
    api = FakeApi()
    applier = await applied(api)
    for turn in range(20):
        api.edit(SERVICE, {"spec": {"clusterIP": str(turn)}, "status": {"n": turn}, "metadata": {"labels": {"x": "y"}}})
        assert applier.due(service(), shown(api), turn) is None
    assert api.requests == []


async def test_a_watch_that_is_behind_our_own_write_causes_no_second_one() -> None:
    api = FakeApi()
    applier, before = Applier(api), shown(api)
    await applier.apply(service(), before, 0.0)
    assert applier.due(service(), before, 5.0) is None
    assert not applier.is_settled(service(), before)
    assert applier.due(service(), before, 10.0) is Due.DRIFTED


async def test_a_clock_that_jumps_back_does_not_stop_the_healing() -> None:
    api = FakeApi()
    applier, before = Applier(api), shown(api)
    await applier.apply(service(), before, 1_000.0)
    assert applier.due(service(), before, 0.0) is Due.DRIFTED


async def test_what_nobody_watches_is_written_on_change_only() -> None:
    api = FakeApi()
    applier = Applier(api)
    await applier.apply(service())
    del api.objects[SERVICE]
    assert applier.due(service(), None, 1_000.0) is None
    assert applier.is_settled(service(), None)
    assert applier.due(service(9000), None, 1_000.0) is Due.RENDERED


async def test_an_object_that_the_watch_shows_is_written_without_another_look() -> None:
    api = FakeApi()
    await applied(api)
    await Applier(api).apply(service(), shown(api))
    assert [method for method, *_ in api.requests] == ["PATCH"]


async def test_an_object_replaced_by_somebody_just_before_the_write_is_left_alone() -> None:
    api = FakeApi()
    applier = await applied(api)
    before = shown(api)
    del api.objects[SERVICE]
    api.put_object(SERVICE, {"metadata": {"name": "chat"}, "spec": {"mine": True}})
    with pytest.raises(ForeignObject):
        await applier.apply(service(9000), before)
    assert api.objects[SERVICE]["spec"] == {"mine": True}


async def test_an_object_deleted_just_before_the_write_is_made_again() -> None:
    api = FakeApi()
    applier = await applied(api)
    before = shown(api)
    del api.objects[SERVICE]
    await applier.apply(service(9000), before)
    assert api.objects[SERVICE]["spec"] == {"port": 9000}


async def test_an_object_with_our_labels_and_no_owner_is_foreign() -> None:
    api = FakeApi()
    applier = await applied(api)
    api.objects[SERVICE]["metadata"]["ownerReferences"] = []
    with pytest.raises(ForeignObject, match="Service prod/chat"):
        await applier.apply(service(9000), shown(api))
    assert api.writes() == []


async def test_a_deployment_deleted_just_before_the_write_is_not_born_without_its_size() -> None:
    api = FakeApi()
    applier = Applier(api)
    await applier.create_workload(manifest(), 3)
    before = shown(api, "Deployment", PATH)
    del api.objects[PATH]
    await applier.apply(manifest("vllm:2"), before)
    assert PATH not in api.objects
    assert applier.due(manifest("vllm:2"), shown(api, "Deployment", PATH), 0.0) is Due.RENDERED


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_creation_that_was_cut_short_is_finished(writes: int) -> None:
    class Dying(FakeApi):
        left = writes

        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.left -= 1
            if self.left < 0:
                raise ApiUnreachable("the process ended here")
            return super()._patch(path, body)

    api = Dying()
    with pytest.raises(ApiUnreachable):
        await Applier(api).create_workload(manifest(), 3)
    api.left = 10
    assert shown(api, "Deployment", PATH).half_made
    applier = Applier(api)
    await applier.apply(manifest(), shown(api, "Deployment", PATH))
    assert api.objects[PATH]["spec"]["replicas"] == 3
    owned = {entry["manager"]: entry["fieldsV1"] for entry in api.objects[PATH]["metadata"]["managedFields"]}
    assert owned[SCALING] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owned[RENDERING]["f:spec"]
    assert applier.is_settled(manifest(), shown(api, "Deployment", PATH))


async def test_a_foreign_object_of_the_same_name_is_never_overwritten() -> None:
    api = FakeApi()
    api.put_object(PATH, {"metadata": {"name": "chat-h100"}, "spec": {"mine": True}})
    with pytest.raises(ForeignObject, match="delete or rename"):
        await Applier(api).apply(manifest())
    assert api.objects[PATH]["spec"] == {"mine": True}


async def test_an_object_of_an_earlier_service_of_the_same_name_is_foreign() -> None:
    api = FakeApi()
    api.put_object(PATH, {"metadata": {"name": "chat-h100", "ownerReferences": [{"uid": "u0"}]}})
    with pytest.raises(ForeignObject):
        await Applier(api).apply(manifest())


async def test_a_deployment_is_born_with_its_size_and_the_renderer_never_mentions_replicas() -> None:
    api = FakeApi()
    await Applier(api).create_workload(manifest(), 3)
    patches = [(query["fieldManager"], body) for method, _, query, body in api.requests if method == "PATCH"]
    assert patches[0][0] == SCALING
    assert patches[0][1]["spec"]["replicas"] == 3
    assert [body["spec"].get("replicas") for manager, body in patches if manager == RENDERING] == [None]
    assert patches[-1][0] == SCALING
    assert patches[-1][1]["spec"] == {"replicas": 3}


async def test_deleting_what_is_gone_is_no_error() -> None:
    await delete(FakeApi(), PATH)
    await delete(FakeApi(), PATH, uid="u")


async def test_only_the_object_that_was_meant_is_deleted() -> None:
    api = FakeApi()
    api.put_object(PATH, {"metadata": {"name": "chat-h100", "uid": "new"}})
    await delete(api, PATH, uid="old")
    assert PATH in api.objects
    await delete(api, PATH, uid="new")
    assert PATH not in api.objects
