"""A group of pods of which only some find a node: its GPUs serve nobody, so it is given up and tried again later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from holdfast.domain.cluster import Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceBuilder, ServiceView, a_snapshot, condition, node, service, sizes, traffic
from tests.policy.fluid import FixedRates

PAIR = AcceleratorOption("h100x16", gpus_per_replica=16, nodes=2)
THREE = service().with_accelerators(PAIR).with_replicas_between(3, 6)
MODEL = FixedRates({PAIR.name: 8.9})
SETTINGS = PolicySettings()
WAIT_SECONDS = SETTINGS.provisioning_seconds


def group(number: int, phase: ReplicaPhase = ReplicaPhase.READY, made_at: float = NOW - 9000.0) -> Replica:
    """A group of two pods; one that waits has a node for its leader alone, if any."""
    ready, home = phase is ReplicaPhase.READY, f"n{2 * number}"
    return Replica(
        f"chat-h100x16-{number}",
        PAIR.name,
        phase,
        made_at,
        scheduled_at=made_at if ready else None,
        ready_at=made_at + 30.0 if ready else None,
        reason="" if ready else "Unschedulable",
        detail="" if ready else "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
        node=home,
        followers=(f"n{2 * number + 1}",) if ready else (),
        number=number,
    )


@dataclass
class World:
    """Groups of these numbers serve; the one that waits is made while the set is larger, and finds one node of two."""

    serving: tuple[int, ...] = (0, 1)
    waits: int = 2
    holds: bool = True
    size: int = 3
    of: ServiceBuilder = THREE
    rate_rps: float = 5.0
    made_at: float | None = None
    memory: Memory = field(default_factory=Memory)

    def run(self, seconds: float, tick: float = 15.0) -> Iterator[tuple[float, Decision]]:
        """Decide every tick, and do what was decided; yields the time since the beginning as well."""
        for at in range(0, int(seconds), int(tick)):
            yield float(at), self._decide(NOW + at)

    def _decide(self, now: float) -> Decision:
        pods = [group(number) for number in self.serving]
        if self.size > len(self.serving):
            self.made_at = now if self.made_at is None else self.made_at
            waiting = group(self.waits, ReplicaPhase.UNSCHEDULABLE, self.made_at)
            pods.append(waiting if self.holds else replace(waiting, node=""))
        else:
            self.made_at = None
        placement = Placement(PAIR.name, self.size, workload=Workload("chat-h100x16", "LeaderWorkerSet"))
        view = ServiceView(self.of, traffic(self.rate_rps), tuple(pods), (placement,), born_at=NOW - 9000.0)
        # Nodes may still come: where all are known, no group is asked for that finds no room.
        snapshot = a_snapshot(view, now=now, nodes=tuple(node(f"n{at}", 8, used=8) for at in range(5)))
        (decision,), self.memory = decide(snapshot, self.memory, SETTINGS, MODEL)
        self.size = sizes(decision)[PAIR.name]
        return decision


def test_half_a_group_gives_its_gpus_back_once_nodes_would_have_come_and_is_tried_again_later() -> None:
    found = [(at, sizes(decision)[PAIR.name]) for at, decision in World().run(3 * WAIT_SECONDS + 900.0)]
    given_back = next(at for at, size in found if size == 2)
    assert WAIT_SECONDS <= given_back <= WAIT_SECONDS + 60.0
    again = next(at for at, size in found if at > given_back and size == 3)
    assert again - given_back == pytest.approx(SETTINGS.retry_seconds, abs=30.0)


def test_the_reason_is_told_with_the_words_of_the_scheduler() -> None:
    told = dict(World().run(WAIT_SECONDS + 60.0))
    decision = told[WAIT_SECONDS + 15.0]
    assert condition(decision, "CapacityAvailable")[0] is False
    assert "a group of h100x16 held nodes without getting all" in decision.verdict.message
    assert "0/5 nodes are available" in decision.verdict.message


def test_a_group_without_any_node_goes_on_asking_for_nodes() -> None:
    assert {sizes(decision)[PAIR.name] for _, decision in World(holds=False).run(3 * WAIT_SECONDS)} == {3}


def test_no_serving_group_goes_in_place_of_half_a_group_with_a_lower_number() -> None:
    world = World(serving=(0, 2), waits=1)
    assert {sizes(decision)[PAIR.name] for _, decision in world.run(3 * WAIT_SECONDS)} == {3}


@pytest.mark.parametrize(("serving", "waits", "kept"), [((1,), 0, 2), ((0,), 1, 1), ((0, 2), 1, 3), ((0, 1), 2, 2)])
def test_no_group_that_serves_goes_in_place_of_one_that_waits_when_the_load_falls(
    serving: tuple[int, ...], waits: int, kept: int
) -> None:
    """A set that gets smaller removes the highest number, which node failures may have left as the only one."""
    size, rate_rps = len(serving) + 1, 6.0 * len(serving)
    one = THREE.with_replicas_between(1, 3)
    world = World(serving=serving, waits=waits, holds=False, size=size, of=one, rate_rps=rate_rps)
    *_, (_, last) = world.run(3 * WAIT_SECONDS)
    assert sizes(last)[PAIR.name] == kept
