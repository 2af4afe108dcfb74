"""How each kind of fault is brought about. Targets are found before the first fault: later nobody may answer."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from e2e import stack
from e2e.campaign import processes
from e2e.campaign.lies import EVERYWHERE, Liar
from e2e.campaign.schedule import ANSWER_LIES, ROW_LIES, Fault, Kind
from e2e.campaign.timeline import Harm
from e2e.cluster.apiclient import ApiClient, ApiError
from e2e.kubectl import Json, Kubectl, condition
from e2e.patience import patient
from holdfast.api.crd import LLMBENCHMARK, LLMSERVICE

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ANSWER_SECONDS = 60.0
_RESTART_SECONDS = 20.0
"""From the end of an engine until no connection is sent to it any more, or it serves again."""
NAME = "chat"
"""Of the service in each namespace."""
_MOST_RESTARTS = 1
"""Of a container of ours when a schedule begins: the kubelet starts the next within 20 s, as in a cluster at rest."""
_RENEWAL_SECONDS = 60.0


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Act:
    """What begins a fault and what ends it; `replica` is the one whose engine it takes away."""

    begin: Callable[[], object]
    end: Callable[[], object] = field(default=_nothing)
    replica: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """What faults reach for."""

    api: ApiClient
    liar: Liar


def prepared(kind: Kind, world: World, namespace: str, random: Random) -> Act:
    """A fault with its target, which is drawn among those that are there; `namespace` has the service that it meets."""
    if kind.name in ROW_LIES.split() or kind.name in ANSWER_LIES.split():
        place = namespace if kind.name in ROW_LIES.split() else EVERYWHERE
        return Act(lambda: world.liar.begin(kind.name, place), lambda: world.liar.end(place))
    part, _, how = kind.name.rpartition("-")
    match part:
        case "engine" | "replica":
            return _on_replica(how, world, namespace, random.choice(serving(world.api, namespace)))
        case "leader":
            return _on_leader(how, world)
        case "objects":
            return Act(lambda: _delete_objects(namespace))
        case "services" | "benchmarks":
            return _on_type(part, world.api)
        case "operators" | "prometheus":
            return _on_processes(how, _processes_of(part, world.api))
    return _on_control_plane("kube-apiserver" if part == "api-server" else part, how)


def forget_restarts(api: ApiClient) -> None:
    """Replace pods of ours that earlier schedules killed: the kubelet would let each start wait longer, up to 5 min.

    Nobody kills a pod of a real cluster each minute, and after ten quiet minutes the kubelet forgets.
    """
    pods = f"/api/v1/namespaces/{stack.NAMESPACE}/pods"
    replaced: set[str] = set()
    deadline = time.monotonic() + patient(_RENEWAL_SECONDS)
    while others := [pod for pod in insist(lambda: api.get(pods))["items"] if not _is_new(pod)]:
        # One that was stopped in the last schedule may end only now.
        for name in {*often_restarted(others)} - replaced:
            insist(partial(api.delete, f"{pods}/{name}"))
            replaced.add(name)
        if time.monotonic() > deadline:
            told = {pod["metadata"]["name"]: pod["status"] for pod in others}
            raise TimeoutError(f"operators or Prometheus are not Ready: {json.dumps(told)}")
        time.sleep(0.25)


def often_restarted(pods: Sequence[Json]) -> list[str]:
    """The pods of which a container was started again so often that the kubelet lets the next start wait."""
    return [pod["metadata"]["name"] for pod in pods if _restarts(pod) > _MOST_RESTARTS]


def _restarts(pod: Json) -> int:
    return max((each["restartCount"] for each in pod["status"].get("containerStatuses", ())), default=0)


def _is_new(pod: Json) -> bool:
    return not often_restarted([pod]) and condition(pod, "Ready").get("status") == "True"


def bring_about(acts: Sequence[tuple[Fault, Act]]) -> list[Harm]:
    """Begin and end each fault when its time has come; what has begun is ended whatever happens."""
    start, harms = time.monotonic(), []
    under_way: dict[int, float] = {}
    steps = [(fault.at_seconds, False, place) for place, (fault, _) in enumerate(acts)]
    steps += [(fault.ends_seconds, True, place) for place, (fault, _) in enumerate(acts)]
    try:
        for at_seconds, is_end, place in sorted(steps):
            time.sleep(max(0.0, start + at_seconds - time.monotonic()))
            act = acts[place][1]
            if is_end:
                since = under_way.pop(place)
                act.end()
                harms.append(Harm(act.replica, since, time.time() + _RESTART_SECONDS))
            else:
                under_way[place] = time.time()
                act.begin()
    finally:
        for place in under_way:
            acts[place][1].end()
    return [harm for harm in harms if harm.replica]


def serving(api: ApiClient, namespace: str) -> list[str]:
    """The Ready pods of the service."""
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=holdfast.dev/service={NAME}")["items"]
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]
    )


def insist(action: Callable[[], Any]) -> Any:
    """Do something through an API server that may be coming back just now."""
    deadline = time.monotonic() + patient(_ANSWER_SECONDS)
    while True:
        try:
            return action()
        except (ApiError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def _on_replica(how: str, world: World, namespace: str, pod: str) -> Act:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    if how == "evicted":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        return Act(lambda: _unless_refused(lambda: world.api.create(f"{pods}/{pod}/eviction", eviction)))
    if how == "deleted":
        return Act(lambda: world.api.delete(f"{pods}/{pod}"))
    return _on_processes(how, processes.of_pod(pod), pod)


def _on_leader(how: str, world: World) -> Act:
    pod, pid = stack.leading()
    if how == "deleted":
        return Act(lambda: world.api.delete(f"/api/v1/namespaces/{stack.NAMESPACE}/pods/{pod}"))
    return _on_processes(how, [pid])


def _on_processes(how: str, pids: list[int], replica: str = "") -> Act:
    if how == "killed":
        return Act(lambda: processes.send(signal.SIGKILL, pids), replica=replica)
    if how == "stopped":
        stop, go_on = (lambda: processes.send(signal.SIGSTOP, pids)), (lambda: processes.send(signal.SIGCONT, pids))
        return Act(stop, go_on, replica)
    link = processes.link_of(pids[0])
    return Act(lambda: processes.plug(link, "down"), lambda: processes.plug(link, "up"), replica)


def _on_control_plane(program: str, how: str) -> Act:
    pids = processes.of_program(program)
    act = _on_processes(how, pids)
    return Act(act.begin, processes.restarter(pids[0])) if how == "killed" else act


def _on_type(part: str, api: ApiClient) -> Act:
    if part == "services":
        return Act(lambda: _serve(api, False), lambda: _serve(api, True))
    return Act(lambda: api.delete(f"{_CRDS}/{LLMBENCHMARK.name}"), stack.install_types)


def _processes_of(part: str, api: ApiClient) -> list[int]:
    selector = f"labelSelector=app.kubernetes.io/component={part.removesuffix('s')}"
    pods = api.get(f"/api/v1/namespaces/{stack.NAMESPACE}/pods?{selector}")["items"]
    return [pid for pod in pods for pid in processes.of_pod(pod["metadata"]["name"])]


def _delete_objects(namespace: str) -> None:
    """What the operator makes beside the engines; clients lose requests with a Service, whoever deletes it."""
    kinds = "poddisruptionbudgets,configmaps,serviceaccounts"
    Kubectl(namespace).run("delete", kinds, f"--selector=holdfast.dev/service={NAME}", "--wait=false")


def _serve(api: ApiClient, is_served: bool) -> None:
    """Whether the API server knows LLMServices; their objects stay."""
    path = f"{_CRDS}/{LLMSERVICE.name}"
    versions = insist(lambda: api.get(path))["spec"]["versions"]
    insist(lambda: api.patch(path, {"spec": {"versions": [{**versions[0], "served": is_served}]}}))


def _unless_refused(action: Callable[[], object]) -> None:
    """A disruption budget may refuse an eviction."""
    with suppress(ApiError):
        action()
