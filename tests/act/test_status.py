"""When status is written, and when a quiet service costs nothing."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.act.api import ApiError
from holdfast.act.older_types import undeclared_fields
from holdfast.act.resources import service_path
from holdfast.act.status import StatusWriter, least_age_seconds
from holdfast.domain.service import ServiceKey
from tests.fakes import FakeApi

KEY = ServiceKey("prod", "chat")


def status(**fields: Any) -> dict[str, Any]:
    return {"observedGeneration": 1, "replicas": {"ready": 1}, "conditions": [], **fields}


def ready(value: str, reason: str = "Serving") -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": value, "reason": reason, "message": "m"}]}


@pytest.mark.parametrize(
    ("old", "new", "age", "due"),
    [
        pytest.param(status(), status(), 3600, False, id="nothing changed, however long ago"),
        pytest.param(status(), status(slo={"arrivalRps": 2.0}), 59, False, id="numbers wait for their minute"),
        pytest.param(status(), status(slo={"arrivalRps": 2.0}), 60, True, id="numbers are written after a minute"),
        pytest.param(
            status(capacity={"perReplicaRps": 4.2, "confidence": 0.86}),
            status(capacity={"perReplicaRps": 4.2, "confidence": 0.88}),
            60,
            False,
            id="growing confidence is no reason",
        ),
        pytest.param(
            status(batching={"maxNumSeqs": 1000}),
            status(batching={"maxNumSeqs": 1024}),
            60,
            False,
            id="limits that engines move a little are no reason",
        ),
        pytest.param(
            status(batching={"maxNumSeqs": 512}),
            status(batching={"maxNumSeqs": 1024}),
            60,
            True,
            id="other limits are figures",
        ),
        pytest.param(status(), status(replicas={"ready": 2}), 0, True, id="replicas are news"),
        pytest.param(status(**ready("True")), status(**ready("False")), 0, True, id="a condition's status is news"),
        pytest.param(
            status(**ready("False", "A")), status(**ready("False", "B")), 0, True, id="a condition's reason is news"
        ),
        pytest.param(
            status(lastDecision={"action": "Hold", "time": "1"}),
            status(lastDecision={"action": "Hold", "time": "2"}),
            0,
            False,
            id="another hold is no news",
        ),
        pytest.param(
            status(lastDecision={"action": "ScaleUp", "time": "1"}),
            status(lastDecision={"action": "ScaleUp", "time": "2"}),
            0,
            True,
            id="another change is news",
        ),
    ],
)
def test_news_are_due_at_once_and_figures_after_a_minute(
    old: dict[str, Any], new: dict[str, Any], age: float, due: bool
) -> None:
    assert (age >= least_age_seconds(old, new)) is due


def api_with_service(uid: str = "u1") -> FakeApi:
    api = FakeApi()
    api.put_object(service_path(KEY), {"metadata": {"name": "chat", "uid": uid}})
    return api


async def test_after_a_restart_an_unchanged_status_is_not_written_again() -> None:
    api = api_with_service()
    writer = StatusWriter(api)
    await writer.write(KEY, "u1", status(), observed=status(), now=0.0)
    await writer.settle()
    assert api.writes() == []


async def test_varying_numbers_cost_one_write_a_minute() -> None:
    api = api_with_service()
    writer = StatusWriter(api)
    for second in range(0, 600, 5):
        new = status(slo={"arrivalRps": float(second)})
        await writer.write(KEY, "u1", new, observed=status(), now=float(second))
        await writer.settle()
    assert len(api.writes()) == 9


async def test_after_a_restart_figures_are_not_taken_away_before_all_has_been_asked_about() -> None:
    api, known = api_with_service(), status(slo={"ttftP95": "410ms"})
    writer = StatusWriter(api)
    for second in range(0, 90, 5):
        await writer.write(KEY, "u1", status(slo={}) if second < 75 else known, observed=known, now=float(second))
        await writer.settle()
    assert api.writes() == []
    await writer.write(KEY, "u1", status(slo={}), observed=known, now=90.0)
    await writer.settle()
    assert len(api.writes()) == 1


@pytest.mark.parametrize("api", [FakeApi(), api_with_service("u2")], ids=["gone", "another one of that name"])
async def test_the_status_of_a_service_that_is_gone_is_told_to_nobody(api: FakeApi) -> None:
    before = copy.deepcopy(api.objects)
    await StatusWriter(api).write(KEY, "u1", status(), observed={}, now=0.0)
    assert api.objects == before


async def test_news_are_written_before_the_call_returns_and_numbers_beside_it() -> None:
    api = api_with_service()
    writer = StatusWriter(api)
    await writer.write(KEY, "u1", status(replicas={"ready": 2}), observed=status(), now=0.0)
    assert len(api.writes()) == 1
    await writer.write(KEY, "u1", status(replicas={"ready": 2}, slo={"arrivalRps": 1.0}), observed=status(), now=60.0)
    assert len(api.writes()) == 1
    await writer.settle()
    assert len(api.writes()) == 2


async def test_of_numbers_that_wait_only_the_newest_are_written_and_news_take_their_place() -> None:
    api = api_with_service()
    writer = StatusWriter(api)
    for rate in (1.0, 2.0):
        await writer.write(KEY, "u1", status(slo={"arrivalRps": rate}), observed=status(), now=60.0)
    await writer.write(KEY, "u1", status(replicas={"ready": 2}), observed=status(), now=60.0)
    await writer.settle()
    assert len(api.writes()) == 1
    assert api.objects[service_path(KEY)]["status"]["replicas"] == {"ready": 2}


async def test_write_says_when_the_next_one_is_due() -> None:
    writer, rate = StatusWriter(api_with_service()), {"slo": {"arrivalRps": 2.0}}
    due: list[float] = []
    for now, told, shown in (
        (0.0, status(url="http://chat"), status()),  # news
        (5.0, status(url="http://chat"), status(url="http://chat")),  # nothing new
        (10.0, status(url="http://chat", **rate), status(url="http://chat")),  # figures have moved
        (15.0, status(url="http://chat"), status(url="http://elsewhere")),  # somebody's edit, or a watch that is behind
    ):
        due.append(await writer.write(KEY, "u1", told, observed=shown, now=now))
    await writer.settle()
    assert due == [math.inf, math.inf, 60.0, -math.inf]


async def test_a_status_that_could_not_be_written_stays_due() -> None:
    assert await StatusWriter(FakeApi()).write(KEY, "u1", status(), observed={}, now=0.0) == -math.inf


EDITS = [
    status(replicas={"ready": 77}),
    status(url="http://elsewhere"),
    status(slo={"arrivalRps": 9.0}),
    status(**ready("False")),
    {},
]


@pytest.mark.parametrize("edit", EDITS)
async def test_a_status_that_somebody_edits_is_put_right_once_the_watch_cannot_be_behind(edit: dict[str, Any]) -> None:
    api, ours = api_with_service(), status(url="http://chat", slo={"arrivalRps": 1.0}, **ready("True"))
    writer, writes = StatusWriter(api), []
    for second in range(0, 60, 5):
        shown = {} if second < 10 else edit if 20 <= second <= 35 else ours
        await writer.write(KEY, "u1", ours, observed=shown, now=float(second))
        await writer.settle()
        writes.append(len(api.writes()))
    assert writes == [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]


async def test_what_others_add_to_the_status_is_theirs_and_causes_no_further_write() -> None:
    api, ours = api_with_service(), status(**ready("True"))
    theirs = {"type": "Theirs", "status": "True", "reason": "R", "message": ""}
    writer = StatusWriter(api)
    for second in range(0, 600, 5):
        shown = {**ours, "more": 1, "conditions": [theirs, *ours["conditions"]]}
        await writer.write(KEY, "u1", ours, observed=shown, now=float(second))
    await writer.settle()
    assert len(api.writes()) == 1


RESTORED = {
    "recommendation": {"action": "Hold"},
    "cost": {"perHour": 9.0},
    "placements": [{"accelerator": "h100", "ready": 1}, {"accelerator": "zzz", "ready": 1}],
    "lastDecision": {"action": "ScaleUp", "guards": ["x"]},
}
STUCK = {"type": "Stalled", "status": "True", "reason": "ProgressDeadlineExceeded", "message": ""}


async def test_what_a_restored_backup_left_in_our_parts_is_taken_away_once_and_others_keep_theirs() -> None:
    ours = status(**ready("True"), placements=[{"accelerator": "h100", "ready": 1}], lastDecision={"action": "ScaleUp"})
    theirs = {"type": "Theirs", "status": "True", "reason": "R", "message": ""}
    api, path = api_with_service(), service_path(KEY)
    writer = StatusWriter(api)
    await writer.write(KEY, "u1", ours, observed={}, now=0.0)
    restored = {**ours, **RESTORED, "more": 1, "conditions": [STUCK, *ours["conditions"], theirs]}
    api.objects[path]["status"] = restored
    for second in range(5, 60, 5):
        await writer.write(KEY, "u1", ours, observed=api.objects[path]["status"], now=float(second))
    await writer.settle()
    # The fake merges lists as a whole, so that the apply that follows takes the condition of others along.
    taken, applied = [body for method, _, _, body in api.requests if method == "PATCH"][1:]
    assert {operation["path"] for operation in taken if operation["op"] == "remove"} == {
        *(f"/status/{name}" for name in RESTORED),
        "/status/conditions/0",
    }
    assert taken[0] == {"op": "test", "path": "/metadata/uid", "value": "u1"}
    assert applied["status"] == ours
    assert api.objects[path]["status"] == {**ours, "more": 1}


async def test_who_writes_in_our_parts_again_and_again_is_not_fought() -> None:
    api, ours = api_with_service(), status(**ready("True"))
    writer = StatusWriter(api)
    for second in range(0, 600, 5):
        shown = {**ours, "conditions": [*ours["conditions"], STUCK]}
        api.objects[service_path(KEY)]["status"] = shown
        await writer.write(KEY, "u1", ours, observed=shown, now=float(second))
    assert len(api.writes()) == 3


def test_no_part_of_the_status_has_a_default_that_would_be_taken_for_somebody_elses() -> None:
    def defaults(schema: Any) -> bool:
        if isinstance(schema, dict):
            return "default" in schema or any(map(defaults, schema.values()))
        return isinstance(schema, list) and any(map(defaults, schema))

    crd = yaml.safe_load((Path(__file__).parents[2] / "crds" / "llmservices.holdfast.dev.yaml").read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status.pop("default") == {"observedGeneration": -1}  # of an object that no operator has seen
    assert not defaults(status)


async def test_an_api_server_that_keeps_another_form_is_not_written_to_again_and_again() -> None:
    api = api_with_service()
    writer = StatusWriter(api)
    for second in range(0, 600, 5):
        await writer.write(KEY, "u1", status(url="a"), observed=status(url="A"), now=float(second))
    assert len(api.writes()) == 1


class Leftover(FakeApi):
    """Refuses what is applied for as long as a part stands there that somebody else wrote, too."""

    def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        left = self.objects[service_path(KEY)].get("status", {}).get("recommendation")
        if self._manager and left is not None:
            raise ApiError(422, "status.recommendation.time: Required value")
        return super()._patch(path, body)


async def test_a_part_that_somebody_else_wrote_keeps_no_status_from_being_written() -> None:
    api = Leftover()
    theirs = {"recommendation": {"action": "Hold"}, "cost": {"perHour": 1.0}}
    api.put_object(service_path(KEY), {"metadata": {"name": "chat", "uid": "u1"}, "status": theirs})
    writer = StatusWriter(api)
    await writer.write(KEY, "u1", status(), observed=theirs, now=0.0)
    kept = api.objects[service_path(KEY)]["status"]
    assert {name: value for name, value in kept.items() if value is not None} == status()
    assert len(api.writes()) == 3
    assert kept["recommendation"] is None, "what is put there by a merge, no apply takes away again"
    await writer.write(KEY, "u1", status(replicas={"ready": 2}), observed=status(), now=1.0)
    assert len(api.writes()) == 4, "an apply again"


async def test_a_status_that_is_refused_either_way_is_no_secret() -> None:
    api = api_with_service()
    api.fail_with = ApiError(422, "no")
    with pytest.raises(ApiError):
        await StatusWriter(api).write(KEY, "u1", status(), observed={}, now=0.0)


class OlderTypes(FakeApi):
    """Refuses fields that its CRD does not have, as the API server words it: it names one of them."""

    def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        told = [".status.url"] if "url" in body["status"] else []
        for item in body["status"].get("placements", ()):
            told += [f'.status.placements[accelerator="{item["accelerator"]}"].engine'] if "engine" in item else []
        if told:
            raise ApiError(
                500, f"failed to create typed patch object (ns/chat): {told[0]}: field not declared in schema"
            )
        return super()._patch(path, body)


async def test_a_status_is_written_without_the_fields_that_an_older_crd_does_not_have() -> None:
    api = OlderTypes()
    api.objects.update(api_with_service().objects)
    placements = [{"accelerator": "h100", "desired": 2, "engine": {"dtype": "bf16"}}, {"accelerator": "l4"}]
    await StatusWriter(api).write(KEY, "u1", status(url="a", placements=placements), observed={}, now=0.0)
    written = api.objects[service_path(KEY)]["status"]
    assert "url" not in written
    assert written["placements"] == [{"accelerator": "h100", "desired": 2}, {"accelerator": "l4"}]


def test_other_refusals_name_no_undeclared_fields() -> None:
    assert undeclared_fields("status.url: Invalid value") == ()
    assert undeclared_fields(".status.a.b: field not declared in schema") == (("status", "a", "b"),)
