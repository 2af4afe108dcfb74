"""What is written to the API server, by whom, and what never is."""

from typing import Any

import pytest

from holdfast.act.apply import RENDERING, SCALING, Applier, ForeignObject
from tests.fakes import FakeApi

PATH = "/apis/apps/v1/namespaces/prod/deployments/chat-h100"


def manifest(image: str = "vllm:1") -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-h100", "namespace": "prod", "ownerReferences": [{"uid": "u1"}]},
        "spec": {"template": {"image": image}},
    }


async def test_an_unchanged_manifest_is_written_once() -> None:
    api = FakeApi()
    applier = Applier(api)
    assert await applier.apply(manifest())
    assert not await applier.apply(manifest())
    assert len(api.writes()) == 1


async def test_a_changed_manifest_is_written_again() -> None:
    api = FakeApi()
    applier = Applier(api)
    await applier.apply(manifest())
    assert await applier.apply(manifest("vllm:2"))
    assert api.objects[PATH]["spec"]["template"]["image"] == "vllm:2"


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
    await Applier(api).create_deployment(manifest(), 3)
    patches = [(query["fieldManager"], body) for method, _, query, body in api.requests if method == "PATCH"]
    assert patches[0][0] == SCALING
    assert patches[0][1]["spec"]["replicas"] == 3
    assert [body["spec"].get("replicas") for manager, body in patches if manager == RENDERING] == [None]
    assert patches[-1][0] == SCALING
    assert patches[-1][1]["spec"] == {"replicas": 3}


async def test_deleting_what_is_gone_is_no_error() -> None:
    await Applier(FakeApi()).delete(PATH)
