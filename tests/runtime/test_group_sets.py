"""An API that comes while the operator runs: what is watched is settled at its start."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.act.api import ApiError
from holdfast.runtime.wiring import _end_when_served
from tests.fakes import FakeApi


@pytest.mark.looptime
async def test_the_process_restarts_once_the_cluster_has_leader_worker_sets() -> None:
    api = FakeApi()
    waiting = asyncio.create_task(_end_when_served(api, group_sets=False))
    await asyncio.sleep(100.0)
    api.fail_with = ApiError(503, "later")
    await asyncio.sleep(100.0)
    assert not waiting.done(), "an API server that does not answer has not said that it has them"
    api.fail_with = None
    api.put_object("/apis/leaderworkerset.x-k8s.io/v1", {"resources": [{"name": "leaderworkersets"}]})
    with pytest.raises(RuntimeError, match="the process restarts"):
        await waiting
    await _end_when_served(api, group_sets=True)
