"""Services that leave an accelerator for another one on the same nodes, which are full of services."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.cluster import NodeOffer, Replica, ReplicaPhase
from tests.builders import ServiceBuilder, accelerator, node, service
from tests.policy.contest import Contest

ON_IT = (("kind", "h100"),)
BEFORE, AFTER = (accelerator(name, node_selector=ON_IT) for name in ("h100", "next"))
ON = {"next": "h100"}
FORBIDDEN = accelerator("h100", node_selector=ON_IT, max_replicas=0)


def moving(name: str, size: int, most: int) -> ServiceBuilder:
    return service(name).with_replicas_between(size, most).with_accelerators(BEFORE, AFTER)


def full(gpus: int, most: int, *names: str, size: int = 2) -> Contest:
    """A node full of services of so many replicas, each of which has served for a while."""
    services = {name: (moving(name, size, most), 1.0, size) for name in names}
    contest = Contest(gpus, services, same=ON)
    contest.run(120.0)
    return contest


def leave(contest: Contest, name: str) -> None:
    contest.builders[name] = contest.builders[name].with_accelerators(FORBIDDEN, AFTER)


@pytest.mark.parametrize("most", [3, 4, 6])
def test_who_leaves_takes_the_places_of_its_own_one_by_one(most: int) -> None:
    contest = full(4, most, "moving", "other")
    leave(contest, "moving")
    contest.run(600.0)
    assert contest.size["moving"] == {"h100": 0, "next": 2}
    assert contest.size["other"] == {"h100": 2}
    assert contest.gave_way == []


def test_so_do_all_who_leave_at_once() -> None:
    contest = full(6, 6, "one", "two", "three")
    for name in ("one", "two", "three"):
        leave(contest, name)
    contest.run(900.0)
    assert all(size == {"h100": 0, "next": 2} for size in contest.size.values())


def test_who_comes_first_gets_what_it_is_granted_of_their_places() -> None:
    urgent = service("urgent").with_priority(10).with_accelerators(BEFORE)
    loaded = moving("moving", 1, 6), 10.0, 3
    contest = Contest(5, {"moving": loaded, "other": (moving("other", 2, 6), 1.0, 2)}, same=ON)
    contest.run(300.0)
    leave(contest, "moving")
    contest.join("urgent", urgent, 0.1)
    contest.run(300.0)
    assert contest.size == {"moving": {"h100": 0, "next": 2}, "other": {"h100": 2}, "urgent": {"h100": 1}}
    assert contest.running("urgent") == 1


def test_a_switch_that_nobody_makes_room_for_ends_all_the_same_and_moves_nothing_back_and_forth() -> None:
    last, first = service("moving").with_priority(-5), moving("waiting", 1, 4)
    last = last.with_replicas_between(3, 10).with_accelerators(BEFORE, AFTER)
    contest = Contest(4, {"waiting": (first, 1.0, 1), "moving": (last, 1.0, 3)}, same=ON)
    contest.run(300.0)
    leave(contest, "waiting")
    leave(contest, "moving")
    contest.run(900.0)
    assert contest.size["moving"] == {"h100": 0, "next": 3}
    before = {name: dict(size) for name, size in contest.size.items()}
    for _ in range(100):
        contest.run(5.0)
        assert contest.size["moving"] == before["moving"]


@pytest.mark.parametrize("size", [2, 4, 6])
@pytest.mark.parametrize("waited_seconds", [5.0, 300.0])
@pytest.mark.parametrize("pinned", [False, True])
def test_another_one_that_lacks_what_must_run_may_get_a_slot_and_no_more_than_two_are_freed(
    size: int, waited_seconds: float, pinned: bool
) -> None:
    most = size + 1
    mine = moving("moving", size, most).pinned_to(size) if pinned else moving("moving", size, most)
    other = service("other").with_replicas_between(6, 9).with_accelerators(BEFORE)
    contest = Contest(2 + size, {"moving": (mine, 1.0, size), "other": (other, 1.0, 2)}, same=ON)
    contest.run(waited_seconds)
    leave(contest, "moving")
    for _ in range(110):
        contest.run(5.0)
        assert contest.running("moving") >= max(1, size - 2)
    contest.offered["h100"] += 4
    contest.run(900.0)
    assert contest.size == {"moving": {"h100": 0, "next": size}, "other": {"h100": 6}}


def test_no_more_than_two_go_where_the_targets_wait_already_when_another_one_comes_to_lack() -> None:
    contest = full(6, 8, "moving", "other", size=3)
    leave(contest, "moving")
    contest.run(5.0)
    contest.builders["other"] = moving("other", 5, 8)
    for _ in range(120):
        contest.run(5.0)
        assert contest.running("moving") >= 1


def test_nor_does_the_last_one_go_while_the_first_next_one_starts() -> None:
    services = {"moving": (moving("moving", 1, 2), 1.0, 1), "other": (moving("other", 1, 6), 1.0, 1)}
    contest = Contest(3, services, same=ON, cold_seconds=300.0)
    contest.run(600.0)
    leave(contest, "moving")
    contest.run(20.0)
    assert contest.size["moving"] == {"h100": 1, "next": 1}
    contest.builders["other"] = moving("other", 3, 6)
    for _ in range(120):
        contest.run(5.0)
        assert contest.running("moving") >= 1


def test_of_a_fixed_size_that_becomes_smaller_no_more_go_than_that() -> None:
    pinned = moving("moving", 1, 3).pinned_to(3)
    contest = Contest(4, {"moving": (pinned, 1.0, 3), "other": (moving("other", 1, 6), 1.0, 1)}, same=ON)
    contest.run(300.0)
    leave(contest, "moving")
    contest.run(60.0)
    contest.builders["moving"] = contest.builders["moving"].pinned_to(2)
    for _ in range(60):
        contest.run(5.0)
        assert contest.running("moving") >= 2
    assert contest.size["moving"] == {"h100": 0, "next": 2}


def test_of_a_fixed_size_what_comes_beside_what_it_replaces_takes_nothing_from_others() -> None:
    pinned = moving("pinned", 1, 8).pinned_to(2), 1.0, 2
    urgent = moving("urgent", 1, 8).with_priority(10), 15.0, 4
    contest = Contest(6, {"pinned": pinned, "urgent": urgent}, same=ON, cold_seconds=60.0)
    contest.run(600.0)
    leave(contest, "pinned")
    for _ in range(180):
        contest.run(5.0)
        assert contest.running("urgent") == 4
    assert contest.size["pinned"] == {"h100": 0, "next": 2}


@pytest.mark.parametrize("most", [3, 8])
def test_fixed_sizes_that_leave_together_do_not_wait_for_each_other(most: int) -> None:
    services = {name: (moving(name, 1, most).pinned_to(2), 1.0, 2) for name in ("one", "two", "three")}
    contest = Contest(6, services, same=ON, cold_seconds=60.0)
    contest.run(600.0)
    for name in services:
        leave(contest, name)
    contest.run(1800.0)
    assert all(size == {"h100": 0, "next": 2} for size in contest.size.values())


def test_where_one_alone_is_allowed_it_goes_before_the_next_one_comes_though_others_want_more() -> None:
    services = {"moving": (moving("moving", 1, 1), 1.0, 1), "other": (moving("other", 1, 6), 20.0, 2)}
    contest = Contest(3, services, same=ON)
    contest.run(300.0)
    leave(contest, "moving")
    contest.run(300.0)
    assert contest.size == {"moving": {"h100": 0, "next": 1}, "other": {"h100": 2}}
    assert contest.running("moving") == 1


@pytest.mark.parametrize("of_no_use", ["odd", "broken"])
@pytest.mark.parametrize("pin", [None, 4])
@pytest.mark.parametrize("most", [4, 6, 9])
def test_no_more_go_for_next_ones_that_make_nothing_of_the_first_place(
    most: int, pin: int | None, of_no_use: str
) -> None:
    builder = moving("moving", 4, most) if pin is None else moving("moving", 1, most).pinned_to(pin)
    contest = Contest(4, {"moving": (builder, 1.0, 4)}, same=ON, **{of_no_use: frozenset({"next"})})
    contest.run(120.0)
    leave(contest, "moving")
    for _ in range(400):
        contest.run(5.0)
        assert contest.running("moving") >= 3


@pytest.mark.parametrize("of_no_use", ["odd", "broken"])
@pytest.mark.parametrize("most", [3, 5, 8])
def test_nor_do_they_beside_another_service(most: int, of_no_use: str) -> None:
    services = {
        "moving": (moving("moving", 3, most).with_priority(5), 1.0, 3),
        "other": (moving("other", 2, 4), 1.0, 2),
    }
    contest = Contest(5, services, same=ON, **{of_no_use: frozenset({"next"})})
    contest.run(120.0)
    leave(contest, "moving")
    for _ in range(400):
        contest.run(5.0)
        assert contest.running("moving") >= 2
        assert contest.running("other") == 2


@pytest.mark.parametrize("pin", [None, 4])
@pytest.mark.parametrize("most", [4, 6, 9])
def test_no_second_one_goes_at_once_where_strangers_get_the_first_place(most: int, pin: int | None) -> None:
    builder = moving("moving", 4, most) if pin is None else moving("moving", 1, most).pinned_to(pin)
    contest = Contest(4, {"moving": (builder, 1.0, 4)}, same=ON)
    contest.run(120.0)
    contest.strangers = 1
    leave(contest, "moving")
    for _ in range(240):
        contest.run(5.0)
        assert contest.running("moving") >= 3
    assert contest.size["moving"]["h100"] == 0


@pytest.mark.parametrize("most", [4, 6, 9])
def test_a_queue_of_strangers_gets_one_place_in_ten_minutes(most: int) -> None:
    contest = Contest(8, {"moving": (moving("moving", 8, 8 + most), 1.0, 8)}, same=ON)
    contest.run(120.0)
    contest.strangers = 20
    leave(contest, "moving")
    contest.run(600.0)
    assert contest.running("moving") >= 6, "one for scaling.max, and one for the next ones that wait"
    contest.run(1200.0)
    assert contest.running("moving") >= 5


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_ones_of_another_size_get_as_many_places_as_they_need(old: int, new: int) -> None:
    before, after = (replace(option, gpus_per_replica=gpus) for option, gpus in ((BEFORE, old), (AFTER, new)))
    builder = service("moving").with_replicas_between(2, 4).with_accelerators(before, after)
    contest = Contest(4, {"moving": (builder, 1.0, 4 // old)}, same=ON)
    contest.run(120.0)
    contest.builders["moving"] = builder.with_accelerators(replace(before, max_replicas=0), after)
    contest.run(300.0)
    assert contest.size["moving"] == {"h100": 0, "next": 2}
    assert contest.running("moving") == 2


@pytest.mark.parametrize("pin", [None, 8])
def test_nor_do_they_where_some_of_the_next_ones_serve_already(pin: int | None) -> None:
    builder = moving("moving", 8, 16) if pin is None else moving("moving", 1, 16).pinned_to(pin)
    contest = Contest(8, {"moving": (builder, 1.0, 8)}, same=ON, cold_seconds=60.0, drain_seconds=30.0)
    contest.run(300.0)
    leave(contest, "moving")
    contest.run(160.0)
    contest.strangers = 20
    contest.run(900.0)
    assert contest.running("moving") >= 6


class OneFails(Contest):
    """The second replica of the next accelerator never serves."""

    def _older(self, pod: Replica) -> Replica:
        nexts = sorted(p.name for pods in self.pods.values() for p in pods if p.accelerator == "next" and p.node)
        if pod.name in nexts[1:2]:
            return replace(pod, phase=ReplicaPhase.FAILING, reason="CrashLoopBackOff")
        return super()._older(pod)


def test_one_that_fails_beside_others_that_serve_keeps_nobody_for_long() -> None:
    contest = OneFails(6, {"moving": (moving("moving", 6, 12), 1.0, 6)}, same=ON)
    contest.run(300.0)
    leave(contest, "moving")
    for _ in range(300):
        contest.run(5.0)
        assert contest.running("moving") >= 4
    assert contest.size["moving"]["h100"] == 0


class RoomApart(Contest):
    """A node has a GPU free that next ones could have, but for something else that they need."""

    def nodes(self) -> tuple[NodeOffer, ...]:
        return (*super().nodes(), node("apart", 1, kind="h100"))


@pytest.mark.parametrize("pin", [None, 4])
def test_room_elsewhere_that_next_ones_do_not_take_keeps_nobody(pin: int | None) -> None:
    builder = moving("moving", 4, 8) if pin is None else moving("moving", 1, 8).pinned_to(pin)
    contest = RoomApart(4, {"moving": (builder, 1.0, 4)}, same=ON, cold_seconds=60.0)
    contest.run(300.0)
    leave(contest, "moving")
    contest.run(900.0)
    assert contest.size["moving"] == {"h100": 0, "next": 4}


def test_a_smaller_accelerator_of_which_nothing_is_left_does_not_count() -> None:
    before, after = replace(BEFORE, gpus_per_replica=4), replace(AFTER, gpus_per_replica=4)
    gone, left = accelerator("gone", node_selector=ON_IT, max_replicas=0), replace(before, max_replicas=0)
    builder = service("moving").with_replicas_between(4, 8).with_accelerators(before, after, gone)
    contest = Contest(16, {"moving": (builder, 1.0, 4)}, same={**ON, "gone": "h100"})
    contest.size["moving"]["gone"] = 0
    contest.run(120.0)
    contest.strangers = 20
    contest.builders["moving"] = builder.with_accelerators(left, after, gone)
    contest.run(400.0)
    assert contest.running("moving") == 3
