"""The main job: declare a service, see its SLO kept through a load step, and see it go without a trace."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.load import verdict
from e2e.load.records import Record
from e2e.load.steady import SteadyLoad

pytestmark = pytest.mark.cluster

_OWNED = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,configmaps"
_BASE_RPS, _FACTOR = 0.6, 3.0
_READY_SECONDS = 90.0
_FOLLOW_SECONDS = 120.0
_RELEASE_SECONDS = 240.0  # the hold (drain and lead time) and the drain itself are a minute when nobody else is busy


@dataclasses.dataclass
class Story:
    """What was seen while the load rose threefold and fell again."""

    before: int
    peak: int
    after: int
    decided_up: Json
    decided_down: Json
    shown: str
    records: list[Record]


@pytest.fixture(scope="module")
def chat(operator: None, place: Kubectl) -> Json:
    """A service that is Ready."""
    place.apply(stack.small_service("chat"))
    return place.wait_for("llms", "chat", _is_ready, _READY_SECONDS, "Ready")


@pytest.fixture(scope="module")
def story(chat: Json, place: Kubectl) -> Story:
    """A load step up and down, over keep-alive and over new connections at once."""
    with SteadyLoad(chat["status"]["url"], "Qwen/Qwen3-8B", _BASE_RPS) as load:
        place.wait_for("llms", "chat", _sees_load, 60, "a rate of arrivals")
        before = _settled(place)
        load.rate_rps = _FACTOR * _BASE_RPS
        up = place.wait_for(
            "llms", "chat", lambda s: _ready(s) > before and _is_settled(s), _FOLLOW_SECONDS, "more replicas"
        )
        # At this rate every replica is soon drawn; at the next one of three may well be drawn by none.
        place.wait_until(lambda: len(_served_by(load.records)) > before, 60, "an answer of a new replica")
        load.rate_rps = _BASE_RPS / 2
        peak = _ready(up)
        down = place.wait_for("llms", "chat", lambda s: _went_below(s, peak), _RELEASE_SECONDS, "fewer")
        after = down["status"]["replicas"]["desired"]
        place.wait_until(lambda: _pods(place) <= after, 120, "the drained replicas to be gone")
        shown = _shown(place)  # while there is a load to show
    decided = (up["status"]["lastDecision"], down["status"]["lastDecision"])
    return Story(before, peak, after, *decided, shown, load.records)


def test_a_declared_service_becomes_ready_and_says_where(chat: Json, place: Kubectl) -> None:
    assert chat["status"]["url"] == f"http://chat.{place.namespace}.svc:8000"
    assert chat["status"]["observedGeneration"] == chat["metadata"]["generation"]
    assert chat["status"]["lastDecision"]["action"] == "Create"


def test_kubectl_get_shows_a_complete_row(story: Story) -> None:
    shown = _row(story.shown)
    assert shown["NAME"] == "chat"
    assert shown["READY"] == "True"
    assert 0 < float(shown["ATTAINMENT"].rstrip("%")) <= 100, shown
    assert float(shown["RPS"]) > 0, shown
    assert all(shown[column] for column in ("SLO", "BUDGET", "REPLICAS", "TTFT-P95", "TPOT-P95", "REASON", "AGE")), (
        shown
    )


def test_replicas_follow_a_load_three_times_as_high(story: Story, place: Kubectl) -> None:
    assert story.peak > story.before
    assert story.decided_up["action"] == "ScaleUp"
    assert story.decided_up["reason"] in {"ForecastAboveCapacity", "BacklogToDrain"}
    assert "req/s" in story.decided_up["message"]
    _assert_event(place, story.decided_up)


def test_replicas_go_when_the_load_has_gone(story: Story, place: Kubectl) -> None:
    assert story.after < story.peak
    assert story.decided_down["action"] == "ScaleDown"
    assert story.decided_down["reason"] == "DemandBelowCapacity"
    _assert_event(place, story.decided_down)


def test_no_request_is_lost_on_the_way_up_or_down(story: Story) -> None:
    kept = [record for record in story.records if not record.new_connection]
    fresh = [record for record in story.records if record.new_connection]
    assert len(kept) > 10
    assert len(fresh) > 10
    lost = [record for record in story.records if verdict.is_lost(record)]
    assert not lost, lost[:3]


def test_the_load_reached_the_new_replicas(story: Story) -> None:
    assert len(_served_by(story.records)) > story.before


def test_sizes_belong_to_the_scaling_manager_alone(story: Story, place: Kubectl) -> None:
    shown = place.run("get", "deployment", stack.deployment_of("chat"), "--show-managed-fields", "--output=json")
    owners = _owners_of_replicas(shown)
    assert owners == {"holdfast-scaling"}


def test_a_deployment_is_born_with_the_wanted_size(operator: None, place: Kubectl) -> None:
    place.apply(stack.small_service("wide", min=3))
    born = place.wait_for("deployment", stack.deployment_of("wide"), lambda found: True, 30, "the Deployment")
    assert born["spec"]["replicas"] == 3
    place.wait_for("llms", "wide", lambda found: _ready(found) == 3, _READY_SECONDS, "three replicas")
    assert not [entry for entry in stack.written(place.namespace) if stack.is_resize(entry) and _is_of(entry, "wide")]
    place.delete("llms", "wide", wait=False)


def test_deleting_a_service_deletes_all_it_owned(story: Story, place: Kubectl) -> None:
    selector = "holdfast.dev/service=chat"
    assert len({entry["kind"] for entry in place.items(_OWNED, selector)}) >= 5
    place.delete("llms", "chat")
    place.wait_until(lambda: not place.items(_OWNED, selector), 120, "everything owned to be gone")


def _shown(place: Kubectl) -> str:
    """The row of the service, once nothing is left out in it: a scrape that comes late leaves figures out."""
    shown: list[str] = []

    def is_complete() -> bool:
        shown.append(place.run("get", "llms", "chat"))
        row = _row(shown[-1])
        return all(row.values()) and float(row["RPS"]) > 0

    place.wait_until(is_complete, 60, "a row with all figures", poll_seconds=1.0)
    return shown[-1]


def _served_by(records: list[Record]) -> set[str]:
    return {record.replica for record in records} - {""}


def _row(table: str) -> dict[str, str]:
    """Cells of a table with one row; a cell begins where its heading does, and may be empty."""
    head, row = table.splitlines()
    headings = list(re.finditer(r"\S+", head))
    ends = [heading.start() for heading in headings[1:]] + [len(row)]
    return {heading.group(): row[heading.start() : end].strip() for heading, end in zip(headings, ends, strict=True)}


def _is_ready(found: Json) -> bool:
    return condition(found, "Ready").get("status") == "True"


def _sees_load(found: Json) -> bool:
    return float(found["status"].get("slo", {}).get("arrivalRps") or 0) > 0


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _went_below(found: Json, size: int) -> bool:
    status = found["status"]
    return bool(status["lastDecision"]["action"] == "ScaleDown" and status["replicas"]["desired"] < size)


def _settled(place: Kubectl) -> int:
    """Replicas once all that were asked for at the base load are there."""
    found = place.wait_for("llms", "chat", _is_settled, 60, "the size of the base load")
    return _ready(found)


def _is_settled(found: Json) -> bool:
    counts = found["status"]["replicas"]
    return bool(counts["ready"] == counts["desired"] and not counts.get("starting"))


def _pods(place: Kubectl) -> int:
    return len(place.items("pods", "holdfast.dev/service=chat"))


def _assert_event(place: Kubectl, decision: Json) -> None:
    events = [event for event in place.items("events") if event["involvedObject"]["name"] == "chat"]
    assert any(
        event["reason"] == decision["reason"] and event["message"].startswith(decision["action"]) for event in events
    ), [(event["reason"], event["message"]) for event in events]


def _owners_of_replicas(shown: str) -> set[str]:
    fields = json.loads(shown)["metadata"]["managedFields"]
    return {entry["manager"] for entry in fields if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}


def _is_of(entry: Json, service: str) -> bool:
    return bool(entry["objectRef"]["name"] == stack.deployment_of(service))
