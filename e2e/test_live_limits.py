"""Limits reach engines while they serve: an edited SLO, a bound set by hand, and an engine that does not follow."""

from __future__ import annotations

import json
import time

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition
from e2e.limits import ANNOTATION, APPLY_SECONDS, alive, edit_ttft, in_force, insist, tell, told
from e2e.load.client import ClientSettings
from e2e.load.streams import Streams
from e2e.patience import Promised

pytestmark = pytest.mark.cluster

_MODEL = "Qwen/Qwen3-8B"
_READY_SECONDS = 90.0
# 30 s, two scrapes of two seconds, and a tick of two.
_NAMED_SECONDS = Promised(60.0)
# Long prompts and many streams: then a step takes much longer with all of them than with a few.
_STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS, _REQUESTS = 32, 3000, 60, 40


@pytest.fixture(scope="module")
def live(operator: None, place: Kubectl) -> Json:
    """A service of two engines with the plugin, all of which work with the operator's limits."""
    place.apply(
        stack.service(
            "live",
            cold_start_seconds=1.0,
            slo={"ttft": "5s", "tpot": "200ms", "objective": "90%", "window": "5m"},
            accelerators=[{"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}}],
            replicas=2,
            scaling={"min": 1, "max": 3},
        )
    )
    place.wait_for("llms", "live", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
    return place.wait_for("llms", "live", _follows, 60, "engines that show their limits")


def test_engines_are_told_by_annotation_and_the_status_says_what_they_show(live: Json, place: Kubectl) -> None:
    annotated = told(place, "live")
    assert len(annotated) == 2
    kept = json.loads(place.get_json("configmap", "live-engine-limits")["data"]["l40s"])
    assert all(limits == kept for limits in annotated.values())
    assert kept["ttftSeconds"] == 5.0
    assert all(in_force(place, pod)["version"] == kept["version"] for pod in annotated)
    # Unknown for as long as a scrape is late.
    shown = place.wait_for("llms", "live", _follows, 30, "engines that show their limits")
    assert shown["status"]["batching"]["maxNumSeqs"] > 0
    assert condition(shown, "FastLoopActive")["reason"] == "LimitsApplied"


def test_the_annotation_has_a_manager_of_its_own(live: Json, place: Kubectl) -> None:
    shown = json.loads(
        place.run("get", "pods", "--selector=holdfast.dev/service=live", "--show-managed-fields", "--output=json")
    )
    for pod in shown["items"]:
        fields = {entry["manager"]: entry["fieldsV1"] for entry in pod["metadata"]["managedFields"]}
        assert fields["holdfast-limits"] == {"f:metadata": {"f:annotations": {f"f:{ANNOTATION}": {}}}}


def test_at_rest_no_pod_and_no_config_map_is_written(live: Json, place: Kubectl) -> None:
    before = len(_limit_writes(place))
    time.sleep(10.0)  # five ticks
    assert len(_limit_writes(place)) == before


def test_an_edited_slo_reaches_running_engines_within_seconds(live: Json, place: Kubectl) -> None:
    pods = _pods(place)
    before = {pod: limits["version"] for pod, limits in told(place, "live").items()}
    took = edit_ttft(place, "live", 4.0, 3.0, 4.0)
    assert took.apply_seconds < APPLY_SECONDS
    assert took.told_seconds + took.apply_seconds < 15.0
    assert _pods(place) == pods, "no engine was replaced"
    assert all(in_force(place, pod)["version"] > before[pod] for pod in pods)
    place.wait_for("llms", "live", _follows, 30, "engines that show their limits again")
    since = condition(live, "FastLoopActive")["lastTransitionTime"]
    now = condition(place.get_json("llms", "live"), "FastLoopActive")["lastTransitionTime"]
    assert now == since, "a change on its way is no transition"


def test_a_lowered_bound_is_followed_by_the_time_per_token_and_undone_by_the_operator(
    live: Json, place: Kubectl
) -> None:
    url = live["status"]["url"]
    streams = Streams(ClientSettings(url, _MODEL), _STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS)
    with stack.no_operator(), streams:
        wide = streams.least_tpot_seconds(_REQUESTS, enough=0.0)
        for pod, limits in told(place, "live").items():
            took = tell(place, pod, {**limits, "version": limits["version"] + 1, "activeSequences": 2})
            print(f"{pod}: applied {took:.1f} s after the annotation was written")
            assert took < APPLY_SECONDS
            assert in_force(place, pod)["active_sequences"] == 2
        few = streams.least_tpot_seconds(_REQUESTS, enough=0.8 * wide)
    print(f"mean TPOT {wide * 1000:.1f} ms before, {few * 1000:.1f} ms with two sequences at a time")
    assert few < 0.8 * wide
    place.wait_until(
        lambda: all("activeSequences" not in limits for limits in told(place, "live").values()),
        60,
        "the operator's limits",
    )
    place.wait_until(
        lambda: all(in_force(place, pod)["active_sequences"] > 2 for pod in _pods(place)), 10, "engines that follow"
    )


def test_a_pod_that_starts_while_no_operator_runs_has_its_limits(live: Json, place: Kubectl) -> None:
    place.wait_for("llms", "live", _follows, 60, "engines that show their limits")
    wanted = json.loads(place.get_json("configmap", "live-engine-limits")["data"]["l40s"])
    with stack.no_operator():
        gone = _pods(place)[0]
        place.delete("pod", gone)
        place.wait_until(lambda: len(_ready_pods(place)) == 2, _READY_SECONDS, "its successor")
        (born,) = set(_pods(place)) - set(told(place, "live"))
        assert in_force(place, born)["version"] == wanted["version"]


def test_an_engine_that_does_not_follow_is_named_until_it_is_gone(live: Json, place: Kubectl) -> None:
    place.wait_for("llms", "live", _follows, 60, "engines that show their limits")
    stubborn, other = _pods(place)
    # No version can be higher: what the operator writes after this is passed over.
    absurd = {**told(place, "live")[other], "version": 2**53 - 1, "activeSequences": 7}
    insist(place, stubborn, absurd)
    found = place.wait_for("llms", "live", _lacks, _NAMED_SECONDS, "FastLoopActive False")
    said = condition(found, "FastLoopActive")
    assert said["reason"] == "LimitsNotApplied"
    assert stubborn in said["message"]
    assert other not in said["message"]
    assert found["status"]["batching"]["appliedLive"] is False
    place.delete("pod", stubborn)
    place.wait_for("llms", "live", _follows, 60, "the successor that follows")


def _pods(place: Kubectl) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in alive(place, "live"))


def _ready_pods(place: Kubectl) -> list[Json]:
    return [pod for pod in alive(place, "live") if condition(pod, "Ready").get("status") == "True"]


def _limit_writes(place: Kubectl) -> list[Json]:
    writes = stack.written(place.namespace)
    return [entry for entry in writes if entry["objectRef"]["resource"] in ("pods", "configmaps")]


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _follows(found: Json) -> bool:
    applied = found.get("status", {}).get("batching", {}).get("appliedLive")
    return applied is True and condition(found, "FastLoopActive").get("status") == "True"


def _lacks(found: Json) -> bool:
    return condition(found, "FastLoopActive").get("status") == "False"
