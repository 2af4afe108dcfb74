"""What the demo reads out of the Kubernetes API."""

from typing import Any

import pytest

from e2e.demo import watch
from e2e.demo.watch import Decision, Sample, Watcher

CREATED, READY = "2026-11-21T05:00:00Z", "2026-11-21T05:00:36Z"


def pod(name: str, *, ready: bool = False, deleting: bool = False, phase: str = "Running") -> dict[str, Any]:
    """Build a pod as the API server shows it."""
    metadata = {"name": name, "creationTimestamp": CREATED} | ({"deletionTimestamp": READY} if deleting else {})
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": READY}
    return {"metadata": metadata, "status": {"phase": phase, "conditions": [condition]}}


def event(name: str, reason: str, message: str, at: str = CREATED, kind: str = "Normal") -> dict[str, Any]:
    """Build an Event as the operator writes it."""
    return {"metadata": {"name": name}, "reason": reason, "message": message, "type": kind, "firstTimestamp": at}


class FakeReads:
    """Answers reads by the kind of object asked for."""

    def __init__(self) -> None:
        self.service: dict[str, Any] = {}
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.paths: list[str] = []

    def get(self, path: str, seconds: float = 10.0) -> Any:
        self.paths.append(path)
        if "/llmservices/" in path:
            return self.service
        return {"items": self.events if "/events?" in path else self.pods}


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (pod("a"), "starting"),
        (pod("a", phase="Pending"), "starting"),
        (pod("a", ready=True), "ready"),
        (pod("a", ready=True, deleting=True), "draining"),
        (pod("a", deleting=True), "draining"),
        ({"metadata": {"name": "a", "creationTimestamp": CREATED}}, "starting"),
    ],
)
def test_a_pod_is_ready_starting_or_draining(body: dict[str, Any], state: str) -> None:
    seen = watch.pod_sample(body)
    assert seen is not None
    assert seen.state == state


def test_a_pod_that_has_ended_is_no_replica() -> None:
    assert watch.pod_sample(pod("a", phase="Succeeded")) is None
    assert watch.pod_sample(pod("a", phase="Failed")) is None


def test_a_cold_start_runs_from_creation_to_ready() -> None:
    started, waiting = watch.pod_sample(pod("a", ready=True)), watch.pod_sample(pod("b"))
    assert started is not None
    assert waiting is not None
    assert started.cold_start_seconds == 36.0
    assert waiting.cold_start_seconds is None


def test_a_service_without_status_is_an_empty_sample() -> None:
    seen = watch.sample(5.0, {}, [])
    assert (seen.pods, seen.desired, seen.attainment, seen.conditions) == ((), None, None, ())


def test_an_event_of_a_change_carries_its_action_and_others_do_not() -> None:
    change = watch.decision(event("a", "ForecastAboveCapacity", "ScaleUp: 6 req/s expected; 1 -> 3 replicas"))
    note = watch.decision(event("b", "EngineSlow", "Engine 3: slow", kind="Warning"))
    assert (change.action, change.message) == ("ScaleUp", "6 req/s expected; 1 -> 3 replicas")
    assert (note.action, note.message, note.warning) == ("", "Engine 3: slow", True)


def test_each_event_is_reported_once_and_in_the_order_of_its_time() -> None:
    api = FakeReads()
    samples: list[Sample] = []
    decisions: list[Decision] = []
    watcher = Watcher(api, "prod", "chat", samples.append, decisions.append)
    api.service = {"status": {"replicas": {"desired": 3}, "slo": {"attainment": "96.1%"}}}
    api.pods = [pod("a", ready=True), pod("b")]
    api.events = [event("later", "B", "ScaleUp: 2", READY), event("sooner", "A", "Create: 1", CREATED)]
    watcher.look(1.0)
    api.events.append(event("again", "B", "ScaleUp: 2", READY))
    watcher.look(2.0)
    assert [decision.reason for decision in decisions] == ["A", "B", "B"]
    assert [(seen.at, seen.count("ready"), seen.count("starting"), seen.desired) for seen in samples] == [
        (1.0, 1, 1, 3),
        (2.0, 1, 1, 3),
    ]
    assert "/namespaces/prod/pods?labelSelector=holdfast_service%3Dchat" in api.paths[1]
