"""Nodes that keep pods away: who counts on their GPUs, and who does not."""

from __future__ import annotations

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption
from holdfast.domain.taints import Taint, Toleration, are_tolerated
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import ServiceView, a_snapshot, accelerator, condition, node, replicas, service

GPU = "nvidia.com/gpu"
DEDICATED = Taint("dedicated", "batch", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("dedicated", "Equal", "batch"), True),
        (Toleration("dedicated", "Equal", "batch", "NoSchedule"), True),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Exists", effect="NoSchedule"), True),
        (Toleration("dedicated", "Equal", "chat"), False),
        (Toleration("dedicated"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
        (Toleration("dedicated", "Near", "batch"), False),
    ],
)
def test_a_toleration_covers_what_kubernetes_says_it_does(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(DEDICATED) is covers


def test_every_taint_must_be_tolerated_but_that_of_the_resource_itself() -> None:
    own, exists = Taint(GPU, "present", "NoSchedule"), Toleration("dedicated", "Exists")
    assert are_tolerated([], [], GPU)
    assert are_tolerated([own], [], GPU)
    assert not are_tolerated([own], [], "amd.com/gpu")
    assert are_tolerated([own, DEDICATED], [exists], GPU)
    assert not are_tolerated([DEDICATED, Taint("spot", "", "NoExecute")], [exists], GPU)


def test_only_who_tolerates_a_node_has_room_on_it() -> None:
    inventory = Inventory((node("open", 4, used=1), node("closed", 8, taints=(DEDICATED,))))
    chat = AcceleratorOption("h100")
    batch = AcceleratorOption("h100", tolerations=(Toleration("dedicated", "Equal", "batch"),))
    assert (inventory.room(chat).free_replicas, inventory.room(chat).names) == (3, {"open"})
    assert (inventory.room(batch).free_replicas, inventory.room(batch).names) == (11, {"open", "closed"})
    assert inventory.room(chat).offering == inventory.room(batch).offering == 2


def test_a_service_that_tolerates_no_node_is_told_so_and_one_that_does_only_waits() -> None:
    def reason(tolerations: tuple[Toleration, ...]) -> str:
        chat = service().with_accelerators(accelerator("h100", tolerations=tolerations))
        waiting = replicas(1, phase=ReplicaPhase.UNSCHEDULABLE, age=600.0)
        nodes = (node("n1", 8, used=8, taints=(DEDICATED,)),)
        (decision,), _ = decide(
            a_snapshot(ServiceView(chat, replicas=waiting), nodes=nodes), Memory(), PolicySettings()
        )
        return condition(decision, "CapacityAvailable")[1]

    assert reason(()) == Reason.NO_MATCHING_NODES
    assert reason((Toleration("dedicated", "Exists"),)) == Reason.INSUFFICIENT_GPUS
