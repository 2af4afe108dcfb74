"""Between accelerators capacity is handed over piece by piece, by one way for scaled and pinned sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.decision import Action
from holdfast.domain.service import AcceleratorOption
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import Contest
from tests.policy.edited import Edited
from tests.policy.fluid import FluidCluster, steps

H100 = accelerator("h100", cost_per_gpu_hour=3.0)
L40S = accelerator("l40s", cost_per_gpu_hour=1.0)
A100 = accelerator("a100", cost_per_gpu_hour=1.0)
SPOT = replace(accelerator("h100-spot", cost_per_gpu_hour=1.0), spot=True)
RATES = {"a100": 2.0, "h100": 5.0, "l40s": 5.0, "h100-spot": 5.0}
NOBODY = frozenset[str]()


def on(name: str) -> AcceleratorOption:
    """An accelerator on nodes of its own."""
    return accelerator(name, cost_per_gpu_hour=1.0, node_selector=(("kind", name),))


def of(
    *options: AcceleratorOption,
    least: int = 2,
    most: int = 10,
    dollars: float | None = None,
    floor: int = 0,
    pin: int | None = None,
) -> ServiceBuilder:
    builder = service().with_accelerators(*options).with_replicas_between(least, most).with_on_demand(floor)
    builder = builder if dollars is None else builder.costing_at_most(dollars)
    return builder if pin is None else builder.pinned_to(pin)


def after(
    before: ServiceBuilder,
    edit: ServiceBuilder,
    rate: float,
    *,
    broken: frozenset[str] = NOBODY,
    seconds: float = 600.0,
) -> Edited:
    cluster = FluidCluster(before, steps((0, rate)), RATES, broken=broken).run(300)
    cluster.with_spec(edit)
    return Edited.running(cluster, seconds)


class TestAHigherFloorOffSpot:
    @pytest.mark.parametrize(("most", "dollars"), [(2, None), (10, 6.0)], ids=["max", "budget"])
    def test_sends_no_spot_replica_away_before_others_serve(self, most, dollars) -> None:  # type: ignore[no-untyped-def]
        specs = [of(SPOT, H100, most=most, dollars=dollars, floor=floor) for floor in (0, 2)]
        found = after(*specs, rate=6.0)
        assert found.sizes[0] == {"h100-spot": 2}
        assert found.ends_with == {"h100": 2}
        assert min(found.ready) == 1

    def test_leaves_them_serving_where_there_are_no_other_nodes(self) -> None:
        specs = [of(SPOT, H100, dollars=6.0, floor=floor) for floor in (0, 2)]
        cluster = FluidCluster(specs[0], steps((0, 6.0)), RATES, gpus={"h100": 0}).run(300)
        cluster.with_spec(specs[1])
        assert min(Edited.running(cluster, 1500).ready) == 2


@pytest.mark.parametrize("pin", [None, 3], ids=["scaled", "pinned"])
def test_spot_beside_regular_replicas_begins_though_the_budget_pays_for_no_regular_one_yet(pin: int | None) -> None:
    dear = accelerator("l40s", cost_per_gpu_hour=5.0)
    both = replace(dear, max_replicas=0), SPOT, H100
    found = after(of(dear, least=1, dollars=7.0), of(*both, least=1, dollars=7.0, floor=2, pin=pin), rate=10.0)
    assert found.ends_with == {"h100-spot": 1, "h100": 2}
    assert max(found.dollars()) <= 7.0
    assert min(found.ready) == 1


class TestRoomForAFew:
    def test_takes_no_more_from_many_than_it_needs(self) -> None:
        forbidden = replace(H100, max_replicas=0), replace(L40S, max_replicas=2, cost_per_gpu_hour=3.0)
        found = after(of(H100), of(*forbidden), rate=38.0, broken=frozenset({"l40s"}))
        assert found.sizes[0] == {"h100": 9}
        assert min(found.ready) >= 8

    def test_takes_no_more_where_nobody_knows_what_the_old_ones_carry(self) -> None:
        found = after(of(A100, most=10), of(H100, most=10), rate=14.0)
        assert found.sizes[1] == {"a100": 9, "h100": 1}
        assert found.ends_with == {"h100": 4}


class TestWhatDoesNotServe:
    @pytest.mark.parametrize("pin", [None, 1], ids=["scaled", "pinned"])
    def test_makes_room_at_once_where_it_is_forbidden_and_nobody_serves(self, pin: int | None) -> None:
        before, edit = of(L40S, least=1, most=1), of(H100, least=1, most=1, pin=pin)
        cluster = FluidCluster(before, steps((0, 3.0)), RATES, cold_start=1200.0).run(60)
        cluster.with_spec(edit)
        cluster.run(5)
        assert {name: size for name, size in cluster.size.items() if size} == {"h100": 1}

    def test_leaves_a_pinned_size_to_what_can_be_had(self) -> None:
        found = after(of(A100, pin=2), of(L40S, H100, pin=2), rate=2.0, broken=frozenset({"l40s"}))
        assert found.ends_with == {"h100": 2}
        assert min(found.ready) == 2

    def test_does_not_take_turns_with_another_that_fails(self) -> None:
        one, other = replace(H100, max_replicas=1), replace(L40S, max_replicas=1)
        broken = frozenset({"h100", "l40s"})
        found = after(of(A100, most=2, pin=2), of(one, other, most=2, pin=2), rate=2.0, broken=broken, seconds=3000)
        changes = sum(one != other for one, other in zip(found.sizes, found.sizes[1:], strict=False))
        assert changes <= 8  # a setback lasts 10 min at first
        assert min(found.ready) == 1


class Unseen(FluidCluster):
    """Shows the Deployment of an accelerator as one that rolls out for ever, or as gone while its pods are there."""

    gone = False

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        (chat,) = shown.services
        rolling = tuple(replace(each, rolling_out=each.accelerator == "h100") for each in chat.placements)
        there = tuple(each for each in rolling if each.accelerator != "h100" or not self.gone)
        return replace(shown, services=(_with(chat, there),))


def _with(chat: ServiceSnapshot, placements) -> ServiceSnapshot:  # type: ignore[no-untyped-def]
    return replace(chat, placements=placements)


@pytest.mark.parametrize("most", [2, 10])
@pytest.mark.parametrize("pin", [None, 2], ids=["scaled", "pinned"])
def test_a_rollout_that_is_stuck_keeps_no_accelerator_that_is_forbidden(pin: int | None, most: int) -> None:
    cluster = Unseen(of(H100, most=most, pin=pin), steps((0, 3.0)), RATES).run(300)
    cluster.with_spec(of(L40S, most=most, pin=pin))
    assert Edited.running(cluster).ends_with == {"l40s": 2}


@pytest.mark.parametrize("pin", [None, 2], ids=["scaled", "pinned"])
def test_pods_whose_deployment_is_gone_are_not_asked_for_again_where_they_are_forbidden(pin: int | None) -> None:
    cluster = Unseen(of(H100, pin=pin), steps((0, 3.0)), RATES).run(300)
    cluster.with_spec(of(replace(H100, max_replicas=0), L40S, pin=pin))
    cluster.gone = True
    cluster.run(5)
    verdict = cluster.last().verdict
    assert verdict.action is Action.CREATE
    assert [target.accelerator for target in verdict.targets] == ["l40s"]


def test_a_pin_uses_all_that_the_budget_pays_for() -> None:
    found = after(of(H100, dollars=12.0, pin=4), of(H100, L40S, dollars=7.0, pin=4), rate=2.0)
    assert sum(found.ends_with.values()) == 4
    assert found.dollars()[-1] <= 7.0
    assert min(found.ready) >= 3


class TestALowerMaxOfTheAcceleratorInUse:
    @pytest.mark.parametrize(("left", "dollars"), [(2, None), (4, 12.0)], ids=["max", "budget"])
    def test_is_kept_as_others_come(self, left: int, dollars: float | None) -> None:
        h100, l40s = replace(H100, cost_per_gpu_hour=1.0), replace(L40S, cost_per_gpu_hour=2.0)
        edit = of(replace(h100, max_replicas=left), l40s, most=6, dollars=dollars)
        found = after(of(h100, l40s, most=6, dollars=dollars), edit, rate=24.0, seconds=900)
        assert found.sizes[0] == {"h100": 6}
        assert found.ends_with == {"l40s": 6}
        assert min(found.ready) == 5
        assert max(found.dollars()) <= 12.0

    def test_waits_where_others_would_need_more_room_than_it_makes(self) -> None:
        cheap, dear = A100, accelerator("h100", cost_per_gpu_hour=8.0)
        edit = of(replace(cheap, max_replicas=5), dear, least=1, dollars=8.0)
        found = after(of(cheap, dear, least=1, dollars=8.0), edit, rate=9.0, seconds=300)
        assert found.ends_with == {"a100": 5}
        assert min(found.ready) == 5


def test_nobody_who_serves_goes_for_another_accelerator_while_metrics_are_away() -> None:
    dark = lambda now: SignalState.UNREACHABLE if now > 300.0 else SignalState.FRESH  # noqa: E731
    cluster = FluidCluster(of(H100, least=4, most=4), steps((0, 18.0)), RATES, sight=dark).run(310)
    cluster.with_spec(of(L40S, least=4, most=4))
    assert min(Edited.running(cluster, 300).ready) == 4


def test_what_rolls_out_stays_whole_where_it_is_left_by_choice() -> None:
    cluster = Unseen(of(H100), steps((0, 8.0)), RATES).run(300)
    before = cluster.replicas("h100")
    cluster.with_spec(of(H100, L40S))
    cluster.run(900)
    assert cluster.replicas("l40s") >= 2
    assert cluster.replicas("h100") == before


def test_growing_load_builds_the_accelerator_that_carries_it_while_there_is_room() -> None:
    slow = accelerator("l40s", cost_per_gpu_hour=1.0)
    found = Edited.running(
        FluidCluster(
            of(slow, replace(H100, cost_per_gpu_hour=4.0), least=1, most=6), steps((0, 32.0)), RATES | {"l40s": 2.0}
        )
    )
    assert max(sizes.get("l40s", 0) for sizes in found.sizes) == 1
    assert found.ends_with == {"h100": 6}


def test_a_pin_goes_back_to_what_serves_where_the_cheaper_ones_fail() -> None:
    edit = of(H100, L40S, dollars=6.0, pin=4)
    found = after(of(H100, dollars=6.0, pin=2), edit, rate=3.0, broken=frozenset({"l40s"}), seconds=400)
    assert found.ends_with == {"h100": 2}


class TestTwoThatLackNodes:
    def test_take_turns_ever_more_rarely_and_keep_two_serving(self) -> None:
        both = of(replace(H100, cost_per_gpu_hour=2.0), replace(A100, cost_per_gpu_hour=2.0), least=3, most=3)
        cluster = FluidCluster(both, steps((0, 1.0)), RATES, gpus={"h100": 2, "a100": 1}).run(100)
        found = Edited.running(cluster, 6000)
        assert min(found.ready) == 2
        assert len(cluster.changes(3200)) <= 8

    def test_are_believed_to_have_what_they_had_when_they_proved_short(self) -> None:
        dear = replace(L40S, cost_per_gpu_hour=3.0, max_replicas=3)
        load = steps((0, 2.0), (300, 17.0), (620, 3.0), (1000, 9.0))
        cluster = FluidCluster(of(replace(H100, cost_per_gpu_hour=1.0), dear, least=1), load, RATES, gpus={"h100": 3})
        cluster.run(2000)
        used = {target.accelerator for at, told in cluster.decisions if at > 900 for target in told.verdict.targets}
        assert used == {"h100"}


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_pin_that_finds_too_few_nodes_goes_on_elsewhere(nodes: int) -> None:
    both = of(H100, replace(L40S, cost_per_gpu_hour=9.0), least=1, pin=3)
    cluster = FluidCluster(both, steps((0, 1.0)), RATES, gpus={"h100": nodes}).run(700)
    assert (cluster.replicas("h100"), cluster.replicas("l40s")) == (nodes, 3 - nodes)


def test_what_holds_the_new_ones_back_is_told_as_the_spec_says_it() -> None:
    cluster = FluidCluster(of(H100, most=6), steps((0, 23.0)), RATES).run(300)
    cluster.with_spec(of(L40S, most=8))
    cluster.run(5)
    assert (
        "6 replicas wanted, scaling.max is 8 together with 6 source replicas that still serve"
    ) in cluster.last().verdict.message
    cluster = FluidCluster(of(H100, dollars=12.0), steps((0, 18.0)), RATES).run(300)
    cluster.with_spec(of(replace(H100, max_replicas=0), replace(L40S, cost_per_gpu_hour=2.5), dollars=9.0))
    cluster.run(5)
    assert (
        "budget.maxCostPerHour $9 pays for 1 together with 3 source replicas that still serve"
        in cluster.last().verdict.message
    )


BATCH = service("batch").with_accelerators(on("h100")).with_replicas_between(1, 20).with_priority(10)
"""Takes all h100 that there are from whoever comes after it."""


def contest(chat: ServiceBuilder, edit: ServiceBuilder, replicas: int, rate: float) -> Contest:
    """Eight h100 that BATCH wants all, chat on a100 and edited."""
    found = Contest({"h100": 8, "a100": 6}, {"batch": (BATCH, 36.0, 8), "chat": (chat, rate, replicas)})
    found.run(300)
    found.builders["chat"] = edit.at_generation(2)
    return found


class TestWhoComesAfterOthers:
    def test_serves_on_with_what_it_has_and_asks_for_no_more_than_it_is_granted(self) -> None:
        chat = service("chat").with_accelerators(on("a100")).with_replicas_between(3, 20)
        edit = chat.with_accelerators(replace(on("a100"), max_replicas=0), on("h100"))
        rivals = contest(chat, edit, 3, 1.0)
        rivals.run(200)
        assert (rivals.running("batch"), rivals.running("chat", "a100")) == (8, 3)
        assert not rivals.size["chat"].get("h100")

    def test_gives_up_nothing_to_make_room_for_what_it_is_not_granted(self) -> None:
        chat = service("chat").with_accelerators(on("a100")).with_replicas_between(1, 4)
        edit = chat.with_accelerators(replace(on("a100"), max_replicas=0), on("h100"))
        rivals = contest(chat, edit, 4, 15.0)
        rivals.run(200)
        assert rivals.running("chat", "a100") == 4

    def test_is_not_moved_away_where_it_may_have_one_replica_alone(self) -> None:
        chat = service("chat").with_accelerators(on("h100"), on("a100")).with_replicas_between(1, 1)
        rivals = Contest({"h100": 8, "a100": 6}, {"batch": (BATCH, 34.0, 7), "chat": (chat, 3.0, 1)})
        for _ in range(60):
            rivals.run(5)
            assert rivals.running("chat", "h100") == 1
            assert not rivals.size["chat"].get("a100")


def test_load_that_changes_between_two_that_both_lack_room_moves_nothing_back_and_forth() -> None:
    both = of(replace(H100, cost_per_gpu_hour=4.0), replace(A100, cost_per_gpu_hour=3.0), least=1, dollars=9.0)
    for seed in range(4):
        cluster = FluidCluster(both, steps((0, 8.2)), RATES | {"a100": 3.0}, seed=seed).run(3600)
        assert len(cluster.changes(600)) <= 2
