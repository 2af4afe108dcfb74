"""Who judges requests: the plugins where every engine has one, else the bounds that vLLM's histograms allow."""

from __future__ import annotations

import dataclasses

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl
from e2e.load import verdict
from e2e.load.client import ClientSettings
from e2e.load.records import Record
from e2e.load.streams import Streams

pytestmark = pytest.mark.cluster

# Far less than two engines carry, whatever is believed of them: no size is due to change.
_STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 4, 200, 60


@dataclasses.dataclass
class Story:
    """The service judged by its engines, and all that its status said from then until none has the plugin."""

    exact: Json
    switching: list[Json]
    records: list[Record]


@pytest.fixture(scope="module")
def story(operator: None, place: Kubectl) -> Story:
    """Two engines with clients, which lose their plugin one after the other."""
    place.apply(_service())
    url = f"http://judged.{place.namespace}.svc:8000"
    place.wait_for("llms", "judged", lambda found: _ready(found) == 2, 90, "two replicas")
    switching: list[Json] = []

    def is_replaced(found: Json) -> bool:
        if "attainment" in found["status"]["slo"]:  # not there at a new leader's first look
            switching.append(found["status"])
        return _source(found["status"]) == "bounds" and not _has_plugins(place)

    with Streams(ClientSettings(url, "Qwen/Qwen3-8B"), _STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS) as load:
        exact = place.wait_for("llms", "judged", _is_judged_exactly, 60, "exact verdicts")
        place.patch("llms", "judged", {"spec": {"engine": {"plugin": "Disabled"}}})
        place.wait_for("llms", "judged", is_replaced, 120, "bounds from engines without the plugin")
    return Story(exact["status"], switching, load.records)


def test_requests_are_judged_by_the_engines_that_served_them(story: Story) -> None:
    assert _source(story.exact) == "exact"
    assert _attained(story.exact) >= 99.0


def test_once_the_plugin_is_gone_the_bounds_judge_and_stay(story: Story) -> None:
    sources = [_source(status) for status in story.switching]
    assert sources == sorted(sources, key=["exact", "bounds"].index)
    assert sources[-1] == "bounds"


def test_attainment_goes_on_from_where_it_was(story: Story) -> None:
    attained = [_attained(status) for status in story.switching]
    assert min(attained) >= _attained(story.exact) - 1.0, attained


def test_the_change_of_source_moves_no_size(story: Story, place: Kubectl) -> None:
    assert {status["replicas"]["desired"] for status in story.switching} == {2}
    assert all(status["lastDecision"] == story.exact["lastDecision"] for status in story.switching)
    assert not [entry for entry in stack.written(place.namespace) if stack.is_resize(entry)]


def test_no_stream_is_lost_on_the_way(story: Story) -> None:
    lost = [record for record in story.records if verdict.is_lost(record)]
    assert not lost, lost[:3]


def _service() -> Json:
    return stack.service(
        "judged",
        cold_start_seconds=1.0,
        # A machine that stands still for seconds makes nobody late: what is bad here, the change of source made so.
        slo={"ttft": "40s", "tpot": "1s", "objective": "90%", "window": "5m"},
        accelerators=[{"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}}],
        scaling={"min": 2, "max": 6},
    )


def _is_judged_exactly(found: Json) -> bool:
    return _source(found["status"]) == "exact" and "attainment" in found["status"]["slo"]


def _source(status: Json) -> str:
    return str(status["slo"]["source"])


def _attained(status: Json) -> float:
    return float(status["slo"]["attainment"].rstrip("%"))


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _has_plugins(place: Kubectl) -> bool:
    """Whether an engine with the plugin is left, one that drains included."""
    pods = place.items("pods", "holdfast.dev/service=judged")
    return any("--scheduler-cls=" in argument for pod in pods for argument in pod["spec"]["containers"][0]["args"])
