"""What the API server shows of one LLMService, once a second, as samples and decisions."""

from __future__ import annotations

import dataclasses
import datetime
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from holdfast.domain.decision import Action

_ACTIONS = frozenset(action.value for action in Action)

PodState = Literal["ready", "starting", "draining"]


class Api(Protocol):
    """Reads of the Kubernetes API; `e2e.cluster.apiclient.ApiClient` is one."""

    def get(self, path: str, seconds: float = 10.0) -> Any:
        """Return the object or list at a path."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class PodSample:
    """One replica; times in epoch seconds."""

    name: str
    state: PodState
    created_at: float
    ready_at: float | None = None

    @property
    def cold_start_seconds(self) -> float | None:
        """Return how long it took from creation to the first served token; None while it is not there."""
        return None if self.ready_at is None else self.ready_at - self.created_at


@dataclasses.dataclass(frozen=True, slots=True)
class ConditionSample:
    """One condition of the service as people read it."""

    type: str
    status: str
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One look at the service; `pods` are Kubernetes' facts, the rest is what the operator says."""

    at: float
    pods: tuple[PodSample, ...]
    desired: int | None = None
    attainment: str | None = None
    conditions: tuple[ConditionSample, ...] = ()

    def count(self, state: PodState) -> int:
        """Return how many replicas are in one state."""
        return sum(pod.state == state for pod in self.pods)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One thing the operator said in an Event: a change of size with its action, or a condition without one."""

    at: float
    reason: str
    message: str
    action: str = ""
    warning: bool = False


class Watcher:
    """Look at one service again and again, and report each of its Events once."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        on_sample: Callable[[Sample], None],
        on_decision: Callable[[Decision], None],
    ) -> None:
        self._api = api
        self._service = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/llmservices/{name}"
        self._pods = _query(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"holdfast_service={name}")
        fields = f"involvedObject.kind=LLMService,involvedObject.name={name}"
        self._events = _query(f"/api/v1/namespaces/{namespace}/events", fieldSelector=fields)
        self._on_sample = on_sample
        self._on_decision = on_decision
        self._known: set[str] = set()

    def look(self, now: float) -> None:
        """Read once and report; raises what the API raises."""
        status = self._api.get(self._service).get("status") or {}
        self._on_sample(sample(now, status, self._api.get(self._pods).get("items", [])))
        events = self._api.get(self._events).get("items", [])
        new = [event for event in events if event["metadata"]["name"] not in self._known]
        self._known |= {event["metadata"]["name"] for event in new}
        for said in sorted(map(decision, new), key=lambda said: said.at):
            self._on_decision(said)


def sample(at: float, status: dict[str, Any], pods: Iterable[dict[str, Any]]) -> Sample:
    """Read a sample out of a service's status and its pods."""
    conditions = tuple(
        ConditionSample(c.get("type", ""), c.get("status", ""), c.get("reason", ""), c.get("message", ""))
        for c in status.get("conditions", [])
    )
    attainment = status.get("slo", {}).get("attainment")
    return Sample(
        at=at,
        pods=tuple(pod for item in pods if (pod := pod_sample(item)) is not None),
        desired=status.get("replicas", {}).get("desired"),
        attainment=None if attainment is None else str(attainment),
        conditions=conditions,
    )


def pod_sample(pod: dict[str, Any]) -> PodSample | None:
    """Read one pod; None for one that has ended."""
    metadata, status = pod["metadata"], pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready" and c["status"] == "True"), None)
    state: PodState = "ready" if ready else "starting"
    if "deletionTimestamp" in metadata:
        state = "draining"
    ready_at = epoch(ready["lastTransitionTime"]) if ready else None
    return PodSample(metadata["name"], state, epoch(metadata["creationTimestamp"]), ready_at)


def decision(event: dict[str, Any]) -> Decision:
    """Read an Event of the service; the message of a change begins with its action."""
    message = event.get("message", "")
    action, _, rest = message.partition(": ")
    if action not in _ACTIONS:
        action, rest = "", message
    return Decision(_event_time(event), event.get("reason", ""), rest, action, event.get("type") == "Warning")


def epoch(stamp: str) -> float:
    """Read a Kubernetes timestamp."""
    return datetime.datetime.fromisoformat(stamp).timestamp()


def _event_time(event: dict[str, Any]) -> float:
    stamps = (event.get("eventTime"), event.get("firstTimestamp"), event["metadata"].get("creationTimestamp"))
    return epoch(next(stamp for stamp in stamps if stamp))


def _query(path: str, **parameters: str) -> str:
    return f"{path}?{urllib.parse.urlencode(parameters)}"
