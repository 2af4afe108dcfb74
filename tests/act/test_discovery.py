"""Which APIs the cluster has, and waiting for our own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.act.discovery import our_own_api, readable
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
