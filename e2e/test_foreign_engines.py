"""An engine that answers to the same Prometheus under a service's labels and is none of its pods."""

from __future__ import annotations

import json
import time

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition

pytestmark = pytest.mark.cluster

_READY_SECONDS = 120.0
_FOUND_SECONDS = 130.0  # another leader, an engine that starts, and a minute and a scrape after its first sample
_TWIN = "chat-l40s-elsewhere"


@pytest.fixture(scope="module")
def chat(operator: None, place: Kubectl) -> Json:
    """A service of two replicas."""
    place.apply(stack.small_service("chat", min=2))
    return place.wait_for("llms", "chat", _is_measured, _READY_SECONDS, "two replicas with metrics")


def test_the_twin_is_told_and_none_of_the_pods_that_come_and_go_meanwhile(chat: Json, place: Kubectl) -> None:
    first, second = (pod["metadata"]["name"] for pod in place.items("pods", "holdfast.dev/service=chat"))
    place.run("delete", "pod", first, "--force", "--grace-period=0")
    place.delete("pod", second, wait=False)
    # Whoever takes over has never seen these two, whose last samples are still there.
    Kubectl(stack.NAMESPACE).delete("pod", stack.leader(), wait=False)
    place.apply(_twin(place))
    told = place.wait_for(
        "llms", "chat", lambda found: _reason(found, "MetricsAvailable") == "ForeignEngines", _FOUND_SECONDS, "the twin"
    )
    message = condition(told, "MetricsAvailable")["message"]
    assert message.startswith("an engine reports"), message
    assert _TWIN in message
    assert "--prometheus-matcher" in message
    assert condition(told, "Ready")["status"] == "True"


def test_nothing_is_lowered_beside_it_and_all_is_well_once_it_is_gone(chat: Json, place: Kubectl) -> None:
    place.patch("llms", "chat", {"spec": {"scaling": {"min": 1}}})
    time.sleep(20)
    assert place.get_json("deployment", stack.deployment_of("chat"))["spec"]["replicas"] == 2
    # A scrape that is lost makes it a stranger anew, a minute later.
    place.wait_for("llms", "chat", lambda s: _reason(s, "ScalingActive") == "MetricsHold", _FOUND_SECONDS, "the hold")
    place.delete("pod", _TWIN)
    place.wait_for("llms", "chat", lambda found: _says_true(found, "MetricsAvailable"), 60, "fresh metrics")


def _twin(place: Kubectl) -> Json:
    """A pod as the Deployment makes them, without the label by which the operator knows its own."""
    template = place.get_json("deployment", stack.deployment_of("chat"))["spec"]["template"]
    labels = {name: value for name, value in template["metadata"]["labels"].items() if name.startswith("holdfast_")}
    assert set(labels) >= {"holdfast_service", "holdfast_accelerator"}, json.dumps(template["metadata"])
    meta = {"name": _TWIN, "labels": labels, "annotations": template["metadata"]["annotations"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def _is_measured(found: Json) -> bool:
    return _ready(found) == 2 and _says_true(found, "MetricsAvailable")


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _says_true(found: Json, kind: str) -> bool:
    return bool(condition(found, kind).get("status") == "True")


def _reason(found: Json, kind: str) -> str:
    return str(condition(found, kind).get("reason", ""))
