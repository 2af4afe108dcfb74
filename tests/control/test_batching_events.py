"""A change of batching limits is told once, and a later one again, however alike the two are."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.api.reasons import Reason
from holdfast.control.status.status_publisher import StatusPublisher
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import BatchingLimits, ServiceKey

KEY = ServiceKey("prod", "chat")
OLD, NEW = BatchingLimits(), BatchingLimits(None, 1024)
ASKED = BatchingTarget("h100", NEW, OLD, Reason.BATCHING_TRIAL, "expected 4.0 req/s")
ON_TRIAL, AFTER = BatchingTarget("h100", NEW, OLD), BatchingTarget("h100", OLD)
RETURNED = BatchingTarget("h100", OLD, None, Reason.BATCHING_RETURNED, "in 20 requests")


class Told(StatusPublisher):
    """What it would post as Events."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None))
        self.told: list[Reason] = []

    async def _event(self, part: Any, reason: Any, *_: Any, **__: Any) -> None:
        self.told.append(reason)

    async def see_targets(self, *targets: BatchingTarget | None) -> list[Reason]:
        for target in targets:
            await self._tell_batching(cast("Any", None), cast("Any", _Decision(target)), 0.0)
        return self.told


class _Decision:
    key = KEY

    def __init__(self, batching: BatchingTarget | None) -> None:
        self.batching = batching


async def test_a_trial_that_the_deployment_does_not_show_yet_is_told_once() -> None:
    again = BatchingTarget("h100", NEW, OLD, Reason.BATCHING_TRIAL, "expected 4.1 req/s")
    assert await Told().see_targets(ASKED, again, ON_TRIAL, ON_TRIAL, RETURNED, RETURNED) == [
        Reason.BATCHING_TRIAL,
        Reason.BATCHING_RETURNED,
    ]


@pytest.mark.parametrize("between", [(AFTER,), (None,)])
async def test_a_second_trial_of_the_same_limits_is_told_again(between: tuple[BatchingTarget | None, ...]) -> None:
    told = await Told().see_targets(ASKED, ON_TRIAL, *between, ASKED, ON_TRIAL)
    assert told == [Reason.BATCHING_TRIAL, Reason.BATCHING_TRIAL]
