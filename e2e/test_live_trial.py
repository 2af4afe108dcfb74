"""A trial of batching limits: one replica has them beside the others, misses more, and goes back alone."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.limits import alive
from e2e.load import verdict
from e2e.load.client import ClientSettings
from e2e.load.records import Record
from e2e.load.streams import Streams

pytestmark = pytest.mark.cluster

_ANNOTATION = "holdfast.dev/batching"
# With so few tokens in a step a prompt takes dozens of steps; an engine wants no fewer tokens than sequences.
_SEQUENCES, _TOKENS = 8, 16
_FLAG = f"--max-num-batched-tokens={_TOKENS}"
_STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 12, 400, 40


@dataclasses.dataclass
class Story:
    """What was seen from the beginning of the trial to its end; replicas by name."""

    before: set[str]
    tried: set[str]
    during: Json
    limits: Json
    told: str
    after: set[str]
    records: list[Record]


@pytest.fixture(scope="module")
def story(operator: None, place: Kubectl) -> Story:
    """Three replicas with clients, of which one gets limits that serve them badly."""
    place.apply(_service())
    ready = place.wait_for("llms", "tried", lambda found: _ready(found) == 3, 90, "three replicas")
    before, tried = {_name(pod) for pod in _alive(place)}, set[str]()

    def is_over() -> bool:
        tried.update(_trying(place))
        return bool(_told(place))

    client = ClientSettings(ready["status"]["url"], "Qwen/Qwen3-8B")
    with Streams(client, _STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS) as load:
        _begin(place)
        shown = place.wait_for("llms", "tried", _shows_the_limits, 30, "the limits on trial")
        place.wait_until(lambda: bool(_trying(place)), 30, "a replica with them")
        during = _deployment(place)
        place.wait_until(is_over, 120, "the end of the trial", poll_seconds=1.0)
    place.wait_until(lambda: not _trying(place) and _all_ready(place), 60, "the replica to be gone")
    after = {_name(pod) for pod in _alive(place)}
    return Story(before, tried, during, shown["status"]["batching"], _told(place), after, load.records)


def test_one_replica_tries_the_limits_and_holds_up_the_rest(story: Story) -> None:
    assert len(story.tried) == 1
    assert story.during["spec"]["minReadySeconds"] == 1800
    assert story.limits["maxNumSeqs"] == _SEQUENCES
    assert story.limits["maxNumBatchedTokens"] == _TOKENS


def test_the_replica_that_misses_more_goes_back_and_an_event_says_why(story: Story) -> None:
    said = re.fullmatch(
        r"the l40s replica with 16 tokens per step and 8 sequences returns to vLLM's own limits: "
        r"in (\d+) requests it missed the objectives more often than the other replicas",
        story.told,
    )
    assert said is not None, story.told
    assert int(said[1]) > 0


def test_going_back_replaces_none_of_the_others(story: Story, place: Kubectl) -> None:
    assert story.after == story.before
    kept = _deployment(place)
    assert "minReadySeconds" not in kept["spec"]
    assert _ANNOTATION not in kept["metadata"]["annotations"]


def test_no_stream_is_lost_on_the_way(story: Story) -> None:
    lost = [record for record in story.records if verdict.is_lost(record)]
    assert not lost, lost[:3]


def _service() -> Json:
    """Three replicas without the fast loop, whose limits are left to the operator."""
    found = stack.small_service("tried", min=3, max=3)
    engine = {**found["spec"]["engine"], "plugin": "Disabled"}
    return {**found, "spec": {**found["spec"], "batching": {"mode": "Auto"}, "engine": engine}}


def _begin(place: Kubectl) -> None:
    """Write what an operator writes when it begins a trial, and the next one goes on with.

    One that begins a trial of its own accord has looked on for ten minutes, and never takes limits this bad.
    """
    labels = _deployment(place)["spec"]["template"]["metadata"]["labels"]
    trial = {"limits": [_SEQUENCES, _TOKENS], "before": [None, None], "revision": labels["holdfast_revision"]}
    # Spelled unlike the operator's own text, which so takes the field over instead of sharing it.
    text = json.dumps(trial, separators=(",", ":"))
    place.patch("deployment", stack.deployment_of("tried"), {"metadata": {"annotations": {_ANNOTATION: text}}})


def _shows_the_limits(found: Json) -> bool:
    return bool(found["status"].get("batching", {}).get("maxNumBatchedTokens") == _TOKENS)


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _deployment(place: Kubectl) -> Json:
    return place.get_json("deployment", stack.deployment_of("tried"))


def _told(place: Kubectl) -> str:
    """The Event that ends the trial, empty before."""
    found = [event["message"] for event in place.items("events") if event["reason"] == "BatchingReturned"]
    return str(found[0]) if found else ""


def _alive(place: Kubectl) -> list[Json]:
    return alive(place, "tried")


def _all_ready(place: Kubectl) -> bool:
    return all(condition(pod, "Ready").get("status") == "True" for pod in _alive(place))


def _trying(place: Kubectl) -> list[str]:
    return [_name(pod) for pod in _alive(place) if _FLAG in pod["spec"]["containers"][0]["args"]]


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])
