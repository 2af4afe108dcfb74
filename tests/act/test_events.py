"""Events on an LLMService."""

from __future__ import annotations

import pytest

from holdfast.act.api import ApiError
from holdfast.act.events import event_body, post_event
from holdfast.domain.service import ServiceKey
from tests.fakes import FakeApi

KEY = ServiceKey("prod", "chat")


async def test_an_event_that_was_told_in_this_very_moment_is_no_error() -> None:
    api = FakeApi()
    api.fail_with = ApiError(409, 'events "chat.1" already exists')
    await post_event(api, event_body(KEY, "uid", reason="ApplyFailed", message="no", warning=True, now=0.0))


async def test_an_event_that_is_refused_is_one() -> None:
    api = FakeApi()
    api.fail_with = ApiError(403, "no")
    with pytest.raises(ApiError):
        await post_event(api, event_body(KEY, "uid", reason="ApplyFailed", message="no", warning=True, now=0.0))
