"""Whose turn it is: everybody while services are few, else each once in a scrape interval, and who rises at once."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import ServiceKey
from holdfast.observe.client import PrometheusAddress
from holdfast.observe.prometheus import MOST_QUERIES, PrometheusSource
from holdfast.observe.rota import MOST_ENGINES, Pulse, Rota, read_pulses
from holdfast.observe.slow import AT_ONCE
from holdfast.observe.traffic import TrafficRequest
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, ready, request, row, sample

MANY = [
    request(*(ready(f"s{i:03}-{pod}") for pod in range(20)), key=ServiceKey("prod", f"s{i:03}"))
    for i in range(3 * MOST_ENGINES // 20)
]
EVEN = {asked.key: Pulse(100.0, 0.0) for asked in MANY}


def look(rota: Rota, pulses: dict[ServiceKey, Pulse] = EVEN, everybody: list[TrafficRequest] = MANY) -> set[str]:
    asked = rota.due(everybody, pulses)
    rota.answered(asked, pulses, everybody)
    return {one.key.name for one in asked}


@pytest.fixture
def rota() -> Rota:
    known = Rota(3)
    assert look(known) == {one.key.name for one in MANY}
    return known


def test_few_services_are_all_asked_about_in_every_tick() -> None:
    few = [request(ready("chat-0"))]
    known = Rota(3)
    assert known.turns(few) == 1
    assert [look(known, everybody=few) for _ in range(3)] == [{"chat"}] * 3


def test_many_services_take_equal_turns_within_one_scrape(rota: Rota) -> None:
    turns = [look(rota) for _ in range(3)]
    assert set.union(*turns) == {one.key.name for one in MANY}
    assert {len(turn) for turn in turns} == {len(MANY) // 3}


def test_whose_load_rises_is_asked_about_at_once_and_only_once(rota: Rota) -> None:
    for _ in range(3):
        risen = EVEN | {ServiceKey("prod", "s007"): Pulse(180.0, 0.0), ServiceKey("prod", "s008"): Pulse(100.0, 9.0)}
        assert {"s007", "s008"} <= look(rota, risen)
        look(rota), look(rota), look(rota)


def test_load_that_falls_or_wavers_waits_for_its_turn(rota: Rota) -> None:
    other = {key: Pulse(115.0 if int(key.name[1:]) % 2 else 20.0, 1.0) for key in EVEN}
    assert len(look(rota, other)) == len(MANY) // 3


def test_a_rise_of_everybody_is_asked_about_in_bounded_portions_the_steepest_first(rota: Rota) -> None:
    risen = {key: Pulse(200.0 + int(key.name[1:]), 0.0) for key in EVEN}
    asked = look(rota, risen)
    assert len(MANY) // 3 < len(asked) <= len(MANY) // 2 + 1
    assert {one.key.name for one in MANY[-10:]} <= asked


def test_new_and_changed_services_do_not_wait(rota: Rota) -> None:
    changed = [request(*MANY[0].replicas[1:], key=MANY[0].key), *MANY[1:], request(key=CHAT)]
    assert {"s000", "chat"} <= look(rota, everybody=changed)


def test_who_got_no_answer_is_asked_again(rota: Rota) -> None:
    missed = {one.key.name for one in rota.due(MANY, EVEN)}
    rota.due(MANY, EVEN), rota.due(MANY, EVEN)
    assert missed <= {one.key.name for one in rota.due(MANY, EVEN)}


@given(st.lists(st.floats(), min_size=2, max_size=2), st.lists(st.floats(), min_size=2, max_size=2))
def test_no_number_makes_a_pulse_fail(now: list[float], then: list[float]) -> None:
    rows = [sample(value, metric=name) for value, name in zip(now, ("started", "waiting"), strict=True)]
    before = [sample(value, metric=name) for value, name in zip(then, ("started", "waiting"), strict=True)]
    rise = read_pulses(rows).get(CHAT, Pulse()).rise(read_pulses(before).get(CHAT, Pulse()))
    assert not math.isnan(rise)


async def test_of_many_services_only_those_whose_turn_it_is_are_named_and_the_others_keep_what_was_seen() -> None:
    async with FakePrometheus({}) as fake:
        source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
        try:
            fake.rows["other"] = [
                {"metric": {**row(1)["metric"], "holdfast_service": one.key.name}, "value": [NOW, "1"]} for one in MANY
            ]
            first = await source.observe(MANY, NOW)
            fake.asked.clear()
            second = await source.observe(MANY, NOW + 5)
            await source.settle()
        finally:
            await source.close()
    assert len(fake.asked) <= 12
    kept = [key for key in first if second[key] is first[key]]
    assert len(kept) == 2 * len(MANY) // 3
    named = [form["query"] for form in fake.asked if 'holdfast_service=~"' in form["query"]]
    assert len(named) >= 7
    assert sum(f"{kept[0].name}|" in query for query in named) <= AT_ONCE  # those once a minute


async def test_no_tick_asks_more_than_twelve_queries_whatever_is_asked_beside() -> None:
    trying, counts = [dataclasses.replace(one, on_trial=True) for one in MANY], []
    async with FakePrometheus({"anomalies": [row(1, metric="newcomer", pod="chat-0", instance="i")]}) as fake:
        source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
        try:
            for tick in range(12):
                fake.asked.clear()
                await source.observe(MANY if tick % 2 else trying, NOW + 5 * tick)
                await source.running_by_pod([CHAT], NOW + 5 * tick)
                await source.settle()
                counts.append(len(fake.asked))
        finally:
            await source.close()
    assert max(counts) == MOST_QUERIES == 12


async def test_the_history_of_many_services_is_read_in_portions() -> None:
    many = [request(key=ServiceKey("prod", f"s{i:03}")) for i in range(250)]
    async with FakePrometheus({}) as fake:
        source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
        try:
            await source.history(many, NOW)
        finally:
            await source.close()
    named = [{one.key.name for one in many if one.key.name in form["query"]} for form in fake.asked]
    assert sorted(map(len, named)) == [50, 100, 100]
    assert set.union(*named) == {one.key.name for one in many}
