"""What a campaign counts: each check finds what must not be, and nothing where all is well."""

from __future__ import annotations

import dataclasses

import pytest

from e2e.campaign.timeline import (
    CHECKS,
    Bounds,
    Harm,
    Size,
    Timeline,
    Write,
    broken,
    taken_requests,
)
from e2e.load.records import Record, Status

BOUNDS = Bounds(least=1, needed=2, most=4)


def request(status: Status, sent_at: float = 10.0, finished_at: float = 15.0, replica: str = "chat-0") -> Record:
    return Record(0, sent_at, sent_at, None, finished_at, 1155, 211, 0, status, replica=replica)


def lease(at: float, writer: str) -> Write:
    return Write(at, at + 0.1, writer, "leases/holdfast", is_lease=True)


def write(at: float, writer: str) -> Write:
    return Write(at, at + 0.1, writer, "deployments/chat-l40s", is_lease=False)


GOOD = Timeline(
    BOUNDS,
    sizes=[Size(0.0, "chat", 2), Size(5.0, "chat", 4), Size(60.0, "chat", 2), Size(1.0, "other", 1)],
    records=[request("ok"), request("rejected")],
    writes=[lease(0.0, "a"), write(1.0, "a"), lease(20.0, "b"), write(20.2, "b"), lease(40.0, "a"), write(41.0, "a")],
    recovered_seconds=3.0,
)


def found(seen: Timeline) -> set[str]:
    return {name for name, faults in broken(seen).items() if faults}


def test_a_good_timeline_breaks_nothing() -> None:
    assert found(GOOD) == set()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (4, 1), (3, 0), (1, 0)])
def test_a_size_below_what_the_load_needs_is_a_false_scale_down(before: int, after: int) -> None:
    seen = dataclasses.replace(GOOD, sizes=[Size(1.0, "chat", after), Size(0.0, "chat", before)])
    assert "false scale-downs" in found(seen)


def test_the_size_of_another_service_is_no_scale_down() -> None:
    seen = dataclasses.replace(GOOD, sizes=[Size(0.0, "chat", 3), Size(1.0, "other", 1), Size(2.0, "chat", 3)])
    assert found(seen) == set()


@pytest.mark.parametrize("replicas", [0, 5, -1])
def test_a_size_that_the_spec_does_not_allow_is_out_of_bounds(replicas: int) -> None:
    seen = dataclasses.replace(GOOD, sizes=[Size(0.0, "chat", replicas)])
    assert "sizes out of bounds" in found(seen)


@pytest.mark.parametrize("status", ["error", "truncated"])
@pytest.mark.parametrize("replica", ["", "chat-0"])
def test_a_request_without_its_answer_is_lost(status: Status, replica: str) -> None:
    seen = dataclasses.replace(GOOD, records=[request(status, replica=replica)])
    assert found(seen) == {"lost requests"}


def test_a_request_of_a_replica_that_a_fault_took_away_is_not() -> None:
    seen = dataclasses.replace(GOOD, records=[request("truncated")], harms=[Harm("chat-0", 12.0, 30.0)])
    assert (found(seen), taken_requests(seen)) == (set(), 1)


@pytest.mark.parametrize(
    "record",
    [
        request("truncated", replica="chat-1"),
        request("truncated", sent_at=1.0, finished_at=11.9),
        request("error", sent_at=34.0, finished_at=35.0),
        request("error", sent_at=34.0, finished_at=35.0, replica=""),
    ],
)
def test_a_harm_explains_no_other_replica_and_no_other_time(record: Record) -> None:
    seen = dataclasses.replace(GOOD, records=[record], harms=[Harm("chat-0", 12.0, 30.0)])
    assert found(seen) == {"lost requests"}


def test_a_write_after_another_one_took_the_lease_is_a_double_leader() -> None:
    assert found(dataclasses.replace(GOOD, writes=[*GOOD.writes, write(21.0, "a")])) == {"double leaders"}
    assert found(dataclasses.replace(GOOD, writes=[*GOOD.writes, write(30.0, "c")])) == {"double leaders"}


def test_a_write_that_came_before_the_lease_was_given_is_none() -> None:
    under_way = Write(20.05, 20.5, "a", "llmservices/chat/status", is_lease=False)
    assert found(dataclasses.replace(GOOD, writes=[*GOOD.writes, under_way])) == set()


def test_what_is_not_whole_again_is_told() -> None:
    assert found(dataclasses.replace(GOOD, recovered_seconds=None)) == {"not recovered"}


def test_there_are_five_checks() -> None:
    assert len(CHECKS) == 5
