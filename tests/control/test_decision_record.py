"""What a decision was made from, written down: the same decision comes of it again."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.status import decision_record
from holdfast.control.status.decision_record import DecisionRecord, Unreadable, read, record_of, written
from holdfast.control.status.replay import decided_again
from holdfast.domain.cluster import GpuCap, NodeOffer
from holdfast.domain.decision import Decision
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.domain.taints import Taint, Toleration
from holdfast.policy.decide import decide
from holdfast.policy.memory import FleetContext, Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceView, a_snapshot, accelerator, node, replicas, service, traffic

CHAT = service().with_accelerators(accelerator("h100", cost_per_gpu_hour=2.95), accelerator("l40s"))
OTHER = service("other").with_accelerators(accelerator("h100"))
SETTINGS = PolicySettings()


def day(rates: list[float], state: SignalState = SignalState.FRESH) -> list[tuple[DecisionRecord, Decision]]:
    """The records of a service's decisions under such loads, a minute each, with what was decided."""
    memory, made = Memory(), []
    for minute, rate in enumerate(rates):
        views = (ServiceView(CHAT, traffic(rate, state=state), replicas(2)), ServiceView(OTHER))
        snapshot = a_snapshot(*views, now=NOW + 60.0 * minute, nodes=(node("n1", 8),))
        kept = record_of(CHAT.spec.key, snapshot, memory, SETTINGS, FleetContext())
        decisions, memory = decide(snapshot, memory, SETTINGS)
        made.append((kept, next(decision for decision in decisions if decision.key == CHAT.spec.key)))
    return made


@given(st.lists(st.sampled_from([0.0, 1.0, 5.0, 60.0]), min_size=1, max_size=12), st.sampled_from(SignalState))
@settings(max_examples=15)
def test_the_same_decision_comes_of_a_record_again(rates: list[float], state: SignalState) -> None:
    for kept, decided in day(rates, state):
        again = read(written(kept))
        assert again == kept
        assert decided_again(again) == decided


def test_a_record_is_small_and_of_its_own_service_alone() -> None:
    kept, _ = day([5.0] * 30)[-1]
    assert [each.spec.key for each in kept.snapshot.services] == [CHAT.spec.key]
    assert 0 < len(written(kept)) < 8192


def test_of_nodes_it_has_what_decides_and_nothing_else() -> None:
    picky = service().with_accelerators(accelerator("h100", node_selector=(("zone", "a"),)))
    nodes = (node("n1", 8, used=3, zone="a", owner="secret-project"), NodeOffer("n2", (), (("amd.com/gpu", 8),)))
    kept = record_of(CHAT.spec.key, a_snapshot(ServiceView(picky), nodes=nodes), Memory(), SETTINGS, FleetContext())
    assert kept.snapshot.nodes == (node("n1", 8, used=3, zone="a"),)


def test_of_caps_it_has_nothing() -> None:
    capped = replace(a_snapshot(ServiceView(CHAT)), gpu_caps=(GpuCap("secret-project", "nvidia.com/gpu", 4, "quota"),))
    assert "secret-project" not in str(record_of(CHAT.spec.key, capped, Memory(), SETTINGS, FleetContext()))


def test_of_taints_it_has_the_names_of_those_that_the_service_tolerates() -> None:
    tolerated, closed = Taint("gpu", "", "NoSchedule"), Taint("owner", "secret-project", "NoSchedule")
    picky = service().with_accelerators(
        accelerator("h100", tolerations=(Toleration("gpu", "Exists"),)), accelerator("l40s")
    )
    nodes = (node("n1", 8, taints=(tolerated,)), node("n2", 8, taints=(tolerated, closed)))
    kept = record_of(CHAT.spec.key, a_snapshot(ServiceView(picky), nodes=nodes), Memory(), SETTINGS, FleetContext())
    assert "secret-project" not in str(kept)
    assert [each.taints for each in kept.snapshot.nodes] == [(tolerated,), (tolerated, Taint("", "", "NoSchedule"))]
    whole, told = Inventory(nodes), Inventory(kept.snapshot.nodes)
    for option in picky.spec.accelerators:
        assert told.room(option) == whole.room(option)


def test_tolerating_everything_tells_no_names_of_taints() -> None:
    nodes = (node("n1", 8, taints=(Taint("owner", "secret-project", "NoSchedule"),)),)
    picky = service().with_accelerators(accelerator("h100", tolerations=(Toleration("", "Exists"),)))
    kept = record_of(CHAT.spec.key, a_snapshot(ServiceView(picky), nodes=nodes), Memory(), SETTINGS, FleetContext())
    assert "secret-project" not in str(kept)
    (option,) = picky.spec.accelerators
    assert Inventory(kept.snapshot.nodes).room(option) == Inventory(nodes).room(option)


def test_a_cluster_too_large_for_an_event_is_not_recorded() -> None:
    kept, _ = day([5.0])[0]
    nodes = tuple(node(f"node-{zlib.crc32(bytes([n % 251, n // 251]))}", n) for n in range(20_000))
    assert written(replace(kept, snapshot=replace(kept.snapshot, nodes=nodes))) == ""


def test_what_a_snapshot_lacks_has_no_record() -> None:
    with pytest.raises(KeyError):
        record_of(ServiceKey("prod", "gone"), a_snapshot(), Memory(), SETTINGS, FleetContext())


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "aGVsbG8=",
        "é",
        base64.b64encode(zlib.compress(b"1" * 5000)).decode(),
        base64.b64encode(zlib.compress(b"{")).decode(),
        base64.b64encode(zlib.compress(b"\xff")).decode(),
        base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        base64.b64encode(zlib.compress(b" " * 5_000_000)).decode(),
        base64.b64encode(zlib.compress(b"{}" * 999)[:-3]).decode(),
        packed({}),
        packed([1, 2]),
        packed({"snapshot": {"now": "then"}, "memory": None, "settings": {}}),
    ],
)
def test_what_is_no_record_is_unreadable_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


def test_a_record_of_a_version_that_knew_no_allocation_is_unreadable() -> None:
    kept, _ = day([5.0])[0]
    older = json.loads(zlib.decompress(base64.b64decode(written(kept))))
    del older["context"]
    with pytest.raises(Unreadable, match="another version"):
        read(packed(older))


def test_a_record_of_no_service_is_unreadable() -> None:
    kept, _ = day([5.0])[0]
    with pytest.raises(Unreadable, match="not of a single service"):
        read(written(replace(kept, snapshot=a_snapshot())))


def test_nothing_is_recorded_where_nobody_asks() -> None:
    assert decision_record.nothing(CHAT.spec.key) == ""
