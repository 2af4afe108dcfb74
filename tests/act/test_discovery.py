"""Which APIs the cluster has, and waiting for our own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.act.discovery import (
    has_group_sets,
    has_inference_pools,
    may_read_devices,
    may_read_quotas,
    missing,
    our_own_api,
    readable,
)
from tests.fakes import FakeApi

OURS = "/apis/holdfast.dev/v1alpha1"


async def test_nothing_is_watched_before_the_cluster_knows_what_an_llmservice_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = FakeApi()
    waiting = asyncio.create_task(our_own_api(api, every_seconds=0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    api.fail_with = ApiUnreachable("GET: no answer")
    for _ in range(5):
        await asyncio.sleep(0)
    api.fail_with = None
    assert not waiting.done()
    api.put_object(OURS, {"resources": [{"name": "llmservices"}]})
    await waiting
    assert [record.getMessage() for record in caplog.records] == [
        "the cluster has no CRD llmservices.holdfast.dev; apply it (holdfast crd), the operator waits for it"
    ]


async def test_a_namespace_that_may_not_be_listed_is_left_out_and_no_other() -> None:
    class Api(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            assert method == "GET"
            errors = {"gone": ApiError(403, "forbidden"), "ill": ApiError(500, "x"), "far": ApiUnreachable("no answer")}
            for name, error in errors.items():
                if f"/namespaces/{name}/llmservices" in path:
                    raise error
            return {"items": []}

    assert await readable(Api(), ["gone", "a", "ill", "far"]) == ("a", "ill", "far")
    assert await readable(Api(), []) == ()


async def test_only_a_namespace_that_certainly_does_not_exist_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.put_object("/api/v1/namespaces/team-a", {"metadata": {"name": "team-a"}})
    assert await missing(api, ["team-a", "nobody"]) == ("nobody",)
    api.fail_with = ApiError(403, "forbidden")
    assert await missing(api, ["team-a"]) == ()
    assert [record.getMessage() for record in caplog.records] == [
        "namespace team-a is not known to exist (403: forbidden); grant get on this namespace"
    ]


async def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    api = FakeApi()
    api.fail_with = ApiUnreachable("GET: no answer")
    asked = asyncio.create_task(missing(api, ["nobody"], every_seconds=0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asked.done()
    api.fail_with = None
    assert await asked == ("nobody",)


async def test_quotas_are_unknown_where_they_may_not_be_read_in_each_namespace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Api(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if path in ("/api/v1/resourcequotas", "/api/v1/namespaces/b/resourcequotas"):
                raise ApiError(403, "forbidden")
            return {"items": []}

    assert await may_read_quotas(Api(), ["a"])
    assert caplog.records == []
    assert not await may_read_quotas(Api(), ["a", "b"])
    assert not await may_read_quotas(Api(), [])
    assert "ResourceQuotas cannot be read (403: forbidden), so they bound no size in advance; grant" in caplog.text


@pytest.mark.parametrize(("status", "told"), [(None, ""), (404, ""), (403, "resourceslices cannot be read (403: no)")])
async def test_devices_are_watched_where_the_api_exists_and_may_be_read(
    status: int | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Api(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if status is not None:
                raise ApiError(status, "no")
            return {"items": []}

    assert await may_read_devices(Api()) is (status is None)
    assert told in caplog.text
    assert bool(caplog.records) is bool(told)


async def test_the_api_of_inference_pools_is_there_in_version_1_alone() -> None:
    api = FakeApi()
    assert not await has_inference_pools(api)
    api.put_object("/apis/inference.networking.x-k8s.io/v1alpha2", {"resources": [{"name": "inferencepools"}]})
    api.put_object("/apis/inference.networking.k8s.io/v1", {"resources": [{"name": "inferenceobjectives"}]})
    assert not await has_inference_pools(api)
    api.put_object("/apis/inference.networking.k8s.io/v1", {"resources": [{"name": "inferencepools"}]})
    assert await has_inference_pools(api)


async def test_the_api_of_leader_worker_sets_is_there_where_it_is_served() -> None:
    api = FakeApi()
    assert not await has_group_sets(api)
    api.put_object("/apis/leaderworkerset.x-k8s.io/v1", {"resources": [{"name": "leaderworkersets"}]})
    assert await has_group_sets(api)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_cannot_say_which_apis_it_has_does_not_lack_them(status: int) -> None:
    api = FakeApi()
    api.fail_with = ApiError(status, "later")
    with pytest.raises(ApiUnreachable):
        await has_inference_pools(api)
