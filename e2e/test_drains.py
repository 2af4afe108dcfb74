"""Nodes that are drained and replicas that load: the eviction API refuses what would waste a start, and nothing more.

python -m e2e.cluster run -- python -m pytest e2e/test_drains.py -m cluster
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, KubectlError, condition
from e2e.patience import patient

pytestmark = pytest.mark.cluster

_FAKE_PRODUCT, _COLD_START_SECONDS = "drained", 8.0
_PROTECTIONS = {"karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"}
_ANY_NODE = {"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}}


@pytest.fixture(scope="module")
def engines(operator: None, place: Kubectl) -> Kubectl:
    """A service that loads for long, and one whose engine crashes: both start at once."""
    place.apply(
        [
            stack.service("loading", cold_start_seconds=40.0, accelerators=[_ANY_NODE]),
            stack.service("crashing", accelerators=[{**_ANY_NODE, "args": ["--max-model-len=999999999"]}]),
        ]
    )
    return place


def test_a_replica_that_loads_may_not_be_evicted_until_it_serves(engines: Kubectl) -> None:
    pod = _wait_for_pod(engines, "loading", lambda found: found["status"]["phase"] == "Running" and _is_marked(found))
    assert not _is_ready(pod)
    assert set(pod["metadata"]["annotations"]) >= _PROTECTIONS
    refusal = _evict(engines, pod)
    assert "violate the pod's disruption budget" in refusal
    served = _wait_for_pod(engines, "loading", lambda found: _is_ready(found) and not _is_marked(found))
    assert served["metadata"]["uid"] == pod["metadata"]["uid"]
    assert not set(served["metadata"]["annotations"]) & _PROTECTIONS
    writes = [entry for entry in stack.written(engines.namespace) if "holdfast-loading" in entry["requestURI"]]
    assert len([entry for entry in writes if entry["objectRef"]["name"] == pod["metadata"]["name"]]) == 2


def test_a_replica_that_crashes_may_be_evicted(engines: Kubectl) -> None:
    pod = _wait_for_pod(engines, "crashing", lambda found: _restarts(found) >= 2 and not _is_marked(found))
    assert _evict(engines, pod) == ""


@pytest.fixture(scope="module")
def fake_nodes(operator: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two nodes with one GPU each."""
    with nodes.start_kwok(tmp_path_factory.mktemp("kwok"), _COLD_START_SECONDS):
        names = nodes.add_fake_nodes("drained", 2, {nodes.GPU_PRODUCT_LABEL: _FAKE_PRODUCT}, {nodes.GPU: 1})
        try:
            nodes.wait_for_nodes(names)
            yield names
        finally:
            nodes.remove_nodes(names)


def test_the_only_replica_leaves_a_drained_node_after_its_successor_serves_and_a_full_cluster_drains_all_the_same(
    fake_nodes: list[str], place: Kubectl, tmp_path: Path
) -> None:
    tolerations = [{"key": nodes.GPU, "operator": "Exists"}]
    accelerator = {"name": "fake", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: _FAKE_PRODUCT}, "tolerations": tolerations}
    place.apply(stack.service("alone", accelerators=[accelerator]))
    before = _wait_for_pod(place, "alone", _is_ready)
    old_node = before["spec"]["nodeName"]
    place.wait_for("pdb", "alone", lambda found: _most(found) == (0, 1), 30, "a budget that holds the only replica")

    said, least_ready = _drained(place, old_node)
    assert "violate the pod's disruption budget" in said
    assert least_ready == 1
    after = _wait_for_pod(place, "alone", lambda found: _is_ready(found) and found["spec"]["nodeName"] != old_node)
    (new_node,) = set(fake_nodes) - {old_node}
    assert after["spec"]["nodeName"] == new_node

    _drained(place, new_node)  # no GPU is free: it waits for a node, and then for nobody
    place.run("uncordon", old_node)
    _wait_for_pod(place, "alone", lambda found: _is_ready(found) and found["spec"]["nodeName"] == old_node)


def _drained(place: Kubectl, node: str) -> tuple[str, int]:
    """What kubectl drain says, and the fewest replicas that were seen to serve meanwhile."""
    command = ["kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data"]
    timeout = patient(120.0)
    draining = subprocess.Popen(
        [*command, f"--timeout={timeout:.0f}s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    least = 9
    while draining.poll() is None:
        least = min(least, sum(map(_is_ready, place.items("pods", "holdfast.dev/service=alone"))))
    said = draining.communicate()[0]
    assert draining.returncode == 0, said
    return said, least


def _evict(place: Kubectl, pod: Json) -> str:
    """Ask the eviction API; return its refusal, empty where it agreed."""
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": place.namespace}}
    path = f"/api/v1/namespaces/{place.namespace}/pods/{name}/eviction"
    try:
        place.run("create", "--raw", path, "--filename", "-", stdin=json.dumps(eviction))
    except KubectlError as refused:
        return str(refused)
    return ""


def _wait_for_pod(place: Kubectl, service: str, is_true: Any) -> Json:
    """A pod of the service for which this holds."""
    found: list[Json] = []

    def seen() -> bool:
        found[:] = [pod for pod in place.items("pods", f"holdfast.dev/service={service}") if is_true(pod)]
        return bool(found)

    place.wait_until(seen, 120, f"a pod of {service}")
    return found[0]


def _is_ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def _is_marked(pod: Json) -> bool:
    return "holdfast.dev/loading" in pod["metadata"]["labels"]


def _restarts(pod: Json) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


def _most(budget: Json) -> tuple[Any, Any]:
    """Replicas that may be unavailable, and those that the disruption controller found healthy."""
    return budget["spec"].get("maxUnavailable"), budget.get("status", {}).get("currentHealthy")
