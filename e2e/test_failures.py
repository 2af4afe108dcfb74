"""What happens to services when operators, their leader or Prometheus go away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition

pytestmark = pytest.mark.cluster

_OWNED = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,configmaps"
_READY_SECONDS = 120.0
_FAILOVER_SECONDS = 20.0
_OUTAGE_SECONDS = 120.0 if os.environ.get("HOLDFAST_E2E_LONG") else 40.0


@pytest.fixture(scope="module")
def system(operator: None) -> Kubectl:
    """Kubectl where the operators are."""
    return Kubectl(stack.NAMESPACE)


@pytest.fixture(scope="module")
def chat(operator: None, place: Kubectl) -> Json:
    """A service of two replicas without load."""
    place.apply(stack.small_service("chat", min=2, max=8))
    return place.wait_for("llms", "chat", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")


def test_an_operator_killed_in_mid_scale_goes_on_where_it_was(chat: Json, place: Kubectl, system: Kubectl) -> None:
    _raise_minimum(place, 4)
    place.wait_for("deployment", stack.deployment_of("chat"), lambda found: _size(found) == 4, 60, "the new size")
    pod = stack.leader()
    os.kill(stack.operator_process(pod), signal.SIGKILL)
    place.wait_for(
        "llms", "chat", lambda found: _ready(found) == 4, _READY_SECONDS, "all four replicas, told in status"
    )
    assert len(_resizes(place)) == 1
    _raise_minimum(place, 5)
    place.wait_for("llms", "chat", lambda found: _ready(found) == 5, _READY_SECONDS, "the next step")
    assert len(_resizes(place)) == 2
    system.wait_for("pod", pod, lambda found: _restarts(found) >= 1 and _is_ready_pod(found), 90, "the restart")


def test_another_operator_takes_over_and_the_old_leader_writes_no_more(
    chat: Json, place: Kubectl, system: Kubectl
) -> None:
    old = stack.leader()
    restarts, process = _restarts(system.get_json("pod", old)), stack.operator_process(old)
    os.kill(process, signal.SIGSTOP)
    try:
        stopped_at, seen = time.time(), len(stack.written(place.namespace))
        _raise_minimum(place, 6)
        system.wait_for("lease", "holdfast", lambda found: _holder(found) not in ("", old), 60, "another leader")
        took_seconds = time.time() - stopped_at
        place.wait_for("deployment", stack.deployment_of("chat"), lambda found: _size(found) == 6, 60, "the new size")
    finally:
        with suppress(ProcessLookupError):  # its liveness probe may have ended it meanwhile
            os.kill(process, signal.SIGCONT)
    assert took_seconds <= _FAILOVER_SECONDS
    # The old leader finds that its Lease is gone and ends; Kubernetes starts it again, as a follower.
    system.wait_for("pod", old, lambda found: _restarts(found) > restarts and _is_ready_pod(found), 120, "its end")
    place.wait_for("llms", "chat", lambda found: _ready(found) == 6, _READY_SECONDS, "six replicas")
    assert {stack.writer(entry) for entry in stack.written(place.namespace)[seen:]} == {stack.leader()}
    assert stack.leader() != old
    assert len(_resizes(place)) == 3


def test_sizes_are_held_while_prometheus_is_away(chat: Json, place: Kubectl, system: Kubectl) -> None:
    place.wait_for("llms", "chat", lambda found: _says(found, "MetricsAvailable", "True"), 60, "fresh metrics")
    size = _size(place.get_json("deployment", stack.deployment_of("chat")))
    with _scaled_to_zero(system, "holdfast-prometheus", 1):
        held = place.wait_for(
            "llms", "chat", lambda found: _says(found, "MetricsAvailable", "False"), 60, "the outage as a condition"
        )
        assert condition(held, "MetricsAvailable")["reason"] == "PrometheusUnreachable"
        assert condition(held, "ScalingActive")["reason"] == "MetricsHold"
        assert condition(held, "Ready")["status"] == "True"
        _raise_minimum(place, 1)  # now fewer would do
        assert not _lowered(place, size, _OUTAGE_SECONDS)
    place.wait_for("llms", "chat", lambda found: _says(found, "MetricsAvailable", "True"), 90, "fresh metrics again")
    lowered = place.wait_for("llms", "chat", lambda found: _desired(found) < size, 180, "sizes that follow again")
    assert lowered["status"]["lastDecision"]["action"] == "ScaleDown"


def test_a_service_deleted_while_no_operator_runs_leaves_nothing_behind(
    chat: Json, place: Kubectl, system: Kubectl
) -> None:
    with _scaled_to_zero(system, "holdfast", 2):
        place.delete("llms", "chat", seconds=30)
        place.wait_until(
            lambda: not place.items(_OWNED, "holdfast.dev/service=chat"), 120, "everything owned to be gone"
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
    """Whether a Deployment gets smaller within a time, which is waited out otherwise: nothing is what must happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _size(place.get_json("deployment", stack.deployment_of("chat"))) < size:
            return True
        time.sleep(1)
    return False


def _resizes(place: Kubectl) -> list[Json]:
    return [entry for entry in stack.written(place.namespace) if stack.is_resize(entry)]


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _desired(found: Json) -> int:
    return int(found["status"]["replicas"]["desired"])


def _size(found: Json) -> int:
    return int(found["spec"]["replicas"])


def _says(found: Json, kind: str, status: str) -> bool:
    return bool(condition(found, kind).get("status") == status)


def _holder(lease: Json) -> str:
    return str(lease["spec"].get("holderIdentity") or "").rpartition("_")[0]


def _restarts(pod: Json) -> int:
    return sum(container["restartCount"] for container in pod["status"].get("containerStatuses", ()))


def _is_ready_pod(pod: Json) -> bool:
    return bool(condition(pod, "Ready").get("status") == "True")
