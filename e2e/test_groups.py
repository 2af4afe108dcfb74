"""Groups of pods, made by the LeaderWorkerSet controller: they serve, a follower is killed, half a group finds a GPU.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest -s e2e/test_groups.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.cluster.group_sets import group_set_controller
from e2e.kubectl import Json, Kubectl, condition
from e2e.load.steady import SteadyLoad
from e2e.patience import Promised

pytestmark = pytest.mark.cluster

_LEADERS, _FOLLOWERS = "holdfast.dev/service=chat", "holdfast.dev/service=chat.followers"
_START_SECONDS = 90.0
_GIVEN_BACK_SECONDS = Promised(15.0 + 60.0)
"""The provisioning time of the fixture `operator`, and a minute."""
_ARRIVED = "holdfast:requests_arrived_total"
_UNSEEN = 6
"""Most requests that a leader may get between its last scrape and its end."""
_GROUP = {"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}, "count": 2, "nodes": 2}


@pytest.fixture(scope="module")
def groups(operator: None, place: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A service of two groups of two pods, in a cluster that has LeaderWorkerSets."""
    place.apply(_service(2))
    lacking = place.wait_for("llms", "chat", _lacks_the_api, 60, "ApiMissing")
    assert "install LeaderWorkerSet" in condition(lacking, "Stalled")["message"]
    with stack.operators_restarted(), group_set_controller(tmp_path_factory.mktemp("lws")):
        # The operator looks for the API every 30 s, and restarts.
        _wait_for_ready(place, 2)
        yield place
        place.delete("llms", "chat")
        place.wait_until(lambda: not _pods(place), 60, "the end of all groups")


def test_a_group_serves_as_one_replica_and_only_its_leader_is_asked(groups: Kubectl) -> None:
    leaders, followers = groups.items("pods", _LEADERS), groups.items("pods", _FOLLOWERS)
    assert [_name(pod) for pod in leaders] == ["chat-l40s-0", "chat-l40s-1"]
    assert [_name(pod) for pod in followers] == ["chat-l40s-0-1", "chat-l40s-1-1"]
    addresses = {pod["status"]["podIP"] for pod in leaders}
    slices = groups.items("endpointslices", "kubernetes.io/service-name=chat")
    assert {address for each in slices for end in each["endpoints"] for address in end["addresses"]} == addresses
    budget = groups.get_json("poddisruptionbudget", "chat")
    assert budget["status"]["expectedPods"] == 2, "it counts groups"
    status = groups.get_json("llms", "chat")["status"]
    assert status["replicas"]["ready"] == 2


def test_a_killed_follower_takes_its_group_out_until_it_is_back_and_nothing_is_counted_twice(groups: Kubectl) -> None:
    before = {_name(pod): pod["metadata"]["uid"] for pod in _pods(groups)}
    with SteadyLoad(f"http://chat.{groups.namespace}.svc:8000", "Qwen/Qwen3-8B", 1.0) as load:
        groups.wait_until(lambda: len(load.records) >= 10, 60, "requests under way")
        _kill("chat-l40s-1-1")
        _wait_for_ready(groups, 1)
        _wait_for_ready(groups, 2)
        answered = len(load.records)
        groups.wait_until(lambda: len(load.records) >= answered + 10, 60, "requests of both groups")
    after = {_name(pod): pod["metadata"]["uid"] for pod in _pods(groups)}
    assert {name for name, uid in after.items() if before[name] != uid} == {"chat-l40s-1", "chat-l40s-1-1"}
    lost = [record for record in load.records if record.status != "ok"]
    print(f"{len(load.records)} requests, {len(lost)} lost with a group")
    sent = len(load.records) + len(before) // 2 + 1  # each engine counts the token of its own start
    groups.wait_until(lambda: _counted(groups) >= sent - _UNSEEN, 30, "the requests in Prometheus")
    assert _counted(groups) <= sent
    assert not stack.ask(f'{{namespace="{groups.namespace}", pod=~"chat-l40s-[0-9]+-[0-9]+"}}'), "followers are scraped"


def test_half_a_group_gives_its_gpu_back(groups: Kubectl) -> None:
    nodes.set_node_capacity({nodes.GPU: 5})
    try:
        groups.patch("llms", "chat", {"spec": {"scaling": {"min": 3}}})
        groups.wait_until(lambda: len(_held(groups)) == 5, 60, "half a group")
        groups.wait_until(lambda: len(_held(groups)) == 4, _GIVEN_BACK_SECONDS, "the GPU of half a group")
        found = groups.get_json("llms", "chat")
        assert found["status"]["replicas"]["ready"] == 2
        assert condition(found, "CapacityAvailable")["status"] == "False"
    finally:
        nodes.set_node_capacity({nodes.GPU: 16})
    groups.patch("llms", "chat", {"spec": {"scaling": {"min": 2}}})


def _service(size: int) -> Json:
    made = stack.small_service("chat", min=size, max=3)
    made["spec"]["accelerators"] = [_GROUP]
    return made


def _lacks_the_api(found: Json) -> bool:
    return bool(condition(found, "Stalled").get("reason") == "ApiMissing")


def _wait_for_ready(place: Kubectl, size: int) -> None:
    def is_ready(found: Json) -> bool:
        return bool(found.get("status", {}).get("replicas", {}).get("ready") == size)

    place.wait_for("llms", "chat", is_ready, _START_SECONDS, f"{size} ready groups")


def _pods(place: Kubectl) -> list[Json]:
    return place.items("pods", f"{_LEADERS.partition('=')[0]} in (chat, chat.followers)")


def _held(place: Kubectl) -> list[Json]:
    """The pods that hold a GPU."""
    return [pod for pod in _pods(place) if pod["spec"].get("nodeName")]


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _kill(pod: str) -> None:
    for number in stack.processes(pod):
        os.kill(number, signal.SIGKILL)


def _counted(place: Kubectl) -> float:
    """Requests that the engines counted, those of an engine that is gone as they were scraped last."""
    series = f'{_ARRIVED}{{namespace="{place.namespace}", holdfast_service="chat"}}'
    return sum(float(row["value"][1]) for row in stack.ask(f"max_over_time({series}[30m])"))
