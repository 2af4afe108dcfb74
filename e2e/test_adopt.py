"""A vLLM Deployment as a stranger would have written it: read, sized through its size alone, and left as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.patience import Promised, patient
from holdfast.monitoring.series import LEVEL

pytestmark = pytest.mark.cluster

_READY_SECONDS = 60.0
_TOLD_SECONDS = Promised(30.0)
_COST = "controller.kubernetes.io/pod-deletion-cost"
_NAME = "my-vllm"
# The image has no vLLM: a function of that name starts the emulator.
_SCRIPT = """
vllm() { exec holdfast emulate "$@"; }
vllm serve ${MODEL} --port 8000 \\
  --accelerator l40s --max-num-seqs=8 --cold-start=2
"""
_DEPLOYMENT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": _NAME, "labels": {"app": "assistant"}},
    "spec": {
        "selector": {"matchLabels": {"app": "assistant"}},
        "template": {
            "metadata": {
                "labels": {"app": "assistant"},
                "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"},
            },
            "spec": {
                "terminationGracePeriodSeconds": 2,
                "containers": [
                    {
                        "name": "server",
                        "image": "holdfast.local/holdfast:dev",
                        "imagePullPolicy": "Never",
                        "command": ["/bin/sh", "-c"],
                        "args": [_SCRIPT],
                        "env": [{"name": "MODEL", "value": "Qwen/Qwen3-8B"}],
                        "ports": [{"containerPort": 8000}],
                        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
                        "resources": {
                            "requests": {"cpu": "50m", "memory": "128Mi"},
                            "limits": {"memory": "512Mi", "nvidia.com/gpu": "1"},
                        },
                    }
                ],
            },
        },
    },
}


@pytest.fixture(scope="module")
def before(operator: None, place: Kubectl) -> Json:
    """The Deployment with one replica that serves, adopted as `holdfast adopt` prints, with a minimum of two."""
    place.apply(_DEPLOYMENT)
    place.wait_for("deployment", _NAME, lambda found: _available(found) == 1, _READY_SECONDS, "one replica")
    found = place.get_json("deployment", _NAME)
    printed = _holdfast("adopt", f"deploy/{_NAME}", "--namespace", place.namespace, "--ttft=2s", "--tpot=200ms")
    service: Json = yaml.safe_load(printed)
    service["spec"]["scaling"] = {"min": 2, "max": 3}
    service["spec"]["slo"]["window"] = "5m"
    place.apply([service, _lost()])
    return found


def _lost() -> Json:
    """A service whose target does not exist."""
    spec = {"target": {"name": "absent"}, "slo": {"ttft": "1s", "tpot": "50ms"}}
    return {"apiVersion": "holdfast.dev/v1alpha1", "kind": "LLMService", "metadata": {"name": "lost"}, "spec": spec}


def test_the_load_is_found_by_pod_names_and_only_recommended_to(before: Json, place: Kubectl) -> None:
    pod = place.items("pods", "app=assistant")[0]["status"]["podIP"]
    for _ in range(12):
        _complete(pod)
    # On a fast machine these few requests come so close together that the forecast is high for a while.
    seen = _wait(place, lambda found: _expects_load(found) and _recommends_minimum(found), "the minimum for this load")
    assert seen["status"]["recommendation"]["reason"] == "AtMinimum"
    assert condition(seen, "MetricsAvailable")["status"] == "True"
    assert condition(seen, "FastLoopActive")["reason"] == "NotOurEngines"
    assert seen["status"]["placements"][0]["accelerator"] == "nvidia-l40s"
    assert "url" not in seen["status"]
    assert _without_status(place.get_json("deployment", _NAME)) == _without_status(before)


def test_rules_record_the_target_as_they_record_other_services(before: Json, place: Kubectl) -> None:
    wanted = {"requests_judged:rate", "requests_in_flight:sum", "slo_objective:ratio", "replicas:count"}

    def recorded() -> bool:
        names = "|".join(f"{LEVEL}:{name}" for name in wanted)
        labels = f'namespace="{place.namespace}", holdfast_service="{_NAME}"'
        found = stack.ask(f'{{__name__=~"{names}", {labels}}}')
        return {row["metric"]["__name__"].removeprefix(f"{LEVEL}:") for row in found} == wanted

    place.wait_until(recorded, _READY_SECONDS * 2, "recorded series of the target", poll_seconds=2.0)


def test_a_target_that_is_missing_is_told(before: Json, place: Kubectl) -> None:
    told = place.wait_for("llms", "lost", lambda found: bool(condition(found, "Ready")), _TOLD_SECONDS, "the reason")
    assert condition(told, "Ready")["reason"] == "TargetUnusable"
    assert "Deployment absent does not exist" in condition(told, "Ready")["message"]


def test_another_autoscaler_is_not_fought(before: Json, place: Kubectl) -> None:
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": _NAME}
    spec = {"scaleTargetRef": aim, "minReplicas": 1, "maxReplicas": 2}
    hpa = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": spec}
    place.apply(hpa)
    place.patch("llms", _NAME, {"spec": {"mode": "Auto"}})
    told = _wait(
        place, lambda found: condition(found, "ScalingActive")["reason"] == "OtherAutoscaler", "the autoscaler"
    )
    assert "HorizontalPodAutoscaler web" in condition(told, "ScalingActive")["message"]
    assert place.get_json("deployment", _NAME)["spec"]["replicas"] == 1
    place.delete("hpa", "web")


def test_auto_writes_the_size_and_nothing_else(before: Json, place: Kubectl) -> None:
    place.wait_for("deployment", _NAME, lambda found: _available(found) == 2, _READY_SECONDS, "two replicas")
    assert _without_size(place.get_json("deployment", _NAME)) == _without_size(before)
    for pod in place.items("pods", "app=assistant"):
        assert not [name for name in pod["metadata"]["labels"] if "holdfast" in name]
    assert {entry["objectRef"]["resource"] for entry in _writes(place)} <= {"deployments", "llmservices", "events"}
    assert all(map(stack.is_resize, _of(place, "deployments")))


def test_after_a_deletion_the_size_stays_and_no_deletion_cost_does(before: Json, place: Kubectl) -> None:
    place.patch("llms", _NAME, {"spec": {"scaling": {"min": 1, "max": 1}}})
    place.wait_for("deployment", _NAME, lambda found: found["spec"]["replicas"] == 1, _READY_SECONDS, "one replica")
    place.delete("llms", _NAME)
    place.wait_until(lambda: len(place.items("pods", "app=assistant")) == 1, _READY_SECONDS, "one pod")
    place.wait_until(lambda: not _marked(place), _TOLD_SECONDS, "no deletion cost")
    left = place.get_json("deployment", _NAME)
    assert left["spec"]["replicas"] == 1
    assert _without_size(left) == _without_size(before)


def _wait(place: Kubectl, holds: Callable[[Json], bool], what: str) -> Json:
    return place.wait_for("llms", _NAME, lambda found: "status" in found and holds(found), _READY_SECONDS, what)


def _expects_load(found: Json) -> bool:
    inputs = found["status"].get("recommendation", {}).get("inputs", {})
    return float(inputs.get("forecastRps") or 0.0) > 0.0


def _recommends_minimum(found: Json) -> bool:
    return bool(found["status"]["recommendation"]["reason"] == "AtMinimum")


def _available(found: Json) -> int:
    return int(found.get("status", {}).get("availableReplicas", 0))


def _marked(place: Kubectl) -> list[str]:
    pods = place.items("pods", "app=assistant")
    return [pod["metadata"]["name"] for pod in pods if _COST in pod["metadata"].get("annotations", {})]


def _writes(place: Kubectl) -> list[Json]:
    """What the operator wrote, but for deletion costs of pods."""
    return [entry for entry in stack.written(place.namespace) if entry["objectRef"]["resource"] != "pods"]


def _of(place: Kubectl, resource: str) -> list[Json]:
    return [entry for entry in _writes(place) if entry["objectRef"]["resource"] == resource]


def _without_status(found: Json) -> Json:
    return {**_without_size(found), "replicas": found["spec"]["replicas"]}


def _without_size(found: Json) -> Json:
    """A Deployment but for its size, its status and the API server's own account of writes."""
    counted = ("resourceVersion", "generation", "managedFields", "annotations")
    meta = {key: value for key, value in found["metadata"].items() if key not in counted}
    return {"metadata": meta, "spec": {**found["spec"], "replicas": None}}


def _complete(address: str) -> None:
    body: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "prompt": "hello", "max_tokens": 4}
    request = urllib.request.Request(
        f"http://{address}:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(20.0)) as answer:
        assert answer.status == 200


def _holdfast(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, check=True)
    return done.stdout
