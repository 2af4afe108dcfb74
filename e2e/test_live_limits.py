"""Limits reach engines while they serve: an edited SLO, a bound set by hand, and an engine that does not follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition
from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record

pytestmark = pytest.mark.cluster

_ANNOTATION = "holdfast.dev/engine-limits"
_SELECTOR = "holdfast.dev/service=live"
_MODEL = "Qwen/Qwen3-8B"
_READY_SECONDS = 90.0
# From the annotation to the engine's own metrics.
_APPLY_SECONDS = 3.0
# 30 s, two scrapes of two seconds, and a tick of two.
_NAMED_SECONDS = 60.0
# Long prompts and many streams: then a step takes much longer with all of them than with a few.
_STREAMS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 32, 3000, 60


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
    told = _told(place)
    assert len(told) == 2
    kept = json.loads(place.get_json("configmap", "live-engine-limits")["data"]["l40s"])
    assert all(limits == kept for limits in told.values())
    assert kept["ttftSeconds"] == 5.0
    assert all(_in_force(place, pod)["version"] == kept["version"] for pod in told)
    shown = place.get_json("llms", "live")
    assert shown["status"]["batching"]["appliedLive"] is True
    assert shown["status"]["batching"]["maxNumSeqs"] > 0
    assert condition(shown, "FastLoopActive")["reason"] == "LimitsApplied"


def test_the_annotation_has_a_manager_of_its_own(live: Json, place: Kubectl) -> None:
    shown = json.loads(place.run("get", "pods", "--selector", _SELECTOR, "--show-managed-fields", "--output=json"))
    for pod in shown["items"]:
        fields = {entry["manager"]: entry["fieldsV1"] for entry in pod["metadata"]["managedFields"]}
        assert fields["holdfast-limits"] == {"f:metadata": {"f:annotations": {f"f:{_ANNOTATION}": {}}}}


def test_at_rest_no_pod_and_no_config_map_is_written(live: Json, place: Kubectl) -> None:
    before = len(_limit_writes(place))
    time.sleep(10.0)  # five ticks
    assert len(_limit_writes(place)) == before


def test_an_edited_slo_reaches_running_engines_within_seconds(live: Json, place: Kubectl) -> None:
    pods = _pods(place)
    before = {pod: limits["version"] for pod, limits in _told(place).items()}
    started = time.monotonic()
    place.patch("llms", "live", {"spec": {"slo": {"ttft": "4s"}}})
    told_at = _seconds_until(lambda: all(limits["ttftSeconds"] == 4.0 for limits in _told(place).values()), started)
    took = _seconds_until(lambda: all(_in_force(place, pod)["ttft_seconds"] == 4.0 for pod in pods), started)
    print(f"annotations {told_at:.1f} s and engines {took:.1f} s after the edit")
    assert took - told_at < _APPLY_SECONDS
    assert took < 15.0
    assert _pods(place) == pods, "no engine was replaced"
    assert all(_in_force(place, pod)["version"] > before[pod] for pod in pods)
    place.wait_for("llms", "live", _follows, 30, "engines that show their limits again")
    assert (
        condition(place.get_json("llms", "live"), "FastLoopActive")["lastTransitionTime"]
        == (condition(live, "FastLoopActive")["lastTransitionTime"])
    ), "a change on its way is no transition"


def test_a_lowered_bound_is_followed_by_the_time_per_token_and_undone_by_the_operator(
    live: Json, place: Kubectl
) -> None:
    with _no_operator(), _streams(live["status"]["url"]) as records:
        wide = _tpot_seconds(records)
        for pod, limits in _told(place).items():
            narrow = {**limits, "version": limits["version"] + 1, "activeSequences": 2}
            started = time.monotonic()
            place.run("annotate", "pod", pod, "--overwrite", f"{_ANNOTATION}={json.dumps(narrow)}")
            took = _seconds_until(lambda pod=pod: _in_force(place, pod)["active_sequences"] == 2, started)
            print(f"{pod}: applied {took:.1f} s after the annotation was written")
            assert took < _APPLY_SECONDS
        narrow_tpot = _tpot_seconds(records)
    print(f"mean TPOT {wide * 1000:.1f} ms before, {narrow_tpot * 1000:.1f} ms with two sequences at a time")
    assert narrow_tpot < 0.8 * wide
    place.wait_until(
        lambda: all("activeSequences" not in limits for limits in _told(place).values()), 60, "the operator's limits"
    )
    place.wait_until(
        lambda: all(_in_force(place, pod)["active_sequences"] > 2 for pod in _pods(place)), 10, "engines that follow"
    )


def test_a_pod_that_starts_while_no_operator_runs_has_its_limits(live: Json, place: Kubectl) -> None:
    place.wait_for("llms", "live", _follows, 60, "engines that show their limits")
    wanted = json.loads(place.get_json("configmap", "live-engine-limits")["data"]["l40s"])
    with _no_operator():
        gone = _pods(place)[0]
        place.delete("pod", gone)
        place.wait_until(lambda: len(_ready_pods(place)) == 2, _READY_SECONDS, "its successor")
        (born,) = set(_pods(place)) - set(_told(place))
        assert _in_force(place, born)["version"] == wanted["version"]


def test_an_engine_that_does_not_follow_is_named_until_it_is_gone(live: Json, place: Kubectl) -> None:
    place.wait_for("llms", "live", _follows, 60, "engines that show their limits")
    stubborn, other = _pods(place)
    # No version can be higher: what the operator writes after this is passed over.
    absurd = {**_told(place)[other], "version": 2**53 - 1, "activeSequences": 7}
    place.run("annotate", "pod", stubborn, "--overwrite", f"{_ANNOTATION}={json.dumps(absurd)}")
    found = place.wait_for("llms", "live", _lacks, _NAMED_SECONDS, "FastLoopActive False")
    told = condition(found, "FastLoopActive")
    assert told["reason"] == "LimitsNotApplied"
    assert stubborn in told["message"]
    assert other not in told["message"]
    assert found["status"]["batching"]["appliedLive"] is False
    place.delete("pod", stubborn)
    place.wait_for("llms", "live", _follows, 60, "the successor that follows")


@contextlib.contextmanager
def _no_operator() -> Iterator[None]:
    system = Kubectl(stack.NAMESPACE)
    system.scale("deployment", "holdfast", 0)
    system.wait_until(lambda: not system.items("pods", "app.kubernetes.io/component=operator"), 60, "no operator")
    try:
        yield
    finally:
        system.scale("deployment", "holdfast", 2)
        system.wait_available("holdfast", 120)


@contextlib.contextmanager
def _streams(url: str) -> Iterator[list[Record]]:
    """Keep so many streams under way; their records as they end."""
    records: list[Record] = []
    stop = threading.Event()

    async def play() -> None:
        async with LoadClient(ClientSettings(url, _MODEL, connections=0), records.append) as client:
            await asyncio.gather(*(again(client) for _ in range(_STREAMS)))

    async def again(client: LoadClient) -> None:
        while not stop.is_set():
            await client.request(_PROMPT_TOKENS, _OUTPUT_TOKENS)

    thread = threading.Thread(target=lambda: asyncio.run(play()), name="streams")
    thread.start()
    try:
        yield records
    finally:
        stop.set()
        thread.join()


def _tpot_seconds(records: list[Record], wanted: int = 40) -> float:
    """Mean time per output token of requests that are sent from now on."""
    since, deadline = time.time(), time.monotonic() + 120.0
    while time.monotonic() < deadline:
        ended = [record for record in records if record.sent_at > since and record.status == "ok"]
        if len(ended) >= wanted:
            return statistics.fmean(map(_tpot, ended))
        time.sleep(0.25)
    raise AssertionError(f"{len(ended)} requests in two minutes")


def _tpot(record: Record) -> float:
    assert record.first_token_at is not None
    return (record.finished_at - record.first_token_at) / (record.output_tokens - 1)


def _pods(place: Kubectl) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in _alive(place))


def _ready_pods(place: Kubectl) -> list[str]:
    return [pod["metadata"]["name"] for pod in _alive(place) if condition(pod, "Ready").get("status") == "True"]


def _alive(place: Kubectl) -> list[Json]:
    return [pod for pod in place.items("pods", _SELECTOR) if "deletionTimestamp" not in pod["metadata"]]


def _told(place: Kubectl) -> dict[str, dict[str, Any]]:
    """The limits in the annotation of each pod that has one."""
    found = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(_ANNOTATION) for pod in _alive(place)}
    return {name: json.loads(text) for name, text in found.items() if text}


def _in_force(place: Kubectl, pod: str) -> dict[str, float]:
    """The limits that an engine shows at its own /metrics."""
    address = place.get_json("pod", pod)["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8000/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.labels["name"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "holdfast:limits"
        }


def _seconds_until(is_true: Callable[[], bool], started: float, seconds: float = 30.0) -> float:
    while not is_true():
        assert time.monotonic() - started < seconds, f"not within {seconds:.0f} s"
        time.sleep(0.05)
    return time.monotonic() - started


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
