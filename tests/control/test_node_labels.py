"""A label that no node has is a fact of the node list: CapacityAvailable quotes it with the remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.control.status.node_labels import NodeLabels
from holdfast.control.status.remedies import with_remedies
from holdfast.control.writes.actuator import Actuator
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import Action, ConditionValue
from holdfast.render import RenderSettings
from tests.control.parts import decision, llmservice, parts
from tests.control.test_actuator import SERVICES, Metrics, Told, cluster

PRODUCT = "nvidia.com/gpu.product"
WORDS = "1 of 1 h100 replica waits for a node: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu"


def node(name: str, **labels: str) -> NodeOffer:
    known = {"kubernetes.io/hostname": name, **{key.replace("_", "/"): value for key, value in labels.items()}}
    return NodeOffer(name, tuple(sorted(known.items())), (("nvidia.com/gpu", 8),))


def selecting(*selectors: dict[str, str]) -> LLMService:
    names = ("h100", "l40s", "a100")
    return llmservice(
        accelerators=[{"name": name, "nodeSelector": found} for name, found in zip(names, selectors, strict=False)]
    )


def told(service: LLMService, *nodes: NodeOffer, reason: Reason = Reason.INSUFFICIENT_GPUS) -> str:
    values = [
        ConditionValue(ConditionType.READY, False, Reason.NO_REPLICAS, "none"),
        ConditionValue(ConditionType.CAPACITY_AVAILABLE, reason is Reason.ALL_PLACED, reason, WORDS),
    ]
    _, capacity = with_remedies(values, parts(service), 0, NodeLabels(nodes))
    assert dataclasses.replace(capacity, message=WORDS) == values[1]
    return capacity.message.removeprefix(WORDS)


def test_a_selector_that_no_node_has_is_quoted_with_both_remedies() -> None:
    said = told(selecting({PRODUCT: "NVIDIA-H100-80GB-HBM3"}), node("cpu-1"), node("cpu-2"))
    assert said == (
        f"; no node that takes pods matches the nodeSelector of h100 ({PRODUCT}=NVIDIA-H100-80GB-HBM3); the nearest, "
        f"cpu-1, has no label {PRODUCT}; correct its nodeSelector, or, where an autoscaler is to add the node, select "
        "by a label that the autoscaler knows while its pool has no node (docs/platforms.md)"
    )


@pytest.mark.parametrize("reason", [Reason.INSUFFICIENT_GPUS, Reason.NO_MATCHING_NODES, Reason.ACCELERATOR_UNAVAILABLE])
def test_it_is_said_whatever_the_shortage_is_called(reason: Reason) -> None:
    assert "no node that takes pods matches" in told(selecting({"gpu": "h100"}), node("a"), reason=reason)


@pytest.mark.parametrize("reason", [Reason.ALL_PLACED, Reason.QUOTA_EXCEEDED, Reason.CAPACITY_LIMITED])
def test_nothing_is_said_where_nodes_are_not_what_lacks(reason: Reason) -> None:
    assert not told(selecting({"gpu": "h100"}), node("a"), reason=reason)


NEAREST = {
    "the same key, another value": ({"gpu": "h200"}, "; the nearest, a, has gpu=h100 instead of h200; "),
    "one label of two": ({"gpu": "h100", "zone": "1"}, "; the nearest, a, has no label zone; "),
    "a typing error in the key": ({"gpus": "h100", "zone": "2"}, "; the nearest, b, has no label gpus; "),
    "two labels": ({"gpu": "l4", "rack": "1"}, "; the nearest, a, has gpu=h100 instead of l4, no label rack; "),
    "labels of different nodes": ({"gpu": "h100", "zone": "2"}, "; the nearest, b, has gpu=a100 instead of h100; "),
}


@pytest.mark.parametrize(("selector", "differing"), NEAREST.values(), ids=NEAREST)
def test_the_selector_and_what_differs_on_the_nearest_node_are_quoted(selector: dict[str, str], differing: str) -> None:
    nodes = (node("0-cpu"), node("a", gpu="h100"), node("b", gpu="a100", zone="2"))
    said = told(selecting(selector), *nodes)
    assert f"({', '.join(f'{name}={value}' for name, value in sorted(selector.items()))}){differing}" in said


def test_a_selector_that_a_node_matches_is_no_reason() -> None:
    assert not told(selecting({"gpu": "h100"}), node("a", gpu="h100"))
    assert not told(selecting({}), node("a"))
    assert not told(selecting({"gpu": "h100", "pool": "x"}), node("a", gpu="h100", pool="x"), node("b"))


def test_of_several_accelerators_the_first_that_lacks_a_label_is_named() -> None:
    said = told(selecting({"gpu": "h100"}, {"gpu": "l40s"}, {"gpu": "a100"}), node("a", gpu="h100"))
    assert "of l40s (gpu=l40s)" in said
    assert "a100" not in said


def test_without_any_node_every_label_lacks() -> None:
    assert "of h100 (gpu=h100): there is no node that takes pods; correct" in told(selecting({"gpu": "h100"}))
    assert not told(selecting({}))


async def test_the_published_condition_has_it() -> None:
    api, part = cluster(), parts(selecting({PRODUCT: "NVIDIA-H100-80GB-HBM3"}))
    short = ConditionValue(ConditionType.CAPACITY_AVAILABLE, False, Reason.INSUFFICIENT_GPUS, WORDS)
    made = dataclasses.replace(decision(part, Action.HOLD, h100=1), conditions=(short,))
    acting = Actuator(api, Metrics(), Told(), RenderSettings(pod_files={"a.py": ""}), lambda: True)
    await acting.act([part], [made], [], [node("cpu-1")], now=0.0)
    status: dict[str, Any] = api.objects[f"{SERVICES}/chat"]["status"]
    (shown,) = status["conditions"]
    assert f"{PRODUCT}=NVIDIA-H100-80GB-HBM3" in shown["message"]
