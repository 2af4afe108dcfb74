"""A benchmark's status, where somebody else wrote a part of it, too."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.act.api import ApiError
from holdfast.act.benchmarks import write_status
from holdfast.act.resources import benchmark_path
from holdfast.domain.service import ServiceKey
from tests.fakes import FakeApi

KEY = ServiceKey("prod", "sweep")


class Leftover(FakeApi):
    """Refuses what is applied for as long as half a result stands there that a restored backup wrote."""

    def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._manager and self.objects[benchmark_path(KEY)]["status"].get("result") is not None:
            raise ApiError(422, "status.result.goodput: Required value")
        return super()._patch(path, body)


async def test_half_a_result_that_somebody_else_wrote_keeps_no_status_from_being_written() -> None:
    api, told = Leftover(), {"phase": "Pending", "observedGeneration": 1}
    api.put_object(benchmark_path(KEY), {"metadata": {"name": "sweep", "uid": "u1"}, "status": {"result": {"of": 1}}})
    assert await write_status(api, KEY, "u1", told)
    kept = api.objects[benchmark_path(KEY)]["status"]
    assert {name: value for name, value in kept.items() if value is not None} == told


async def test_a_benchmark_that_is_gone_is_told_and_a_refusal_is_raised() -> None:
    api = FakeApi()
    api.fail_with = ApiError(404, "gone")
    assert not await write_status(api, KEY, "u1", {})
    api.fail_with = ApiError(422, "no")
    with pytest.raises(ApiError):
        await write_status(api, KEY, "u1", {})
