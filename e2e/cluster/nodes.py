"""Nodes that look like GPU machines: labels and capacity on the real node, and fake nodes played by kwok."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.apiclient import ApiClient
from e2e.cluster.layout import NODE_NAME
from e2e.cluster.processes import StartError
from e2e.cluster.toolset import KWOK
from e2e.patience import patient

GPU = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
FAKE_NODE_LABEL = "holdfast.local/fake-node"

_KWOK_STAGES = Path(__file__).parent / "kwok-stages.yaml"
_KWOK_SETTINGS = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {
        "cidr": "10.200.0.0/16",
        # Only the nodes made here: kwok must not play the part of the real kubelet.
        "manageNodesWithLabelSelector": f"{FAKE_NODE_LABEL}=true",
        "nodeLeaseDurationSeconds": 40,
        "nodeLeaseParallelism": 4,
        "nodePlayStageParallelism": 16,
        "podPlayStageParallelism": 16,
    },
}


def connect() -> ApiClient:
    """A client of the cluster that KUBECONFIG names."""
    return ApiClient(Path(os.environ["KUBECONFIG"]))


def label_node(labels: Mapping[str, str | None], node: str = NODE_NAME) -> None:
    """Set labels of a node; None removes one."""
    connect().patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": dict(labels)}})


def set_node_capacity(capacity: Mapping[str, int | None], node: str = NODE_NAME, seconds: float = 30.0) -> None:
    """Set extended resources of a node, as a device plugin would, and wait until pods can ask for them.

    None removes one. The kubelet takes over what it finds within its status period of 5 s.
    """
    wanted = {name: None if amount is None else str(amount) for name, amount in capacity.items()}
    api = connect()
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": wanted, "allocatable": wanted}})
    deadline = time.monotonic() + patient(seconds)
    for seen in api.watch(f"/api/v1/nodes?fieldSelector=metadata.name={node}", patient(seconds)):
        allocatable = seen["status"]["allocatable"]
        if all(allocatable.get(name) == amount for name, amount in wanted.items()):
            return
        if time.monotonic() > deadline:
            break
    raise StartError(f"node {node} does not offer {wanted} after {patient(seconds):.0f} s")


@contextmanager
def start_kwok(folder: Path, cold_start_seconds: float = 0.0) -> Iterator[None]:
    """Play the kubelets of all fake nodes while the block runs; settings and log go to `folder`.

    A pod on a fake node is Ready so many seconds after it was bound. Raises FileNotFoundError where kwok is not built.
    """
    settings = folder / "kwok.yaml"
    settings.write_text(_kwok_settings(cold_start_seconds))
    command = [KWOK.built_program("kwok"), f"--kubeconfig={os.environ['KUBECONFIG']}", f"--config={settings}"]
    with (folder / "kwok.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def add_fake_nodes(
    prefix: str, count: int, labels: Mapping[str, str], capacity: Mapping[str, int], pods: int = 200
) -> list[str]:
    """Create nodes `prefix`-0 ... for kwok to play; return their names.

    They carry the GPU taint, so that only pods that ask for GPUs land on them.
    """
    api = connect()
    names = [f"{prefix}-{number}" for number in range(count)]
    for name in names:
        api.create("/api/v1/nodes", _fake_node(name, labels, capacity, pods))
    return names


def wait_for_nodes(names: list[str], seconds: float = 60.0) -> None:
    """Return once all these nodes are Ready."""
    api, missing = connect(), set(names)
    deadline = time.monotonic() + patient(seconds)
    while missing:
        ready = {node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"] if _is_ready(node)}
        missing -= ready
        if missing and time.monotonic() > deadline:
            raise StartError(
                f"{len(missing)} nodes are not Ready after {patient(seconds):.0f} s, among them {min(missing)}"
            )
        time.sleep(0.2 if missing else 0)


def remove_nodes(names: list[str]) -> None:
    """Delete nodes; their pods go with them."""
    api = connect()
    for name in names:
        api.delete(f"/api/v1/nodes/{name}")


def _kwok_settings(cold_start_seconds: float) -> str:
    stages = list(yaml.safe_load_all(_KWOK_STAGES.read_text()))
    for stage in stages:
        if stage["metadata"]["name"] == "pod-ready":
            stage["spec"]["delay"]["durationMilliseconds"] = round(1000 * cold_start_seconds)
    return yaml.safe_dump_all([_KWOK_SETTINGS, *stages])


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _fake_node(name: str, labels: Mapping[str, str], capacity: Mapping[str, int], pods: int) -> dict[str, Any]:
    resources = {"cpu": "256", "memory": "2Ti", "pods": str(pods)}
    resources.update({resource: str(amount) for resource, amount in capacity.items()})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {FAKE_NODE_LABEL: "true", "kubernetes.io/hostname": name, **labels},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }
