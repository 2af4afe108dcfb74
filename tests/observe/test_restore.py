"""What Prometheus remembers is read back in the background: once, service by service, whatever goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import pytest

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, MissingHistory, RateSample
from holdfast.observe.series.samples import QueryError
from holdfast.observe.signals.restore import HistoryRestore, Restored
from holdfast.observe.signals.traffic import TrafficRequest
from tests.fakes import FakeHistoryStore, ManualClock
from tests.observe.observe_builders import NOW, SLO, request

SLOW = QueryError("history: Prometheus did not answer in time")


def services(count: int, first: int = 0) -> list[TrafficRequest]:
    keys = [ServiceKey("prod", f"s{index:04}") for index in range(first, first + count)]
    return [dataclasses.replace(request(key=key), uid=f"uid-{key.name}", born_at=NOW - 3600.0) for key in keys]


def at_its_time(asked: TrafficRequest, now: float) -> History:
    return History((RateSample(now, 30.0, 60.0, 60.0, 0.0),), since=NOW - 3600.0)


class Rig:
    """A restore with its store and clock; each look is a tick, 5 s after the one before."""

    def __init__(self, store: FakeHistoryStore) -> None:
        self.store, self.clock = store, ManualClock(NOW)
        self.restore = HistoryRestore(store, self.clock, self.clock)

    async def look(self, asked: Sequence[TrafficRequest], *, use: bool = True, reachable: bool = True) -> Restored:
        seen = self.restore.read(asked, self.clock(), reachable)
        if use:
            self.restore.learned(seen.found)
        self.clock.advance(5.0)
        for _ in range(400):  # what is ready to go on does so
            await asyncio.sleep(0.0)
        return seen


def a_rig(*, answers: bool = True) -> Rig:
    store = FakeHistoryStore(at_its_time)
    if answers:
        store.answers.set()
    return Rig(store)


async def test_nobody_waits_and_every_service_is_missing_until_the_answer_comes() -> None:
    rig, asked = a_rig(answers=False), services(3)
    for _ in range(5):
        assert await rig.look(asked) == Restored({}, {each.key: MissingHistory() for each in asked})
    assert len(rig.store.reads) == 1, "one read is under way, and no other beside it"
    rig.store.answers.set()
    await rig.look(asked)
    seen = await rig.look(asked)
    assert seen.found.keys() == {each.key for each in asked}
    assert not seen.missing


async def test_nothing_is_handed_out_or_read_twice() -> None:
    rig, asked = a_rig(), services(3)
    seen = [await rig.look(asked) for _ in range(30)]
    assert [len(each.found) for each in seen] == [0, 3, *[0] * 28]
    assert not any(each.missing for each in seen[1:])
    assert len(rig.store.reads) == 1


async def test_a_history_that_no_decision_has_used_is_handed_out_again() -> None:
    rig, asked = a_rig(), services(2)
    await rig.look(asked)
    first, second = await rig.look(asked, use=False), await rig.look(asked)
    assert first.found == second.found
    assert len(first.found) == 2
    assert not (await rig.look(asked)).found


async def test_thousands_of_services_come_in_portions_and_a_bounded_number_per_tick() -> None:
    rig, asked = a_rig(), services(1250)
    found = [len((await rig.look(asked)).found) for _ in range(5)]
    assert found == [0, 500, 500, 250, 0]
    assert {len(names) for names in rig.store.reads} == {100, 50}
    assert sorted(itertools.chain.from_iterable(rig.store.reads)) == [each.key.name for each in asked]


async def test_a_service_that_cannot_be_read_is_told_and_keeps_no_other_one_waiting() -> None:
    rig, asked = a_rig(), services(250)
    rig.store.failing["s0042"] = SLOW
    found: set[ServiceKey] = set()
    for _ in range(60):
        seen = await rig.look(asked)
        found |= seen.found.keys()
    assert found == {each.key for each in asked} - {ServiceKey("prod", "s0042")}
    assert seen.missing == {ServiceKey("prod", "s0042"): MissingHistory(str(SLOW))}
    assert rig.store.reads[-1] == ("s0042",)
    assert len(rig.store.reads) < 30, "ever more rarely"


async def test_a_read_that_failed_is_repeated_until_prometheus_answers() -> None:
    rig, asked = a_rig(), services(2)
    rig.store.failing = {"s0000": SLOW, "s0001": SLOW}
    for _ in range(120):
        await rig.look(asked)
    rig.store.failing = {}
    found = [(await rig.look(asked)).found for _ in range(62)]  # 5 min at most between two reads
    assert set().union(*found) == {each.key for each in asked}


@pytest.mark.parametrize("error", [ValueError("garbage"), RecursionError("deep")])
async def test_an_answer_that_nobody_expected_ends_no_restore(error: Exception) -> None:
    rig, asked = a_rig(), services(1)
    rig.store.failing = {"s0000": error}
    await rig.look(asked)
    assert str(error) in (await rig.look(asked)).missing[asked[0].key].failure
    rig.store.failing = {}
    assert any([(await rig.look(asked)).found for _ in range(5)])


class OneIsLeftOut(FakeHistoryStore):
    """The first answer lacks the first service."""

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        whole = await super().history(requests, now)
        return whole if len(self.reads) > 1 else {key: found for key, found in whole.items() if key.name != "s0000"}


async def test_a_service_that_the_answer_leaves_out_is_asked_about_again() -> None:
    rig, asked = Rig(OneIsLeftOut(at_its_time)), services(2)
    rig.store.answers.set()
    seen = [await rig.look(asked) for _ in range(8)]
    assert [set(each.found) for each in seen if each.found] == [{asked[1].key}, {asked[0].key}]


async def test_a_deleted_service_is_dropped_and_another_one_of_its_name_has_no_history() -> None:
    rig, (chat, other) = a_rig(answers=False), services(2)
    await rig.look([chat, other])
    await rig.look([other])
    successor = dataclasses.replace(chat, uid="another", born_at=NOW + 7.0)
    rig.store.answers.set()
    seen = [await rig.look([successor, other]) for _ in range(10)]
    assert [set(each.found) for each in seen if each.found] == [{other.key}]
    assert not any(chat.key in each.missing for each in seen)
    assert len(rig.store.reads) == 1


async def test_a_service_that_becomes_valid_later_is_read_back_too() -> None:
    rig, (chat, mended) = a_rig(), services(2)
    await rig.look([chat])
    await rig.look([chat])
    assert (await rig.look([chat, mended])).missing == {mended.key: MissingHistory()}
    assert (await rig.look([chat, mended])).found.keys() == {mended.key}


async def test_under_another_slo_other_requests_were_good() -> None:
    rig, (chat,) = a_rig(answers=False), services(1)
    await rig.look([chat])
    edited = dataclasses.replace(chat, slo=dataclasses.replace(SLO, ttft_seconds=2.0))
    await rig.look([edited])
    rig.store.answers.set()
    await rig.look([edited])
    assert [bool((await rig.look([edited])).found) for _ in range(3)] == [False, True, False]
    assert len(rig.store.reads) == 2


async def test_a_class_more_or_another_name_of_one_reads_no_history_again() -> None:
    rig, (chat,) = a_rig(answers=False), services(1)
    await rig.look([chat])
    rig.store.answers.set()
    for names in (("premium",), ("gold",), ()):
        await rig.look([dataclasses.replace(chat, slo=dataclasses.replace(SLO, classes=names))])
    assert len(rig.store.reads) == 1


async def test_nothing_is_read_while_not_even_live_queries_are_answered() -> None:
    rig, asked = a_rig(), services(2)
    for _ in range(20):
        assert (await rig.look(asked, reachable=False)).missing.keys() == {each.key for each in asked}
    assert not rig.store.reads
    await rig.look(asked)
    assert len((await rig.look(asked)).found) == 2


async def test_a_history_without_its_older_part_is_accepted_only_after_some_reads() -> None:
    store = FakeHistoryStore(lambda asked, now: dataclasses.replace(at_its_time(asked, now), whole=False))
    store.answers.set()
    rig, asked = Rig(store), services(1)
    seen = [await rig.look(asked) for _ in range(20)]
    assert [each.missing[asked[0].key].failure for each in seen if each.missing][-1]
    assert sum(len(each.found) for each in seen) == 1
    assert len(store.reads) == 3


async def test_a_service_of_unknown_age_is_read_back() -> None:
    rig, asked = a_rig(), [dataclasses.replace(each, born_at=None) for each in services(1)]
    await rig.look(asked)
    assert (await rig.look(asked)).found
