"""Replicas that are groups of pods, as LeaderWorkerSets make them: where a replica takes the GPUs of several nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.api.parallelism import cel_gpus
from holdfast.api.rules import Rule

GROUP, VERSION = "leaderworkerset.x-k8s.io", "v1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LeaderWorkerSet"
PLURAL = "leaderworkersets"
LABELS = "leaderworkerset.sigs.k8s.io"
"""Domain of the labels and annotations that the controller gives to the pods of a group."""

MAX_NAMES_LENGTH = 44
"""Of a service and an accelerator together: the controller adds the numbers of group and pod, Kubernetes a hash."""

NODES_SHARE_GPUS = Rule(
    f"self.nodes <= 1 || {cel_gpus('self')} % self.nodes == 0",
    "count must be a multiple of nodes, because each node has the same number of GPUs: change count or nodes",
    lambda accelerator: accelerator.sharing.gpus % accelerator.nodes == 0,
    ".nodes",
)
ONE_ENGINE_IN_A_GROUP = Rule(
    "self.nodes == 1 || !has(self.parallelism) || self.parallelism.data == 1",
    "nodes and parallelism.data exclude each other, because data-parallel engines share one node: set tensor and"
    " pipeline, or nodes: 1",
    lambda accelerator: accelerator.nodes == 1 or accelerator.sharing.data == 1,
    ".nodes",
)
SERVICES_OF_GROUPS_ARE_FREE = Rule(
    "self.nodes == 1 || !(self.name in ['engines', 'replicas'])",
    "with nodes, an accelerator must not be named engines or replicas, because Services of the operator have these"
    " names: rename it",
    lambda accelerator: accelerator.nodes == 1 or accelerator.name not in ("engines", "replicas"),
    ".name",
)


def _names_fit(service: Any) -> bool:
    groups = (each for each in service.spec.accelerators if each.nodes > 1)
    return all(len(service.metadata.name) + len(each.name) <= MAX_NAMES_LENGTH for each in groups)


NAMES_OF_GROUPS_FIT = Rule(
    "!has(self.spec.accelerators) || self.spec.accelerators.all(a, a.nodes == 1"
    f" || self.metadata.name.size() + a.name.size() <= {MAX_NAMES_LENGTH})",
    f"with nodes, metadata.name and the name of the accelerator must have at most {MAX_NAMES_LENGTH} characters"
    " together: shorten one of them",
    _names_fit,
)


def api_missing(accelerators: Iterable[Any]) -> str:
    """What to say where the cluster lacks the API of groups; empty where no accelerator of a spec asks for them."""
    asked = next((each for each in accelerators if each.nodes > 1), None)
    if asked is None:
        return ""
    return (
        f"accelerators[{asked.name}].nodes is {asked.nodes} and the cluster has no {KIND}: "
        "install LeaderWorkerSet 0.7 or newer, or use nodes that hold a whole replica"
    )
