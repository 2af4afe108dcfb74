"""What happens to services when operators, their leader, Prometheus or the objects of a service go away."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.patience import Promised

pytestmark = pytest.mark.cluster

_OWNED = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,configmaps"
_READY_SECONDS = 120.0
_FAILOVER_SECONDS = stack.LEASE_SECONDS + 5.0  # 20 s with the Lease that the chart takes
_OUTAGE_SECONDS = 120.0
_OBJECTS = {"services", "serviceaccounts", "configmaps", "deployments", "poddisruptionbudgets"}
_PROMISED_SECONDS = 15.0  # with the next tick, and one is two
_LEARNED = {"capacity": {"learnedGain": 1.25, "learnedSlowness": 0.9}, "slo": {"quantile": 0.5}}
_HEAL_SECONDS = _PROMISED_SECONDS  # what is judged by the API server's own times: kubectl may be many seconds late


@pytest.fixture(scope="module")
def system(operator: None) -> Kubectl:
    """Kubectl where the operators are."""
    return Kubectl(stack.NAMESPACE)


@pytest.fixture(scope="module")
def chat(operator: None, place: Kubectl) -> Json:
    """A service of two replicas without load; `kept` and `rolled` are others, for the tests of their objects."""
    place.apply([stack.small_service("chat", min=2, max=8), stack.small_service("kept", min=2)])
    place.apply(stack.small_service("rolled"))
    return place.wait_for("llms", "chat", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")


def test_an_operator_killed_in_mid_scale_goes_on_where_it_was(chat: Json, place: Kubectl, system: Kubectl) -> None:
    _raise_minimum(place, 4)
    place.wait_for("deployment", stack.deployment_of("chat"), lambda found: _size(found) == 4, 60, "the new size")
    place.wait_for("llms", "chat", lambda found: found["status"]["replicas"]["desired"] == 4, 60, "that told")
    pod, process = stack.leading()
    place.patch("llms", "chat", {"status": _LEARNED}, subresource="status")
    os.kill(process, signal.SIGKILL)
    told = place.wait_for(
        "llms", "chat", lambda found: _ready(found) == 4, _READY_SECONDS, "all four replicas, told in status"
    )["status"]
    assert {part: {name: told[part][name] for name in known} for part, known in _LEARNED.items()} == _LEARNED
    assert len(_resizes(place)) == 1
    _raise_minimum(place, 5)
    place.wait_for("llms", "chat", lambda found: _ready(found) == 5, _READY_SECONDS, "the next step")
    assert len(_resizes(place)) == 2
    system.wait_for("pod", pod, lambda found: _restarts(found) >= 1 and _is_ready_pod(found), 90, "the restart")


def test_another_operator_takes_over_and_the_old_leader_writes_no_more(
    chat: Json, place: Kubectl, system: Kubectl
) -> None:
    place.wait_for("llms", "kept", lambda found: "objectDigests" in found["status"], 120, "its objects, noted")
    old, process = stack.leading()
    restarts = _restarts(system.get_json("pod", old))
    os.kill(process, signal.SIGSTOP)
    try:
        stopped_at = time.time()
        time.sleep(1)  # what it had sent before has come by then
        silent_from = time.time()
        _raise_minimum(place, 6)
        lease = system.wait_for(
            "lease", "holdfast", lambda found: _holder(found) not in ("", old), 60, "another leader"
        )
        took_seconds = _acquired_at(lease) - stopped_at
        place.wait_for("deployment", stack.deployment_of("chat"), lambda found: _size(found) == 6, 60, "the new size")
    finally:
        with suppress(ProcessLookupError):  # its liveness probe may have ended it meanwhile
            os.kill(process, signal.SIGCONT)
    assert took_seconds <= _FAILOVER_SECONDS
    # The old leader finds that its Lease is gone and ends; Kubernetes starts it again, as a follower.
    system.wait_for("pod", old, lambda found: _restarts(found) > restarts and _is_ready_pod(found), 120, "its end")
    silent_until = time.time()
    place.wait_for("llms", "chat", lambda found: _ready(found) == 6, _READY_SECONDS, "six replicas")
    entries = stack.written(place.namespace)
    meanwhile = [entry for entry in entries if silent_from <= stack.received_at(entry) < silent_until]
    assert {stack.writer(entry) for entry in meanwhile} - {old}, "somebody has led"
    assert old not in {stack.writer(entry) for entry in meanwhile}
    objects = [entry["objectRef"] for entry in meanwhile if entry["objectRef"]["resource"] in _OBJECTS]
    assert not [each for each in objects if each["name"].startswith("kept")], "the heir wrote what was as it should be"
    assert len(_resizes(place)) == 3


@dataclasses.dataclass(frozen=True)
class Outage:
    """Prometheus is away since then; fewer replicas than `size` would do from the very start."""

    started_at: float
    size: int
    resizes: int


@pytest.fixture(scope="class")
def outage(chat: Json, place: Kubectl, system: Kubectl) -> Iterator[Outage]:
    """Two minutes without Prometheus; what happens to objects is tried meanwhile, for that needs no metrics."""
    place.wait_for("llms", "chat", lambda found: _says(found, "MetricsAvailable", "True"), 60, "fresh metrics")
    place.wait_for("llms", "kept", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
    place.wait_for("llms", "rolled", lambda found: _ready(found) == 1, _READY_SECONDS, "Ready")
    size = _size(place.get_json("deployment", stack.deployment_of("chat")))
    with _scaled_to_zero(system, "holdfast-prometheus", 1):
        started_at = time.monotonic()
        _raise_minimum(place, 1)
        yield Outage(started_at, size, len(_resizes(place)))


class TestWhilePrometheusIsAway:
    def test_the_outage_is_told_and_the_engines_go_on(self, outage: Outage, place: Kubectl) -> None:
        held = place.wait_for("llms", "chat", _is_blind, 60, "the outage as a condition")
        assert condition(held, "MetricsAvailable")["status"] == "False"
        assert condition(held, "ScalingActive")["reason"] == "MetricsHold"
        assert condition(held, "Ready")["status"] == "True"

    def test_what_somebody_deletes_comes_back(self, outage: Outage, place: Kubectl) -> None:
        owned = _kept_objects(place)
        before = [_uid(place, *entry) for entry in owned]
        seen = len(_applies(place))
        for kind, name in owned:
            place.delete(kind, name)
        _wait_anew(place, owned, before)
        # One request each: neither the event of the deletion nor that of our own write causes another.
        time.sleep(6)
        assert sorted(_applies(place)[seen:]) == sorted(owned)

    def test_what_somebody_edits_is_put_right(self, outage: Outage, place: Kubectl) -> None:
        changes: dict[str, Json] = {
            "services": {"spec": {"selector": {"holdfast.dev/service": "other"}}},
            "serviceaccounts": {"automountServiceAccountToken": True},
            "poddisruptionbudgets": {"spec": {"maxUnavailable": "100%"}},
            "configmaps": {"metadata": {"labels": {"holdfast.dev/service": None}}},
            "deployments": {"spec": {"progressDeadlineSeconds": 7}},
        }
        owned = [*_kept_objects(place), ("deployments", stack.deployment_of("kept"))]
        before = _all_of(place, owned)
        seen = len(_applies(place))
        for kind, name in owned:
            place.patch(kind, name, changes[kind])
        edited_at = time.time()
        place.wait_until(lambda: len(_applies(place)) >= seen + len(owned), _HEAL_SECONDS, "a request each")
        assert max(stack.received_at(entry) for entry in _apply_entries(place)) - edited_at <= _PROMISED_SECONDS
        assert _all_of(place, owned) == before
        assert sorted(_applies(place)[seen:]) == sorted(owned)

    def test_what_others_write_beside_it_is_theirs_and_costs_no_request(self, outage: Outage, place: Kubectl) -> None:
        time.sleep(4)  # whatever the last test has left to be seen
        seen = len(_applies(place))
        for kind, name in _kept_objects(place):
            place.patch(kind, name, {"metadata": {"annotations": {"example.com/note": "mine"}}})
        time.sleep(6)
        assert _applies(place)[seen:] == []
        for kind, name in _kept_objects(place):
            assert place.get_json(kind, name)["metadata"]["annotations"]["example.com/note"] == "mine"

    def test_pod_files_stay_as_long_as_anything_names_them(self, outage: Outage, place: Kubectl) -> None:
        current = _pod_files(place, "rolled").pop()
        place.apply(_copied_files(place, current, "rolled-pod-unused"))
        place.wait_until(lambda: _pod_files(place, "rolled") == {current}, 30, "the unused ones to go")
        # As if an earlier version had rendered the engines: they go on with its files.
        _mount_files(place, "rolled", "rolled-pod-older")
        place.apply(_copied_files(place, current, "rolled-pod-older"))
        _wait_rolled(place, "rolled", "rolled-pod-older")
        assert _pod_files(place, "rolled") == {current, "rolled-pod-older"}
        _change_engine(place, "rolled", "1")
        _wait_rolled(place, "rolled", current)
        assert _pod_files(place, "rolled") == _named_files(place, "rolled") == {current, "rolled-pod-older"}
        # Its history is full, say: the Deployment controller deletes the ReplicaSet that an undo would need.
        for replica_set in place.items("replicasets", "holdfast.dev/service=rolled"):
            if "rolled-pod-older" in json.dumps(replica_set["spec"]):
                place.delete("replicaset", replica_set["metadata"]["name"])
        _change_engine(place, "rolled", "2")
        _wait_rolled(place, "rolled", current)
        place.wait_until(lambda: _pod_files(place, "rolled") == {current}, 90, "only what is mounted")
        assert _named_files(place, "rolled") == {current}

    def test_no_size_is_lowered_in_two_minutes(self, outage: Outage, place: Kubectl) -> None:
        assert not _lowered(place, outage.size, outage.started_at + _OUTAGE_SECONDS - time.monotonic())
        assert len(_resizes(place)) == outage.resizes
        held = place.get_json("llms", "chat")
        assert condition(held, "ScalingActive")["reason"] == "MetricsHold"
        assert condition(held, "Ready")["status"] == "True"


def test_sizes_follow_again_when_prometheus_is_back(chat: Json, place: Kubectl) -> None:
    _raise_minimum(place, 1)
    size = _size(place.get_json("deployment", stack.deployment_of("chat")))
    place.wait_for("llms", "chat", lambda found: _says(found, "MetricsAvailable", "True"), 90, "fresh metrics again")
    lowered = place.wait_for("llms", "chat", lambda found: _desired(found) < size, 180, "sizes that follow again")
    assert lowered["status"]["lastDecision"]["action"] == "ScaleDown"


@pytest.fixture(scope="class")
def unattended(chat: Json, system: Kubectl) -> Iterator[None]:
    """No operator runs in the cluster."""
    with _scaled_to_zero(system, "holdfast", 2):
        yield


class TestWhileNoOperatorRuns:
    def test_a_deleted_service_leaves_nothing_behind(self, unattended: None, place: Kubectl) -> None:
        place.delete("llms", "chat", seconds=30)
        place.wait_until(
            lambda: not place.items(_OWNED, "holdfast.dev/service=chat"), 120, "everything owned to be gone"
        )

    def test_pod_monitors_are_put_right_by_an_operator_that_starts_where_their_api_exists(
        self, unattended: None, place: Kubectl
    ) -> None:
        with stack.pod_monitor_api(), stack.operator_outside(place.namespace, "--pod-monitor-label=release=kps"):
            place.wait_until(lambda: bool(_uid(place, "podmonitors", "kept")), 60, "a PodMonitor")
            made = place.get_json("podmonitors", "kept")
            assert made["metadata"]["labels"]["release"] == "kps"
            place.delete("podmonitors", "kept")
            _wait_anew(place, [("podmonitors", "kept")], [made["metadata"]["uid"]])
            place.patch("podmonitors", "kept", {"spec": {"podTargetLabels": []}})
            place.wait_until(
                lambda: place.get_json("podmonitors", "kept")["spec"] == made["spec"],
                Promised(_PROMISED_SECONDS),
                "its own labels",
            )


def _raise_minimum(place: Kubectl, least: int) -> None:
    place.patch("llms", "chat", {"spec": {"scaling": {"min": least}}})


@contextmanager
def _scaled_to_zero(system: Kubectl, deployment: str, usual: int) -> Iterator[None]:
    """Nothing of a Deployment runs inside the block; all of it does again after."""
    system.scale("deployment", deployment, 0)
    try:
        system.wait_for("deployment", deployment, lambda found: not found["status"].get("replicas"), 60, "no pod")
        selector = ",".join(f"{k}={v}" for k, v in _labels(system, deployment).items())
        system.wait_until(lambda: not system.items("pods", selector), 60, "the end of its pods")
        yield
    finally:
        system.scale("deployment", deployment, usual)
        system.wait_available(deployment, 120)


def _labels(system: Kubectl, deployment: str) -> dict[str, str]:
    labels: dict[str, str] = system.get_json("deployment", deployment)["spec"]["selector"]["matchLabels"]
    return labels


def _lowered(place: Kubectl, size: int, seconds: float) -> bool:
    """Whether `chat` gets smaller within a time, which is waited out otherwise: nothing is what must happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _size(place.get_json("deployment", stack.deployment_of("chat"))) < size:
            return True
        time.sleep(1)
    return False


def _kept_objects(place: Kubectl) -> list[tuple[str, str]]:
    """What the service `kept` owns beside its Deployment, as audited: plural and name."""
    plain = [(kind, "kept") for kind in ("services", "serviceaccounts", "poddisruptionbudgets")]
    return [*plain, ("configmaps", _pod_files(place, "kept").pop()), ("configmaps", "kept-engine-limits")]


def _uid(place: Kubectl, kind: str, name: str) -> str:
    return place.run("get", kind, name, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")


def _applies(place: Kubectl) -> list[tuple[str, str]]:
    """Every apply of an object of `kept`, as plural and name, oldest first."""
    return [(entry["objectRef"]["resource"], entry["objectRef"]["name"]) for entry in _apply_entries(place)]


def _apply_entries(place: Kubectl) -> list[Json]:
    return [
        entry
        for entry in stack.written(place.namespace)
        if entry["verb"] == "patch" and _is_object_of_kept(entry["objectRef"])
    ]


def _is_object_of_kept(target: Json) -> bool:
    return bool(target["name"].startswith("kept") and "subresource" not in target and target["resource"] != "pods")


def _wait_anew(place: Kubectl, objects: list[tuple[str, str]], uids: list[str]) -> None:
    """Wait until objects that were deleted just now are there again, as soon as was promised."""
    gone_at = time.time()
    place.wait_until(lambda: _replaced(place, objects, uids), _HEAL_SECONDS, "all of them, made anew")
    made_at = max(_created_at(place.get_json(*entry)) for entry in objects)
    assert made_at - gone_at <= _PROMISED_SECONDS


def _created_at(found: Json) -> float:
    return datetime.datetime.fromisoformat(found["metadata"]["creationTimestamp"]).timestamp()


def _replaced(place: Kubectl, objects: list[tuple[str, str]], uids: list[str]) -> bool:
    now = [_uid(place, *entry) for entry in objects]
    return all(uid and uid != old for uid, old in zip(now, uids, strict=True))


def _all_of(place: Kubectl, objects: list[tuple[str, str]]) -> list[Json]:
    """What objects say, without status and what the API server adds to metadata."""
    return [
        {**found, "status": None, "metadata": found["metadata"].get("labels")}
        for found in (place.get_json(*entry) for entry in objects)
    ]


def _pod_files(place: Kubectl, service: str) -> set[str]:
    found = place.items("configmaps", f"holdfast.dev/service={service},holdfast.dev/component=pod-files")
    return {item["metadata"]["name"] for item in found}


def _named_files(place: Kubectl, service: str) -> set[str]:
    """The pod files that ReplicaSets and pods of a service name."""
    found = place.items("replicasets,pods", f"holdfast.dev/service={service}")
    specs = [item["spec"].get("template", item)["spec"] for item in found]
    return {volume["configMap"]["name"] for spec in specs for volume in spec["volumes"] if volume["name"] == "holdfast"}


def _copied_files(place: Kubectl, name: str, copy: str) -> Json:
    found = place.get_json("configmap", name)
    meta = {key: found["metadata"][key] for key in ("labels", "ownerReferences")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": copy, **meta}, "data": found["data"]}


def _mount_files(place: Kubectl, service: str, name: str) -> None:
    deployment = stack.deployment_of(service)
    volumes = place.get_json("deployment", deployment)["spec"]["template"]["spec"]["volumes"]
    for volume in volumes:
        if volume["name"] == "holdfast":
            volume["configMap"]["name"] = name
    memory = {"metadata": {"annotations": {"holdfast.dev/pod-template": "older"}}}
    place.patch("deployment", deployment, {**memory, "spec": {"template": {"spec": {"volumes": volumes}}}})


def _change_engine(place: Kubectl, service: str, value: str) -> None:
    place.patch("llms", service, {"spec": {"template": {"metadata": {"annotations": {"example.com/turn": value}}}}})


def _wait_rolled(place: Kubectl, service: str, files: str) -> None:
    """Wait until a rollout to pods with these files is finished and the operator has seen it."""
    deployment = stack.deployment_of(service)
    place.wait_for(
        "deployment", deployment, lambda found: files in json.dumps(found["spec"]), 30, f"a rollout to {files}"
    )
    place.wait_available(deployment, 90)


def _resizes(place: Kubectl) -> list[Json]:
    return [entry for entry in stack.written(place.namespace) if stack.is_resize(entry)]


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _desired(found: Json) -> int:
    return int(found["status"]["replicas"]["desired"])


def _size(found: Json) -> int:
    return int(found["spec"]["replicas"])


def _is_blind(found: Json) -> bool:
    """By the outage: on a busy machine a replica's metrics may have been late before it."""
    return bool(condition(found, "MetricsAvailable").get("reason") == "PrometheusUnreachable")


def _says(found: Json, kind: str, status: str) -> bool:
    return bool(condition(found, kind).get("status") == status)


def _holder(lease: Json) -> str:
    return str(lease["spec"].get("holderIdentity") or "").rpartition("_")[0]


def _acquired_at(lease: Json) -> float:
    """When its holder took it, by its own word: kubectl may be seconds late in showing it."""
    return datetime.datetime.fromisoformat(lease["spec"]["acquireTime"]).timestamp()


def _restarts(pod: Json) -> int:
    return sum(container["restartCount"] for container in pod["status"].get("containerStatuses", ()))


def _is_ready_pod(pod: Json) -> bool:
    return bool(condition(pod, "Ready").get("status") == "True")
