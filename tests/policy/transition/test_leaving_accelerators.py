"""An accelerator that the spec no longer allows is left within max and budget, and serves as long as possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.domain.service import AcceleratorOption
from tests.builders import ServiceBuilder, accelerator, node, service
from tests.policy.edited import RATES, Edited
from tests.policy.fluid import FluidCluster, steps

OLD = accelerator("h100", cost_per_gpu_hour=3.0)
NEW = accelerator("l40s", cost_per_gpu_hour=3.5)
CHEAP = accelerator("l40s", cost_per_gpu_hour=1.0)
NONE = {"max_replicas": 0}


def of(*options: AcceleratorOption, least: int = 2, most: int = 10, dollars: float | None = None) -> ServiceBuilder:
    builder = service().with_accelerators(*options).with_replicas_between(least, most)
    return builder if dollars is None else builder.costing_at_most(dollars)


def pinned(builder: ServiceBuilder, replicas: int = 2) -> ServiceBuilder:
    return builder.pinned_to(replicas)


@pytest.mark.parametrize("mode", [lambda builder: builder, pinned], ids=["scaled", "pinned"])
class TestAnAcceleratorThatMayHaveNoReplicaAnyMore:
    def test_is_left_one_by_one_where_the_budget_pays_for_no_more(self, mode) -> None:  # type: ignore[no-untyped-def]
        found = Edited(mode(of(OLD, NEW, dollars=7.0)), mode(of(replace(OLD, **NONE), NEW, dollars=7.0)))
        assert found.ends_with == {"l40s": 2}
        assert max(found.dollars()) <= 7.0
        assert min(found.ready) >= 1

    def test_is_left_one_by_one_where_scaling_max_allows_no_more(self, mode) -> None:  # type: ignore[no-untyped-def]
        found = Edited(mode(of(OLD, NEW, most=2)), mode(of(replace(OLD, **NONE), NEW, most=2)))
        assert found.ends_with == {"l40s": 2}
        assert (found.most(), min(found.ready)) == (2, 1)

    def test_serves_until_the_others_do_where_there_is_room(self, mode) -> None:  # type: ignore[no-untyped-def]
        found = Edited(mode(of(OLD, NEW)), mode(of(replace(OLD, **NONE), NEW)))
        assert found.ends_with == {"l40s": 2}
        assert min(found.ready) == 2

    def test_is_left_though_one_replica_alone_is_allowed(self, mode) -> None:  # type: ignore[no-untyped-def]
        def one(builder: ServiceBuilder) -> ServiceBuilder:
            return builder if mode is not pinned else pinned(builder, 1)

        found = Edited(one(of(OLD, NEW, least=1, most=1)), one(of(replace(OLD, **NONE), NEW, least=1, most=1)))
        assert found.ends_with == {"l40s": 1}
        assert found.most() == 1

    def test_is_left_for_cheaper_ones_under_a_lower_budget_at_no_higher_cost(self, mode) -> None:  # type: ignore[no-untyped-def]
        found = Edited(mode(of(OLD, CHEAP, dollars=9.0)), mode(of(OLD, CHEAP, dollars=2.0)), rate=6.0)
        assert found.ends_with == {"l40s": 2}
        assert max(found.dollars()) <= found.dollars()[0]
        assert min(found.ready) >= 1


def test_the_last_replica_that_serves_stays_though_one_after_the_other_fails_to_replace_it() -> None:
    builder = of(accelerator("a100", cost_per_gpu_hour=3.0), least=1)
    cluster = FluidCluster(builder, steps((0, 1.0)), RATES, broken=frozenset({"h100", "l40s"})).run(300)
    cheap = accelerator("h100", cost_per_gpu_hour=1.0), accelerator("l40s", cost_per_gpu_hour=0.7)
    a100 = accelerator("a100", cost_per_gpu_hour=3.0)
    cluster.with_spec(of(a100, *cheap, least=1, dollars=2.1).at_generation(2))
    for _ in range(240):
        cluster.run(cluster.tick)
        assert cluster.replicas("a100") == 1


SLOW = accelerator("a100", cost_per_gpu_hour=1.0)
FAST = accelerator("h100", cost_per_gpu_hour=4.0)
UNLIKE = {"a100": 2.0, "h100": 5.0, "l40s": 5.0, "h100-spot": 5.0}
SPOT = replace(accelerator("h100-spot", cost_per_gpu_hour=1.0), spot=True)


class TestASwitchThatWasChosenBeginsThoughTheOldReplicas:
    def test_fill_scaling_max(self) -> None:
        both = of(SLOW, FAST, least=1, most=2)
        found = Edited.running(FluidCluster(both, steps((0, 1.5), (300, 8.0)), UNLIKE).run(290))
        assert found.sizes[0]["a100"] == 2
        assert found.ends_with == {"h100": 2}
        assert (found.most(), min(found.ready)) == (2, 1)

    def test_take_the_budget(self) -> None:
        dear = replace(SLOW, cost_per_gpu_hour=3.0)
        cluster = FluidCluster(of(dear, least=1, dollars=6.0), steps((0, 3.5)), UNLIKE).run(300)
        cluster.with_spec(of(replace(dear, max_replicas=1), FAST, least=1, dollars=6.0))
        found = Edited.running(cluster)
        assert found.sizes[0] == {"a100": 2}
        assert found.ends_with == {"h100": 1}
        assert min(found.ready) == 1

    def test_take_a_budget_that_was_lowered_while_cheaper_ones_could_not_be_had(self) -> None:
        cheap = accelerator("l40s", cost_per_gpu_hour=1.0)
        cluster = FluidCluster(of(OLD, cheap, dollars=15.0), steps((0, 21.0)), UNLIKE, gpus={"l40s": 0}).run(1000)
        cluster.with_spec(of(OLD, cheap, dollars=9.0))
        cluster.run(1000)
        assert cluster.replicas() == cluster.replicas("h100") == 3
        cluster.give_back("l40s")
        found = Edited.running(cluster, 3000)
        assert set(found.ends_with) == {"l40s"}
        assert max(found.dollars()) <= found.dollars()[0]
        assert min(found.ready) >= 2


class TestAllThatIsLeftIsLookedAtTogether:
    def test_two_accelerators_go_one_by_one_where_scaling_max_allows_no_more(self) -> None:
        spot = of(SPOT, OLD, least=4, most=4).with_on_demand(2)
        cluster = FluidCluster(spot, steps((0, 18.0)), UNLIKE).run(300)
        cluster.with_spec(of(NEW, least=4, most=4))
        found = Edited.running(cluster)
        assert found.sizes[0] == {"h100-spot": 2, "h100": 2}
        assert found.ends_with == {"l40s": 4}
        assert (found.most(), min(found.ready)) == (4, 3)

    def test_spot_replicas_go_first_while_scaling_min_on_demand_asks_for_the_others(self) -> None:
        none = replace(SPOT, **NONE), replace(OLD, **NONE)
        before, after = (of(*options, NEW, least=4, most=4).with_on_demand(2) for options in ((SPOT, OLD), none))
        cluster = FluidCluster(before, steps((0, 18.0)), UNLIKE).run(300)
        cluster.with_spec(after)
        found = Edited.running(cluster)
        assert found.ends_with == {"l40s": 4}
        first = next(sizes for sizes in found.sizes if sizes.get("l40s"))
        assert first == {"h100-spot": 1, "h100": 2, "l40s": 1}

    def test_a_pinned_size_on_two_accelerators_moves_to_a_third(self) -> None:
        both = of(replace(OLD, max_replicas=2), replace(NEW, max_replicas=2), least=1, most=4)
        cluster = FluidCluster(pinned(both, 4), steps((0, 18.0)), UNLIKE).run(300)
        cluster.with_spec(pinned(of(SLOW, least=1, most=4), 4))
        found = Edited.running(cluster)
        assert found.sizes[0] == {"h100": 2, "l40s": 2}
        assert found.ends_with == {"a100": 4}
        assert (found.most(), min(found.ready)) == (4, 3)

    @pytest.mark.parametrize(("most", "dollars"), [(4, None), (10, 12.0)], ids=["max", "budget"])
    def test_those_beyond_a_lower_max_make_room_for_spot_beside_the_rest(self, most, dollars) -> None:  # type: ignore[no-untyped-def]
        cluster = FluidCluster(of(OLD, least=4, most=most, dollars=dollars), steps((0, 18.0)), UNLIKE).run(300)
        two = replace(OLD, max_replicas=2)
        cluster.with_spec(of(two, SPOT, least=4, most=most, dollars=dollars).with_on_demand(2))
        found = Edited.running(cluster)
        assert found.ends_with["h100"] == 2
        assert found.ends_with["h100-spot"] >= 2
        assert min(found.ready) == 3
        assert max(found.dollars()) <= 12.0


def test_replicas_that_pend_may_still_come_and_are_waited_for() -> None:
    cluster = FluidCluster(
        of(OLD, least=4, most=4), steps((0, 18.0)), UNLIKE, gpus={"l40s": 1}, nodes=(node("a", 1, used=1),)
    )
    cluster.run(300).with_spec(of(NEW, least=4, most=10))
    found = Edited.running(cluster, 280)
    assert {sizes["h100"] for sizes in found.sizes} == {4}
    cluster.run(100)
    assert cluster.replicas("h100") == 0


def test_whoever_fails_to_replace_the_last_one_costs_more_than_the_budget_only_while_it_is_tried() -> None:
    cheap = accelerator("l40s", cost_per_gpu_hour=1.2)
    cluster = FluidCluster(of(OLD, least=1, dollars=6.0), steps((0, 1.0)), UNLIKE, broken=frozenset({"l40s"})).run(300)
    cluster.with_spec(of(OLD, cheap, least=1, dollars=2.1))
    found = Edited.running(cluster, 900)
    assert min(found.ready) == 1
    assert max(found.dollars()) <= 3.0 + 1.2
    dear = [dollars > 3.0 for dollars in found.dollars()]
    assert dear.count(True) < 0.5 * len(dear)


def test_a_lower_budget_holds_at_once_where_spot_is_listed_beside_the_accelerator_in_use() -> None:
    before = of(OLD, least=1, dollars=12.0).with_on_demand(2)
    after = of(OLD, SPOT, least=1, dollars=9.0).with_on_demand(2)
    cluster = FluidCluster(before, steps((0, 16.0)), RATES | {"h100-spot": 5.0}).run(300)
    cluster.with_spec(after.at_generation(2))
    cluster.run(200)
    assert 3.0 * cluster.replicas("h100") + cluster.replicas("h100-spot") <= 9.0


def test_a_new_name_for_the_only_accelerator_is_taken_though_one_replica_alone_is_allowed() -> None:
    found = Edited(of(OLD, least=1, most=1), of(replace(OLD, name="a100"), least=1, most=1))
    assert found.ends_with == {"a100": 1}


def test_a_price_above_the_budget_takes_the_last_replica_only_when_a_cheaper_one_serves() -> None:
    cheap, dear = accelerator("h100", cost_per_gpu_hour=20.0), accelerator("h100", cost_per_gpu_hour=21.0)
    before, after = (of(old, CHEAP, least=1, dollars=20.5).pinned_to(1) for old in (cheap, dear))
    found = Edited(before, after)
    assert found.ends_with == {"l40s": 1}
    assert min(found.ready) == 1


def test_a_lower_scaling_max_leaves_as_many_as_it_allows_serving() -> None:
    found = Edited(of(OLD, CHEAP, least=1), of(OLD, CHEAP, least=1, most=1), rate=12.0)
    assert sum(found.ends_with.values()) == 1
    assert min(found.ready) >= 1


def test_a_higher_minimum_moves_to_the_accelerator_that_may_have_as_many_though_the_money_is_short() -> None:
    two = replace(OLD, max_replicas=2)
    dear = accelerator("l40s", cost_per_gpu_hour=4.0)
    found = Edited(of(two, dear, dollars=12.0), of(two, dear, least=3, dollars=12.0))
    assert found.ends_with == {"l40s": 3}
    assert max(found.dollars()) <= 12.0
    assert min(found.ready) >= 1


def test_a_pin_that_finds_no_room_is_told_by_the_decision_and_the_condition() -> None:
    one = replace(OLD, max_replicas=1)
    cluster = FluidCluster(of(one, least=1).pinned_to(3), steps((0, 1.0)), RATES).run(100)
    told = next(c for c in cluster.last().conditions if c.type == "ScalingActive")
    assert told.reason == Reason.PINNED
    assert "allow only 1;" in told.message


def test_a_pin_at_none_from_the_start_creates_nothing_again_and_again() -> None:
    cluster = FluidCluster(of(OLD, least=0).pinned_to(0), steps((0, 0.0)), RATES).run(60)
    assert {decision.verdict.action for _, decision in cluster.decisions} == {Action.HOLD}
