"""Floors at an hour, GPUs that do not suffice for all, estates of services that are gone, deletions that are held."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, condition
from e2e.load.steady import SteadyLoad
from e2e.patience import Promised

pytestmark = pytest.mark.cluster

_READY_SECONDS = 120.0
_TOLD_SECONDS = Promised(30.0)
_SCARCE = "example.com/scarce"
_OPENS_IN_SECONDS = 120.0
_EARLIEST_SECONDS = 100.0  # before the window opens: cold starts of these engines and what it takes to see load
_FINALIZER = "example.com/hold"
_MANAGED = "app.kubernetes.io/managed-by"


@pytest.fixture(scope="module")
def opens_at(operator: None) -> float:
    """The next full minute that is far enough away for a service to be Ready before its replicas are asked for."""
    return (time.time() + _OPENS_IN_SECONDS) // 60.0 * 60.0 + 60.0


@pytest.fixture(scope="module")
def services(opens_at: float, place: Kubectl) -> Iterator[Kubectl]:
    """All services of this file at once, so that their waits overlap."""
    nodes.set_node_capacity({_SCARCE: 4})
    held = stack.small_service("held")
    held["metadata"]["finalizers"] = [_FINALIZER]
    place.apply(
        [
            stack.service(**_office(opens_at)),
            stack.small_service("heir", min=2),
            stack.small_service("keeper"),
            held,
            _scarce("low"),
            _scarce("high", priority=10),
        ]
    )
    for name in ("office", "heir", "keeper", "held", "low", "high"):
        place.wait_for("llms", name, _is_ready, _READY_SECONDS, "Ready")
    yield place
    nodes.set_node_capacity({_SCARCE: None})


class TestOrphans:
    def test_a_service_of_the_same_name_adopts_them_as_they_run(self, services: Kubectl) -> None:
        services.wait_for("llms", "heir", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
        before, old = _pod_uids(services, "heir"), services.get_json("llms", "heir")["metadata"]["uid"]
        services.run("delete", "llms", "heir", "--cascade=orphan")
        assert not _owners(services, "heir"), "what is orphaned has no owner"
        services.apply(stack.small_service("heir", min=2))
        services.wait_for("llms", "heir", _is_ready, _READY_SECONDS, "Ready")
        new = services.get_json("llms", "heir")["metadata"]["uid"]
        assert new != old
        services.wait_until(lambda: _owners(services, "heir") == {new}, _TOLD_SECONDS, "all of them to be adopted")
        time.sleep(6)
        assert _pod_uids(services, "heir") == before, "no engine restarts"
        deployment = services.get_json("deployment", stack.deployment_of("heir"))
        assert deployment["spec"]["replicas"] == 2
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"

    def test_what_somebody_keeps_is_left_alone_and_told(self, services: Kubectl) -> None:
        services.run("delete", "llms", "keeper", "--cascade=orphan")
        services.run("label", "service", "keeper", f"{_MANAGED}-")
        services.apply(stack.small_service("keeper"))
        told = services.wait_for(
            "llms", "keeper", lambda found: _reason(found, "Ready") == "NameConflict", _TOLD_SECONDS, "the conflict"
        )
        assert "Service" in condition(told, "Ready")["message"]
        assert not services.get_json("service", "keeper")["metadata"].get("ownerReferences")
        services.run("label", "service", "keeper", f"{_MANAGED}=holdfast")
        services.wait_for("llms", "keeper", _is_ready, _READY_SECONDS, "Ready once it is given back")


def test_a_record_of_the_pod_template_that_somebody_edits_is_put_right(services: Kubectl) -> None:
    name = stack.deployment_of("office")
    before = services.get_json("deployment", name)["metadata"]["annotations"]
    services.run("annotate", "deployment", name, "--overwrite", 'holdfast.dev/pod-template={"spec":{}}')
    services.wait_until(
        lambda: (
            services.get_json("deployment", name)["metadata"]["annotations"]["holdfast.dev/pod-template"][:9]
            != '{"spec":{'
        ),
        15,
        "a record that is no longer theirs",
    )
    time.sleep(4)
    after = services.get_json("deployment", name)["metadata"]["annotations"]
    assert after["deployment.kubernetes.io/revision"] == before["deployment.kubernetes.io/revision"], "no rollout"
    assert not _events(services, "office", "ApplyFailed")


def test_a_deletion_that_a_finalizer_holds_is_told_and_what_runs_goes_on(services: Kubectl) -> None:
    before = _pod_uids(services, "held")
    services.delete("llms", "held", wait=False)
    told = services.wait_for(
        "llms", "held", lambda found: _reason(found, "Ready") == "DeletionHeld", _TOLD_SECONDS, "the finalizer"
    )
    assert condition(told, "Ready")["status"] == "Unknown"
    assert _FINALIZER in "; ".join(each["message"] for each in told["status"]["conditions"])
    services.wait_until(lambda: bool(_events(services, "held", "DeletionHeld")), 15, "an Event")
    assert _pod_uids(services, "held") == before
    services.patch("llms", "held", {"metadata": {"finalizers": None}})
    services.wait_until(lambda: not services.items("deployments,pods", "holdfast.dev/service=held"), 120, "the end")


def test_the_lower_priority_gives_way_where_gpus_do_not_suffice(services: Kubectl) -> None:
    url = services.get_json("llms", "low")["status"]["url"]
    with SteadyLoad(url, "Qwen/Qwen3-8B", 2.3):
        services.wait_for("llms", "low", lambda found: _ready(found) == 3, 180, "three replicas for its load")
        high = _pod_uids(services, "high")
        services.patch("llms", "high", {"spec": {"scaling": {"min": 3}}})
        told = services.wait_for(
            "llms", "low", lambda found: _reason(found, "CapacityAvailable") == "CapacityLimited", 60, "who goes first"
        )
        message = "; ".join(each["message"] for each in told["status"]["conditions"])  # said once, in the worst one
        assert "priority 0" in message
        assert "high (priority 10" in message
        services.wait_for("llms", "high", lambda found: _ready(found) == 3, _READY_SECONDS, "its three replicas")
    assert high < _pod_uids(services, "high"), "those that ran still do"
    assert services.get_json("llms", "low")["status"]["replicas"]["desired"] == 1
    services.delete("llms", "high", wait=False)
    services.wait_for("llms", "low", lambda found: _says(found, "CapacityAvailable", "True"), 90, "room for all")


def test_a_floor_is_kept_from_its_hour_on(services: Kubectl, opens_at: float) -> None:
    left = max(0.0, opens_at - time.time())
    services.wait_for("llms", "office", lambda found: _ready(found) == 3, left + 15.0, "the floor")
    pods = services.items("pods", "holdfast.dev/service=office")
    times = sorted(_ready_at(pod) for pod in pods)
    assert len(times) == 3, "the floor has as many pods"
    assert max(_born_at(pod) for pod in pods) < opens_at, "asked for before the window opens"
    assert times[-1] <= opens_at + 2.0, "all of them serve when the window opens"
    assert times[1] >= opens_at - _EARLIEST_SECONDS, "and are not paid for long before"
    told = services.get_json("llms", "office")
    assert told["status"]["lastDecision"]["reason"] == "ScheduledFloor"
    assert "schedule office requires at least 3" in condition(told, "ScalingActive")["message"]


def test_the_floor_ends_with_its_window(services: Kubectl, opens_at: float) -> None:
    schedules = _office(opens_at)["scaling"]["schedules"]
    ends = max(time.time(), opens_at) // 60.0 * 60.0 + 60.0
    services.patch("llms", "office", {"spec": {"scaling": {"schedules": [schedules[0] | {"end": _clock(ends)}]}}})
    services.wait_for("llms", "office", lambda found: _ready(found) == 1, 240, "one replica again")
    assert time.time() >= ends


def _office(opens_at: float) -> dict[str, Any]:
    """A service whose floor of three begins then, as keywords of `stack.service`."""
    hours = {"start": _clock(opens_at), "end": _clock(opens_at + 7200.0)}
    window = {"name": "office", "timezone": "UTC", **hours, "min": 3}
    small = stack.small_service("office")["spec"]
    return {"name": "office", **small, "scaling": {"min": 1, "max": 4, "schedules": [window]}}


def _scarce(name: str, **spec: Any) -> Json:
    """A service on GPUs of which there are four."""
    made = stack.small_service(name)
    made["spec"]["accelerators"] = [
        {"name": "l40s", "nodeSelector": {"kubernetes.io/os": "linux"}, "resource": _SCARCE, "max": 3}
    ]
    made["spec"].update(spec)
    return made


def _clock(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%H:%M")


def _owners(place: Kubectl, service: str) -> set[str]:
    """The owners of all that Holdfast made for a service, but for pods and their ReplicaSets."""
    kinds = "deployments,services,serviceaccounts,poddisruptionbudgets,configmaps"
    found = place.items(kinds, f"holdfast.dev/service={service}")
    assert len(found) >= 5
    return {owner["uid"] for item in found for owner in item["metadata"].get("ownerReferences", [{"uid": ""}])} - {""}


def _pod_uids(place: Kubectl, service: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in place.items("pods", f"holdfast.dev/service={service}")}


def _born_at(pod: Json) -> float:
    return datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def _ready_at(pod: Json) -> float:
    return datetime.datetime.fromisoformat(condition(pod, "Ready")["lastTransitionTime"]).timestamp()


def _events(place: Kubectl, service: str, reason: str) -> list[Json]:
    return [
        event
        for event in place.items("events")
        if event["involvedObject"]["name"] == service and event["reason"] == reason
    ]


def _is_ready(found: Json) -> bool:
    return _says(found, "Ready", "True")


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _says(found: Json, kind: str, status: str) -> bool:
    return bool(condition(found, kind).get("status") == status)


def _reason(found: Json, kind: str) -> str:
    return str(condition(found, kind).get("reason", ""))
