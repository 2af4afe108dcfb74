"""Services that cannot run as declared, and sizes in the hands of people: each is told, and disturbs nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition
from e2e.patience import Promised

pytestmark = pytest.mark.cluster

_READY_SECONDS = 120.0
_TOLD_SECONDS = Promised(30.0)  # from when a fact can be seen
_RARE_GPU = "example.com/gpu"
_MOTTO = "\N{ROCKET} up \N{LINE SEPARATOR}\N{ZERO WIDTH NO-BREAK SPACE}"  # what JSON and YAML write in different ways
_ANY_NODE = {"kubernetes.io/os": "linux"}
_L40S = {"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}}


@pytest.fixture(scope="module")
def services(operator: None, place: Kubectl) -> Iterator[Kubectl]:
    """All services of this file at once, so that their waits overlap; one of them, `beside`, has no trouble."""
    nodes.set_node_capacity({_RARE_GPU: 1})
    place.apply(_somebody_elses_pod())
    place.wait_for("pod", "somebody", lambda found: condition(found, "PodScheduled").get("status") == "True", 60)
    place.apply(_somebody_elses_service())
    place.apply(
        [
            stack.small_service("beside"),
            _with_engine("imageless", image="holdfast.local/absent:1", env=[{"name": "MOTTO", "value": _MOTTO}]),
            _with_engine("mistyped", args=["--odd=1"]),
            _with_accelerators("homeless", {"name": "h100", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.H100}}),
            # An engine that cannot start: its context does not fit into any GPU.
            _with_accelerators(
                "crashing", {"name": "h100", "nodeSelector": _ANY_NODE, "args": ["--max-model-len=999999999"]}, _L40S
            ),
            # A GPU that looks free: the operator watches no pods of other people.
            _with_accelerators("waiting", {"name": "h100", "nodeSelector": _ANY_NODE, "resource": _RARE_GPU}, _L40S),
            stack.small_service("taken"),
            stack.small_service("pinned"),
            {**(watched := stack.small_service("watched")), "spec": {**watched["spec"], "mode": "Recommend"}},
        ]
    )
    yield place
    nodes.set_node_capacity({_RARE_GPU: None})


def test_every_accepted_object_is_told_what_it_waits_for(services: Kubectl) -> None:
    for found in services.items("llms"):
        name = found["metadata"]["name"]
        services.wait_for("llms", name, lambda seen: bool(_reason(seen, "Ready")), _TOLD_SECONDS, "a reason")


@pytest.fixture(scope="module")
def pod_beside(services: Kubectl) -> Json:
    """The one pod of the service without trouble, Ready."""
    services.wait_for("llms", "beside", _is_ready, _READY_SECONDS, "Ready")
    return _only_pod(services, "beside")


def test_an_image_that_does_not_exist_is_told(pod_beside: Json, services: Kubectl) -> None:
    services.wait_until(lambda: _waits_for_image(services), 60, "a failed pull")
    told = services.wait_for(
        "llms", "imageless", lambda found: _reason(found, "Ready") == "ImagePullFailing", _TOLD_SECONDS, "the reason"
    )
    assert "absent" in condition(told, "Ready")["message"]
    assert {"name": "MOTTO", "value": _MOTTO} in _only_pod(services, "imageless")["spec"]["containers"][0]["env"]


def test_an_argument_that_the_engine_does_not_know_is_told(pod_beside: Json, services: Kubectl) -> None:
    told = services.wait_for(
        "llms", "mistyped", lambda found: _reason(found, "Ready") == "EngineFailing", _READY_SECONDS, "the reason"
    )
    assert "unrecognized arguments: --odd=1; remove it from engine.args" in condition(told, "Ready")["message"]


def test_an_accelerator_that_no_node_has_is_told(pod_beside: Json, services: Kubectl) -> None:
    told = services.wait_for(
        "llms",
        "homeless",
        lambda found: _reason(found, "CapacityAvailable") == "NoMatchingNodes",
        _TOLD_SECONDS,
        "the reason",
    )
    assert condition(told, "Ready")["status"] == "False"


def test_somebody_elses_service_is_told_and_left_alone(pod_beside: Json, services: Kubectl) -> None:
    told = services.wait_for("llms", "taken", lambda found: _reason(found, "Ready") == "NameConflict", _TOLD_SECONDS)
    assert "Service" in condition(told, "Ready")["message"]
    found = services.get_json("service", "taken")
    assert found["spec"]["selector"] == {"app": "somebody"}
    assert not found["metadata"].get("ownerReferences")
    services.delete("service", "taken")
    services.wait_for("llms", "taken", _is_ready, _READY_SECONDS, "Ready once the name is free")
    assert services.get_json("service", "taken")["metadata"]["ownerReferences"][0]["name"] == "taken"


def test_what_a_restored_backup_leaves_in_our_parts_of_a_status_goes_and_what_is_others_stays(
    pod_beside: Json, services: Kubectl
) -> None:
    since = "2026-01-01T00:00:00Z"
    told = {"status": "True", "reason": "Restored", "message": "as it was", "lastTransitionTime": since}
    conditions = [{"type": "Stalled", **told}, {"type": "example.com/Theirs", **told}]
    status = {"conditions": conditions, "cost": {"perHour": 1e9}, "placements": [{"accelerator": "zzz", "ready": 7}]}
    restored = {**_identity("beside"), "status": status}
    how = ("--server-side", "--force-conflicts", "--field-manager=backup", "--subresource=status", "-f", "-")
    services.run("apply", *how, stdin=json.dumps(restored))
    assert condition(services.get_json("llms", "beside"), "Stalled")["reason"] == "Restored"
    found = services.wait_for("llms", "beside", _is_as_ours, _TOLD_SECONDS, "what the operator writes, and no more")
    assert condition(found, "example.com/Theirs")["reason"] == "Restored"
    assert _is_ready(found)


def test_kubectl_scale_pins_the_size(pod_beside: Json, services: Kubectl) -> None:
    services.scale("llms", "pinned", 2)
    told = services.wait_for("llms", "pinned", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
    assert _reason(told, "ScalingActive") == "PinnedOutsideManifest"
    services.patch("llms", "pinned", {"spec": {"replicas": None}})
    services.wait_for("llms", "pinned", lambda found: _reason(found, "ScalingActive") == "FollowingSLO", _TOLD_SECONDS)


def test_recommending_moves_nothing(pod_beside: Json, services: Kubectl) -> None:
    services.wait_for("llms", "watched", _is_ready, _READY_SECONDS, "Ready")
    services.patch("llms", "watched", {"spec": {"scaling": {"min": 3}}})
    told = services.wait_for("llms", "watched", _recommends_more, _TOLD_SECONDS, "a recommendation")
    assert _reason(told, "ScalingActive") == "Recommend"
    assert "3" in told["status"]["recommendation"]["message"]
    assert services.get_json("deployment", stack.deployment_of("watched"))["spec"]["replicas"] == 1
    assert not [entry for entry in _resizes(services) if entry["objectRef"]["name"].startswith("watched")]


def test_editing_the_slo_restarts_no_pod(pod_beside: Json, services: Kubectl) -> None:
    services.patch("llms", "beside", {"spec": {"slo": {"ttft": "1500ms", "objective": "95%"}}})
    services.wait_for("llms", "beside", _is_observed, _TOLD_SECONDS, "the edit to be taken up")
    deployment = services.get_json("deployment", stack.deployment_of("beside"))
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert _only_pod(services, "beside")["metadata"]["uid"] == pod_beside["metadata"]["uid"]


def test_a_pod_that_finds_no_gpu_gives_way_to_the_next_accelerator(pod_beside: Json, services: Kubectl) -> None:
    told = services.wait_for("llms", "waiting", _is_ready, _READY_SECONDS, "Ready on the next accelerator")
    assert _placed_on(told) == {"l40s"}
    assert _reason(told, "CapacityAvailable") == "AcceleratorUnavailable"
    assert "h100" in condition(told, "CapacityAvailable")["message"]


def test_a_pod_that_never_becomes_ready_gives_way_to_the_next_accelerator(pod_beside: Json, services: Kubectl) -> None:
    told = services.wait_for("llms", "crashing", _is_ready, 240, "Ready on the next accelerator")
    assert _placed_on(told) == {"l40s"}
    assert _reason(told, "CapacityAvailable") == "AcceleratorUnavailable"
    assert "max-model-len" in condition(told, "CapacityAvailable")["message"]
    assert any(event["reason"] == "AcceleratorUnavailable" for event in _events(services, "crashing"))


def test_quotas_may_be_read_with_the_rights_of_the_chart(pod_beside: Json, services: Kubectl) -> None:
    """What they do to sizes is told in tests/policy/allocation/test_caps_of_namespaces.py."""
    user = f"--as=system:serviceaccount:{stack.NAMESPACE}:holdfast"
    for verb in ("get", "list", "watch"):
        assert services.run("auth", "can-i", verb, "resourcequotas", user).strip() == "yes"
    assert "ResourceQuotas cannot be read" not in stack.operator_logs()


def test_a_size_no_longer_pinned_follows_the_load_again(pod_beside: Json, services: Kubectl) -> None:
    services.wait_for("llms", "pinned", lambda found: _ready(found) == 1, 180, "one replica again")


def test_the_service_beside_all_this_trouble_noticed_nothing(pod_beside: Json, services: Kubectl) -> None:
    pod = _only_pod(services, "beside")
    assert pod["metadata"]["uid"] == pod_beside["metadata"]["uid"]
    assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0]
    assert _is_ready(services.get_json("llms", "beside"))
    assert not [entry for entry in _resizes(services) if entry["objectRef"]["name"].startswith("beside")]


def _with_engine(name: str, **engine: Any) -> Json:
    made = stack.small_service(name)
    made["spec"]["engine"].update(engine)
    return made


def _with_accelerators(name: str, *accelerators: Json) -> Json:
    made = stack.small_service(name)
    made["spec"]["accelerators"] = list(accelerators)
    return made


def _identity(name: str) -> Json:
    made = stack.small_service(name)
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": name}}


def _is_as_ours(found: Json) -> bool:
    status = found["status"]
    placed = [placement["accelerator"] for placement in status.get("placements", ())]
    return not condition(found, "Stalled") and "cost" not in status and placed == ["l40s"]


def _somebody_elses_service() -> Json:
    spec = {"selector": {"app": "somebody"}, "ports": [{"port": 8000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"}, "spec": spec}


def _somebody_elses_pod() -> Json:
    container = {
        "name": "main",
        "image": "holdfast.local/holdfast:dev",
        "command": ["sleep", "3600"],
        "resources": {"limits": {_RARE_GPU: 1}},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "somebody"}, "spec": spec}


def _waits_for_image(place: Kubectl) -> bool:
    reasons = [
        status.get("state", {}).get("waiting", {}).get("reason")
        for pod in place.items("pods", "holdfast.dev/service=imageless")
        for status in pod["status"].get("containerStatuses", ())
    ]
    return bool({"ErrImagePull", "ImagePullBackOff"} & set(reasons))


def _only_pod(place: Kubectl, service: str) -> Json:
    (pod,) = place.items("pods", f"holdfast.dev/service={service}")
    return pod


def _is_ready(found: Json) -> bool:
    return bool(condition(found, "Ready").get("status") == "True")


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _reason(found: Json, kind: str) -> str:
    return str(condition(found, kind).get("reason", ""))


def _is_observed(found: Json) -> bool:
    return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])


def _recommends_more(found: Json) -> bool:
    return bool(found["status"].get("recommendation", {}).get("action") == "ScaleUp")


def _placed_on(found: Json) -> set[str]:
    return {entry["accelerator"] for entry in found["status"]["placements"] if entry["ready"]}


def _resizes(place: Kubectl) -> list[Json]:
    return [entry for entry in stack.written(place.namespace) if stack.is_resize(entry)]


def _events(place: Kubectl, service: str) -> list[Json]:
    return [event for event in place.items("events") if event["involvedObject"]["name"] == service]
