"""What the page remembers, and that an answer is worked out once a tick."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.control.status.report import iso
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.page.board import MOST_CHANGES, Board, JsonResponse
from holdfast.page.history import SPAN_SECONDS
from tests.page.scenes import NOW, board, fleet, scene

LAST: dict[str, Any] = {
    "lastDecision": {"time": iso(NOW - 60.0), "action": "Create", "reason": "FirstSize", "message": "1 replica"},
    "replicas": {"desired": 4},
}


def with_status(part: ServiceParts, status: dict[str, Any]) -> ServiceParts:
    return replace(part, service=part.service.model_copy(update={"status": status}))


def read(answer: JsonResponse | None) -> dict[str, Any]:
    assert answer is not None
    assert gzip.decompress(answer.zipped) == answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def test_nothing_is_told_before_the_first_tick() -> None:
    assert await Board().fleet() is None


async def test_all_who_look_within_a_tick_get_the_same_bytes() -> None:
    shown = board(scene())
    first = await shown.fleet()
    assert await shown.fleet() is first
    key = scene()[0].spec.key
    assert shown.service(key) is shown.service(key)


async def test_the_next_tick_has_another_tag() -> None:
    shown = board(scene())
    before = await shown.fleet()
    shown.pictured(fleet(scene()), (), NOW + 5.0)
    after = await shown.fleet()
    assert before
    assert after
    assert before.tag != after.tag


async def test_another_process_has_other_tags() -> None:
    one, other = await board(scene()).fleet(), await board(scene()).fleet()
    assert one
    assert other
    assert one.tag != other.tag


async def test_history_begins_with_the_first_tick() -> None:
    shown = board(scene())
    shown.pictured(fleet(scene()), (), NOW + SPAN_SECONDS)
    found = read(shown.service(scene()[0].spec.key))
    assert found["history_since"] == NOW
    assert found["series"]["arrival_rps"][-3:] == [None, 26.0, 26.0]


async def test_what_is_recalled_makes_the_history_longer_than_the_lead() -> None:
    shown, key = board(scene()), scene()[0].spec.key
    shown.recall(key, NOW - 10 * SPAN_SECONDS, {"arrival_rps": 7.0})
    shown.recall(ServiceKey("prod", "nobody"), NOW - 20 * SPAN_SECONDS, {"arrival_rps": 7.0})
    shown.pictured(fleet(scene()), (), NOW + SPAN_SECONDS)
    found = read(shown.service(key))
    assert (found["history_since"], found["leads_since"]) == (NOW - 10 * SPAN_SECONDS, NOW)
    assert found["series"]["arrival_rps"][-12] == 7.0


async def test_an_api_server_that_does_not_answer_is_told_with_the_next_tick() -> None:
    outage = ["no route to host"]
    shown = Board(lambda: outage[0])
    shown.pictured(fleet(scene()), (), NOW)
    assert [each["message"] for each in read(await shown.fleet())["outages"]] == ["no route to host"]
    outage[0] = ""
    shown.pictured(fleet(scene()), (), NOW + 5.0)
    assert read(shown.service(scene()[0].spec.key))["outages"] == []


async def test_what_is_gone_is_forgotten() -> None:
    gone, stays = scene("gone"), scene("stays")
    shown = board(gone, stays)
    shown.pictured(fleet(stays), (), NOW + 5.0)
    assert [row["name"] for row in read(await shown.fleet())["services"]] == ["stays"]
    assert shown.service(gone[0].spec.key) is None
    shown.pictured(fleet(gone, stays), (), NOW + 60.0)
    back = read(shown.service(gone[0].spec.key))
    assert [value for value in back["series"]["arrival_rps"] if value is not None] == [26.0]


async def test_a_service_that_became_invalid_keeps_its_history() -> None:
    part, made = scene()
    shown = board((part, made))
    entry = Invalid(part.spec.key, 2, "spec.slo.ttft: must be positive")
    shown.pictured({}, (entry,), NOW + SPAN_SECONDS)
    row = read(await shown.fleet())["services"][0]
    assert (row["state"], row["message"]) == ("invalid", "spec.slo.ttft: must be positive")
    shown.pictured(fleet((part, made)), (), NOW + 2 * SPAN_SECONDS)
    assert read(shown.service(part.spec.key))["series"]["arrival_rps"][-3:] == [26.0, None, 26.0]


async def test_a_change_that_is_decided_again_before_it_is_seen_is_one_change() -> None:
    part, up = scene(action=Action.SCALE_UP, starting=1)
    shown = board((part, up))
    shown.decided(up, NOW)
    shown.decided(up, NOW + 5.0)
    shown.decided(up, NOW + 300.0)
    assert [change["at"] for change in read(shown.service(part.spec.key))["changes"]] == [NOW, NOW + 300.0]


async def test_a_new_leader_shows_the_last_change_of_the_one_before() -> None:
    part, hold = scene()
    shown = board((with_status(part, LAST), hold))
    last = {"at": NOW - 60.0, "action": "Create", "reason": "FirstSize", "message": "1 replica", "replicas": 4}
    assert read(shown.service(part.spec.key))["changes"] == [last]
    up = scene(action=Action.SCALE_UP, starting=1)[1]
    shown.decided(up, NOW)
    shown.pictured(fleet((with_status(part, LAST), hold)), (), NOW + 5.0)
    assert [change["at"] for change in read(shown.service(part.spec.key))["changes"]] == [NOW - 60.0, NOW]


@pytest.mark.parametrize(
    "nonsense",
    [
        {"lastDecision": {**LAST["lastDecision"], "action": "Hold"}},
        *({"lastDecision": {**LAST["lastDecision"], "time": time}} for time in (None, "", "soon", 7)),
        *({"lastDecision": last} for last in (None, 3, "Create", [], {})),
        *({"replicas": replicas} for replicas in (None, {}, {"desired": "many"}, {"desired": None})),
    ],
)
async def test_a_status_without_a_change_or_of_another_shape_adds_none(nonsense: dict[str, Any]) -> None:
    part, hold = scene()
    shown = board((with_status(part, {**LAST, **nonsense}), hold))
    assert read(shown.service(part.spec.key))["changes"] == []


async def test_only_the_last_changes_are_kept() -> None:
    part, up = scene(action=Action.SCALE_UP, starting=1)
    shown = board((part, up))
    for hour in range(3 * MOST_CHANGES):
        shown.decided(up, NOW + 3600.0 * hour)
    assert len(read(shown.service(part.spec.key))["changes"]) == MOST_CHANGES


async def test_five_hundred_services_fit_into_few_bytes() -> None:
    message = "attainment 99.62% over 1h; 26 req/s arrive and 4 replicas carry 36 req/s" * 2
    shown = board(*(scene(f"service-{number:03}", message=message) for number in range(500)))
    answer = await shown.fleet()
    assert answer
    assert len(answer.body) < 1_000_000
    assert len(answer.zipped) < 50_000
