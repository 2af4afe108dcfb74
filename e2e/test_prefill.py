"""Emulated prefill and decode engines behind the real vllm-router: each request is counted once, also when one is lost.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest -s e2e/test_prefill.py
"""

from __future__ import annotations

import os
import signal
import urllib.request

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.load.steady import SteadyLoad
from e2e.patience import patient

pytestmark = pytest.mark.cluster

_REPLICAS, _PREFILL = "holdfast.dev/service=pair", "holdfast.dev/service=pair.prefill"
_ROUTER = {"replicas": 1, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}}
_START_SECONDS = 180.0
_REQUESTS = 20
_COUNTED = ("arrived", "handed_over", "received", "good", "bad", "withdrawn")
Counts = dict[str, float]


@pytest.fixture(scope="module")
def pair(operator: None, place: Kubectl) -> Kubectl:
    """A service of one replica and two prefill engines."""
    made = stack.small_service("pair", min=1, max=2)
    made["spec"] |= {"replicas": 1, "prefill": {"replicas": 2}, "router": _ROUTER}
    place.apply(made)
    _wait_for_pair(place)
    return place


def test_each_request_passes_both_pools_and_is_counted_once(pair: Kubectl) -> None:
    pools = pair.get_json("llms", "pair")["status"]["pools"]
    assert [(each["name"], each["role"], each["desired"], each["ready"]) for each in pools] == [
        ("pair", "Decode", 1, 1),
        ("pair.prefill", "Prefill", 2, 2),
    ]
    before = {pool: _counts(pair, pool) for pool in (_REPLICAS, _PREFILL)}
    with _load(pair) as load:
        pair.wait_until(lambda: len(load.records) >= _REQUESTS, _START_SECONDS, "requests")
    assert [record for record in load.records if record.status != "ok"] == []
    sent = float(len(load.records))
    after = {pool: _judged(pair, pool) for pool in before}
    replicas, prefill = (_gained(after[pool], before[pool]) for pool in (_REPLICAS, _PREFILL))
    print(f"{sent:.0f} requests; prefill {prefill}, replicas {replicas}")
    assert (prefill["arrived"], prefill["handed_over"]) == (sent, sent)
    assert (replicas["arrived"], replicas["received"]) == (sent, sent)
    assert prefill["good"] + prefill["bad"] + prefill["withdrawn"] == 0.0
    assert replicas["good"] + replicas["bad"] == sent


def test_no_request_is_counted_twice_when_a_prefill_engine_is_killed(pair: Kubectl) -> None:
    before = _counts(pair, _REPLICAS)
    with _load(pair) as load:
        pair.wait_until(lambda: len(load.records) >= 5, _START_SECONDS, "requests under way")
        for number in stack.processes(_name(pair.items("pods", _PREFILL)[0])):
            os.kill(number, signal.SIGKILL)
        begun = len(load.records)
        pair.wait_until(lambda: len(load.records) >= begun + _REQUESTS, _START_SECONDS, "requests after the kill")
    answered = float(sum(record.status == "ok" for record in load.records))
    replicas = _gained(_judged(pair, _REPLICAS), before)
    print(f"{len(load.records)} requests, {answered:.0f} answered; replicas {replicas}")
    assert replicas["arrived"] == replicas["good"] + replicas["bad"] == answered
    assert len(load.records) - answered <= 4, "what the killed engine was computing"
    _wait_for_pair(pair)


def test_the_replicas_serve_whole_requests_while_there_is_no_prefill_engine(pair: Kubectl) -> None:
    for pod in pair.items("pods", _PREFILL):
        pair.delete("pod", _name(pod), wait=False)
    found = pair.wait_for(
        "llms", "pair", lambda each: condition(each, "Ready").get("reason") == "PrefillNotReady", 60, "PrefillNotReady"
    )
    assert condition(found, "Ready")["status"] == "False"
    before = _counts(pair, _REPLICAS)
    with _load(pair) as load:
        pair.wait_until(lambda: len(load.records) >= 2, _START_SECONDS, "answers")
    assert [record for record in load.records if record.status != "ok"] == []
    replicas = _gained(_judged(pair, _REPLICAS), before)
    assert replicas["arrived"] == float(len(load.records))
    _wait_for_pair(pair)


def test_a_prefill_pool_that_is_removed_leaves_nothing(pair: Kubectl) -> None:
    pair.patch("llms", "pair", {"spec": {"prefill": None}})
    pair.wait_until(lambda: not pair.items("pods", _PREFILL), _START_SECONDS, "the end of the prefill engines")
    kinds = "deployments,services,poddisruptionbudgets,configmaps"
    pair.wait_until(
        lambda: not [each for each in pair.items(kinds) if "prefill" in each["metadata"]["name"]], 60, "their objects"
    )


def _load(place: Kubectl) -> SteadyLoad:
    return SteadyLoad(f"http://pair.{place.namespace}.svc:8000", "Qwen/Qwen3-8B", 0.7)


def _wait_for_pair(place: Kubectl) -> None:
    def serves(found: Json) -> bool:
        pools = found.get("status", {}).get("pools", ())
        return [each.get("ready") for each in pools] == [1, 2] and condition(found, "Ready").get("status") == "True"

    place.wait_for("llms", "pair", serves, _START_SECONDS, "both pools")
    place.wait_until(lambda: _clients(place) == "holdfast.dev/router", 60, "the Service to lead to the router")
    place.wait_until(lambda: _hands_over(place), 60, "the router to know both pools")


def _clients(place: Kubectl) -> str:
    """The label by which the Service of the clients selects."""
    return str(*place.get_json("service", "pair")["spec"]["selector"])


def _hands_over(place: Kubectl) -> bool:
    """Whether the router knows two prefill engines and a replica."""
    (pod,) = place.items("pods", "holdfast.dev/router=pair")
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/workers", timeout=patient(10.0)) as page:
        listed = page.read().decode()
    return (listed.count('"worker_type":"prefill"'), listed.count('"worker_type":"decode"')) == (2, 1)


def _judged(place: Kubectl, selector: str) -> Counts:
    """The counts once every request that arrived is judged or handed over."""
    found: list[Counts] = []

    def are_all() -> bool:
        found.append(now := _counts(place, selector))
        return now["arrived"] == now["handed_over"] + now["good"] + now["bad"] + now["withdrawn"]

    place.wait_until(are_all, 60, "a verdict for each request")
    return found[-1]


def _counts(place: Kubectl, selector: str) -> Counts:
    """What the plugins of all engines of a pool have counted."""
    pods = place.items("pods", selector)
    return {name: sum(_value(pod, f"holdfast:requests_{name}_total") for pod in pods) for name in _COUNTED}


def _gained(after: Counts, before: Counts) -> Counts:
    return {name: after[name] - before[name] for name in _COUNTED}


def _value(pod: Json, metric: str) -> float:
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/metrics", timeout=patient(10.0)) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric + "{"))


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])
