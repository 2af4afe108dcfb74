"""vllm-router in front of emulated engines: replicas and router pods come, go and die under load.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest -s e2e/test_router.py
With ten replicas that come and go: HOLDFAST_ROUTED=13.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.load.records import Record
from e2e.load.steady import SteadyLoad
from e2e.patience import patient
from holdfast_engine.fastloop import SEEN_SECONDS
from holdfast_engine.stats.stats_fields import FOLDER_VARIABLE

pytestmark = pytest.mark.cluster

_FEW = 3
_MANY = int(os.environ.get("HOLDFAST_ROUTED", "6"))
_RATE_RPS = 0.8 * _FEW * 0.98
"""0.8 of what three replicas carry (`stack.small_service`)."""
_SECONDS = 180.0
_KILLED = 3
_COUNTED = 15
"""Requests of each replica over which their shares are compared."""
_MOST_UNEVEN = 1.3
_ROUTER = {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}}


@pytest.fixture(scope="module")
def routed(operator: None, place: Kubectl) -> Kubectl:
    """A service of three replicas behind a router."""
    made = stack.small_service("chat", min=1, max=_MANY)
    made["spec"] |= {"replicas": _FEW, "router": _ROUTER}
    made["spec"]["engine"]["env"] = [{"name": FOLDER_VARIABLE, "value": "/tmp/holdfast-engine"}]
    place.apply(made)
    _wait_for_size(place, _FEW)
    place.wait_until(lambda: _clients(place) == "holdfast.dev/router", 60, "the Service to lead to the router")
    return place


def test_no_request_is_lost_while_replicas_come_and_go_and_each_gets_its_share(routed: Kubectl) -> None:
    with _load(routed) as load:
        routed.delete("pod", _name(_pods(routed, "holdfast.dev/service=chat")[0]), wait=False)
        routed.patch("llms", "chat", {"spec": {"replicas": _MANY}})
        _wait_for_size(routed, _MANY)
        pods = _pods(routed, "holdfast.dev/service=chat")
        routed.wait_until(lambda: all(_served(pod) > 0 for pod in pods), 60, "a request in each replica")
        # A busy machine lets a replica look away for a moment, and its neighbour takes its turns: one of three rounds.
        for _ in range(3):
            shares = _shares(routed, load, pods)
            uneven = max(shares) * len(shares) / sum(shares)
            print(f"busiest/mean {uneven:.2f} of {shares}")
            if uneven <= _MOST_UNEVEN:
                break
        routed.patch("llms", "chat", {"spec": {"replicas": _FEW}})
        _wait_for_size(routed, _FEW)
    print(f"{len(load.records)} requests, {len(_lost(load))} lost")
    assert _lost(load) == []
    assert uneven <= _MOST_UNEVEN


def _shares(routed: Kubectl, load: SteadyLoad, pods: list[Json]) -> list[float]:
    """Requests that each replica serves of the next ones."""
    before, begun = {_name(pod): _served(pod) for pod in pods}, len(load.records)
    routed.wait_until(lambda: len(load.records) >= begun + _COUNTED * _MANY, _SECONDS, "the requests to count")
    return [_served(pod) - before[_name(pod)] for pod in pods]


def test_of_the_requests_of_three_killed_replicas_only_those_with_a_token_are_lost(routed: Kubectl) -> None:
    routed.patch("llms", "chat", {"spec": {"replicas": _MANY}})
    _wait_for_size(routed, _MANY)
    with _load(routed) as load:
        routed.wait_until(lambda: len(load.records) >= 20, _SECONDS, "requests under way")
        killed = [_name(pod) for pod in _pods(routed, "holdfast.dev/service=chat")[:_KILLED]]
        for pod in killed:
            _kill(pod)
        before = len(load.records)
        routed.wait_until(lambda: len(load.records) >= before + 20, _SECONDS, "requests after the kill")
    lost = _lost(load)
    assert [record for record in lost if record.first_token_at is None] == []
    assert len(lost) <= 8 * _KILLED, "a replica runs eight sequences at most"
    _wait_for_size(routed, _MANY)
    routed.wait_until(lambda: _open(routed) == 0.0, SEEN_SECONDS + 60, "a verdict for each of them")
    counted = _killed(routed)
    print(f"{len(load.records)} requests, {len(lost)} lost with {_KILLED} of {_MANY} replicas, {counted:.0f} bad")
    told = {"attainment": "100%"}

    def is_told() -> bool:
        told.update(routed.get_json("llms", "chat")["status"]["slo"])
        return not lost or told["attainment"] != "100%"

    routed.wait_until(is_told, 90, "the status to tell of them")
    print(f"status: {told}")
    assert len(lost) <= counted <= 8 * _KILLED
    routed.patch("llms", "chat", {"spec": {"replicas": _FEW}})
    _wait_for_size(routed, _FEW)


def test_no_request_is_lost_with_a_router_pod_or_with_the_router(routed: Kubectl) -> None:
    with _load(routed) as load:
        leaving = _name(_pods(routed, "holdfast.dev/router=chat")[0])
        routed.delete("pod", leaving, wait=False)
        routed.wait_until(lambda: not routed.exists("pod", leaving), _SECONDS, "the end of a router pod")
        routed.patch("llms", "chat", {"spec": {"router": None}})
        routed.wait_until(lambda: not routed.exists("deployment", "chat-router"), _SECONDS, "the end of the router")
        assert _clients(routed) == "holdfast.dev/service"
        routed.wait_until(lambda: not routed.exists("service", "chat-replicas"), 60, "the end of its Service")
    assert _lost(load) == []


def test_no_request_is_lost_while_the_only_replica_is_replaced(operator: None, place: Kubectl) -> None:
    made = stack.small_service("single", min=1, max=1)
    made["spec"]["router"] = {**_ROUTER, "replicas": 1}
    place.apply(made)
    place.wait_until(lambda: _clients(place, "single") == "holdfast.dev/router", _SECONDS, "the router")
    (old,) = _pods(place, "holdfast.dev/service=single")
    with _load(place, "single", 0.5) as load:
        turn = {"metadata": {"annotations": {"example.com/turn": "1"}}}
        place.patch("llms", "single", {"spec": {"template": turn}})
        place.wait_until(lambda: not place.exists("pod", _name(old)), _SECONDS, "the end of the old replica")
        before = len(load.records)
        place.wait_until(lambda: len(load.records) >= before + 5, _SECONDS, "answers of the new replica")
    print(f"{len(load.records)} requests, {len(_lost(load))} lost")
    assert _lost(load) == []


def test_a_service_without_replicas_wakes_behind_its_router(operator: None, place: Kubectl) -> None:
    made = stack.small_service("rests", min=0)
    made["spec"]["router"] = {**_ROUTER, "replicas": 1}
    place.apply(made)
    place.wait_until(lambda: _clients(place, "rests") == "holdfast.dev/activator", 180, "its rest")
    with _load(place, "rests", 0.5) as load:
        place.wait_until(lambda: _clients(place, "rests") == "holdfast.dev/router", _SECONDS, "the router")
        place.wait_until(lambda: len(load.records) >= 5, _SECONDS, "answers")
    assert _lost(load) == []
    assert condition(place.get_json("llms", "rests"), "Stalled").get("status") != "True"


def _load(place: Kubectl, service: str = "chat", rate_rps: float = _RATE_RPS) -> SteadyLoad:
    return SteadyLoad(f"http://{service}.{place.namespace}.svc:8000", "Qwen/Qwen3-8B", rate_rps)


def _lost(load: SteadyLoad) -> list[Record]:
    return [record for record in load.records if record.status != "ok"]


def _wait_for_size(place: Kubectl, size: int) -> None:
    def has_size(found: Json) -> bool:
        return bool(found.get("status", {}).get("replicas", {}).get("ready") == size)

    place.wait_for("llms", "chat", has_size, _SECONDS, f"{size} ready replicas")
    place.wait_until(lambda: len(_pods(place, "holdfast.dev/service=chat")) == size, _SECONDS, f"{size} pods")


def _clients(place: Kubectl, service: str = "chat") -> str:
    """The label by which the Service of the clients selects; empty before there is one."""
    found = [each for each in place.items("services") if each["metadata"]["name"] == service]
    return str(*found[0]["spec"]["selector"]) if found else ""


def _pods(place: Kubectl, selector: str) -> list[Json]:
    found: list[Json] = place.items("pods", selector)
    return found


def _open(place: Kubectl) -> float:
    """Requests without a verdict, by the replicas' own metrics."""
    return sum(_value(pod, "holdfast:requests_unjudged") for pod in _pods(place, "holdfast.dev/service=chat"))


def _killed(place: Kubectl) -> float:
    """Requests that were lost with their engine, as Prometheus saw the counters of all replicas rise."""
    counter = f'holdfast:requests_bad_total{{namespace="{place.namespace}", holdfast_service="chat", cause="killed"}}'
    rose = f"sum(max_over_time({counter}[10m]) - min_over_time({counter}[10m]))"
    engines = sum(
        _value(pod, "holdfast:requests_bad_total", 'cause="killed"')
        for pod in _pods(place, "holdfast.dev/service=chat")
    )
    place.wait_until(lambda: float(stack.ask(rose)[0]["value"][1]) == engines, 60, "a scrape of the counters")
    return engines


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _served(pod: Json) -> float:
    """Requests that a replica has finished, by its own metrics."""
    return _value(pod, "vllm:request_success_total")


def _value(pod: Json, metric: str, label: str = "") -> float:
    """The sum of the series of a metric with this label, by the replica's own page."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/metrics", timeout=patient(10.0)) as page:
        lines: list[Any] = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric) and label in line)


def _kill(pod: str) -> None:
    """SIGKILL every process of a pod's engine."""
    for number in stack.processes(pod):
        os.kill(number, signal.SIGKILL)
