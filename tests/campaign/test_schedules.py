"""Drawn schedules: the same for a seed, every kind of fault in each turn, and none that cannot be played."""

from __future__ import annotations

from collections import Counter

import pytest

from e2e.campaign.schedule import KINDS, MOST_FAULTS, Schedule, Scope, drawn, rounds

NUMBERS = range(10 * len(KINDS))


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    return [drawn(51, number) for number in NUMBERS]


def test_a_seed_and_a_number_always_give_the_same_schedule(schedules: list[Schedule]) -> None:
    assert schedules == [drawn(51, number) for number in NUMBERS]
    assert schedules != [drawn(52, number) for number in NUMBERS]


def test_each_turn_begins_once_with_every_kind_of_fault(schedules: list[Schedule]) -> None:
    for start in range(0, len(NUMBERS), len(KINDS)):
        assert Counter(each.faults[0].kind for each in schedules[start : start + len(KINDS)]) == Counter(KINDS)


def test_there_are_schedules_of_one_fault_and_of_several(schedules: list[Schedule]) -> None:
    assert {len(each.faults) for each in schedules} == set(range(1, MOST_FAULTS + 1))


def test_faults_of_a_schedule_meet_different_parts_of_the_same_scope(schedules: list[Schedule]) -> None:
    for each in schedules:
        kinds = [fault.kind for fault in each.faults]
        assert len({kind.scope for kind in kinds}) == 1
        assert len({kind.part for kind in kinds}) == len(kinds)


def test_nothing_is_asked_of_an_api_server_that_is_away(schedules: list[Schedule]) -> None:
    for each in schedules:
        kinds = [fault.kind for fault in each.faults]
        assert not ({kind.part for kind in kinds} & {"etcd", "api-server"} and any(kind.asks for kind in kinds))


def test_a_fault_lasts_as_long_as_its_kind_may(schedules: list[Schedule]) -> None:
    for fault in (fault for each in schedules for fault in each.faults):
        assert fault.kind.least_seconds <= fault.lasts_seconds <= fault.kind.most_seconds
        assert 0.0 <= fault.at_seconds <= 15.0


def test_schedules_of_the_cluster_are_played_alone_and_the_others_one_a_service(schedules: list[Schedule]) -> None:
    played = rounds(schedules, 4)
    assert sorted(each.number for together in played for each in together) == list(NUMBERS)
    for together in played:
        assert len(together) <= (4 if together[0].scope is Scope.SERVICE else 1)
        assert len({each.scope for each in together}) == 1
