"""Whose turn it is: everybody while services are few, else each once in a scrape interval, and who rises at once."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.observe.series import combined_queries, queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.promql import OURS
from holdfast.observe.series.samples import QueryResult
from holdfast.observe.signals.poll_scheduler import MOST_ENGINES, MOST_PRESSING, PollScheduler, Pulse, read_pulses
from holdfast.observe.signals.prometheus import MOST_QUERIES, PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, FAST, NOW, WINDOW, ready, request, row, sample

PODS = 20
MANY = [
    request(*(ready(f"s{i:03}-{pod}") for pod in range(PODS)), key=ServiceKey("prod", f"s{i:03}"))
    for i in range(3 * MOST_ENGINES // PODS)
]
SHARE = len(MANY) // 3
EVEN = {asked.key: Pulse(100.0, 0.0) for asked in MANY}
TRUST = 45.0


class Ticks:
    """One rota, and the ticks of a loop: who presses is asked about, then whose turn it is."""

    def __init__(self) -> None:
        self.rota, self.now = PollScheduler(3, TRUST), NOW

    def look(
        self,
        pulses: dict[ServiceKey, Pulse] = EVEN,
        everybody: Sequence[TrafficRequest] = MANY,
        answered: bool = True,
        seconds: float = 5.0,
    ) -> tuple[set[str], set[str]]:
        """Names of those who press, and of those whose turn it is."""
        self.now += seconds
        pressing = self.rota.pressing(everybody, pulses, self.now)
        due = self.rota.due(everybody, pressing)
        for asked in (pressing, due) if answered else ():
            self.rota.answered(asked, pulses, everybody, self.now)
        return {one.key.name for one in pressing}, {one.key.name for one in due}


@pytest.fixture
def ticks() -> Ticks:
    known = Ticks()
    pressing, due = known.look()
    assert (pressing, due) == ({one.key.name for one in MANY}, set()), "at first all are new"
    return known


def test_few_services_take_no_turns() -> None:
    assert PollScheduler(3, TRUST).turns([request(ready("chat-0"))]) == 1
    assert PollScheduler(3, TRUST).turns(MANY) == 3


def test_many_services_take_equal_turns_within_one_scrape_and_nobody_presses(ticks: Ticks) -> None:
    for _ in range(3):
        looks = [ticks.look() for _ in range(3)]
        assert [pressing for pressing, _ in looks] == [set()] * 3
        assert set.union(*(due for _, due in looks)) == {one.key.name for one in MANY}
        assert {len(due) for _, due in looks} == {SHARE}


def test_whose_load_rises_presses_once(ticks: Ticks) -> None:
    risen = EVEN | {ServiceKey("prod", "s007"): Pulse(180.0, 0.0), ServiceKey("prod", "s008"): Pulse(100.0, 9.0)}
    looks = [ticks.look(risen) for _ in range(4)]
    assert [pressing for pressing, _ in looks] == [{"s007", "s008"}, set(), set(), set()]
    assert len(looks[0][1]) == SHARE - 2, "no more in all than without them"


def test_who_pressed_has_the_next_turn_a_scrape_later(ticks: Ticks) -> None:
    ticks.look(), ticks.look()
    risen = EVEN | {MANY[0].key: Pulse(180.0, 0.0)}
    assert ticks.look(risen)[0] == {"s000"}
    looks = [ticks.look(risen)[1] for _ in range(3)]
    assert ["s000" in due for due in looks] == [False, False, True]


def test_load_that_falls_or_wavers_waits_for_its_turn(ticks: Ticks) -> None:
    other = {key: Pulse(115.0 if int(key.name[1:]) % 2 else 20.0, 1.0) for key in EVEN}
    assert ticks.look(other)[0] == set()


def test_a_rise_of_everybody_presses_in_bounded_portions_the_steepest_first(ticks: Ticks) -> None:
    risen = {key: Pulse(200.0 + int(key.name[1:]), 0.0) for key in EVEN}
    pressing, due = ticks.look(risen)
    assert pressing == {one.key.name for one in MANY[-MOST_PRESSING // PODS :]}
    assert len(due) == SHARE - len(pressing)


def test_one_service_may_press_however_large_it_is() -> None:
    huge = request(*(ready(f"huge-{pod}") for pod in range(3 * MOST_PRESSING)), key=ServiceKey("prod", "huge"))
    rota, everybody = PollScheduler(3, TRUST), [huge, *MANY]
    rota.answered(everybody, EVEN, everybody, NOW)
    assert rota.pressing(everybody, EVEN | {huge.key: Pulse(500.0)}, NOW + 5) == [huge]


def test_new_services_press_and_changed_ones_have_the_next_turn(ticks: Ticks) -> None:
    ticks.look()
    changed = [request(*MANY[0].replicas[1:], key=MANY[0].key), *MANY[1:], request(key=CHAT)]
    pressing, due = ticks.look(everybody=changed)
    assert pressing == {"chat"}
    assert "s000" in due
    assert "s000" not in ticks.look(everybody=changed)[1]


def test_who_got_no_answer_is_asked_again(ticks: Ticks) -> None:
    missed = ticks.look(answered=False)[1]
    assert ticks.look()[1] == missed


def test_what_was_seen_too_long_ago_presses_like_what_is_new(ticks: Ticks) -> None:
    assert ticks.look(seconds=TRUST, answered=False)[0] == set()
    assert ticks.look(seconds=0.1)[0] == {one.key.name for one in MANY}


def test_who_is_gone_is_forgotten(ticks: Ticks) -> None:
    ticks.look(everybody=MANY[1:])
    assert ticks.look()[0] == {"s000"}


@given(st.lists(st.floats(), min_size=2, max_size=2), st.lists(st.floats(), min_size=2, max_size=2))
def test_no_number_makes_a_pulse_fail(now: list[float], then: list[float]) -> None:
    rows = [sample(value, metric=name) for value, name in zip(now, ("started", "waiting"), strict=True)]
    before = [sample(value, metric=name) for value, name in zip(then, ("started", "waiting"), strict=True)]
    rise = read_pulses(rows).get(CHAT, Pulse()).rise(read_pulses(before).get(CHAT, Pulse()))
    assert not math.isnan(rise)


# -- bundles


BUNDLED = [
    sample(90.0, metric="request_success_total", finished_reason="stop"),
    sample(5.0, metric="num_requests_running"),
    sample(NOW, metric="sampled_at", pod="chat-0"),
    sample(2.0, metric="copies", pod="chat-0"),
    sample(1.0, metric="requests_waiting_late"),
    sample(1.0, metric="batch_requests", state="running"),
]


def test_rows_of_queries_that_were_asked_as_one_are_told_apart() -> None:
    found = combined_queries.unbundled({"all": QueryResult(tuple(BUNDLED), ("store-3 is down",))})
    assert {name: [row.label("metric") for row in answer.samples] for name, answer in found.items()} == {
        "requests": ["request_success_total", "num_requests_running"],
        "tokens": [],
        "edges": [],
        "gauges": [],
        "engines": ["sampled_at"],
        "anomalies": ["copies"],
        "plugins": ["requests_waiting_late", "batch_requests"],
    }
    assert [answer.warnings for answer in found.values() if answer.warnings] == [("store-3 is down",)]


def test_what_was_asked_alone_stays_as_it_is_beside_what_was_asked_as_one() -> None:
    alone, both = (
        QueryResult((BUNDLED[0],), ("a part is missing",)),
        QueryResult((BUNDLED[1], BUNDLED[2]), ("another",)),
    )
    found = combined_queries.unbundled({"requests": alone, "gauges+engines": both})
    assert found["requests"].samples == (BUNDLED[0], BUNDLED[1])
    assert found["engines"].samples == (BUNDLED[2],)
    assert sorted(text for answer in found.values() for text in answer.warnings) == ["a part is missing", "another"]
    assert len(found) == len(FAST)


@pytest.mark.parametrize("together", [combined_queries.ALL_IN_ONE, combined_queries.IN_TWO])
def test_every_fast_query_is_in_one_bundle(together: Sequence[Sequence[str]]) -> None:
    fast = queries.fast_queries(WINDOW, queries.Edges(ttft=(0.5,), tpot=(0.03,)))
    asked = combined_queries.bundled(fast, together)
    assert sorted(name for names in together for name in names) == sorted(FAST)
    assert [query.name for query in asked] == ["+".join(names) for names in together]
    for query, names in zip(asked, together, strict=True):
        assert all(one.promql in query.promql for one in fast if one.name in names)
        assert query.promql.count("(") == query.promql.count(")")


@pytest.mark.parametrize("together", [combined_queries.ALL_IN_ONE, combined_queries.IN_TWO])
def test_what_a_verdict_compares_is_in_one_bundle(together: Sequence[Sequence[str]]) -> None:
    (first,) = (names for names in together if set(names) & set(combined_queries.COMPARED))
    assert set(first) >= {"requests", "tokens", "edges", "gauges"}


# -- what is asked of Prometheus


class Store(FakePrometheus):
    """Answers with one engine's sample and load of every service that a query names, and with the pulse of all."""

    def __init__(self) -> None:
        super().__init__({})
        self.started = {one.key.name: 100.0 for one in MANY}
        self.late: asyncio.Event | None = None
        self.failing = ""
        self.handler = self.answer

    async def answer(self, http: web.Request) -> web.Response:
        promql = self.asked[-1]["query"]
        if self.failing and self.failing in promql:
            return web.Response(status=503)
        if '"started"' in promql:
            rows = [self._row(name, count, "started") for name, count in self.started.items()]
        else:
            if self.late is not None:
                await self.late.wait()
            rows = [self._row(name, NOW, combined_queries.SAMPLED_AT) for name in self.named(promql)]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})

    def _row(self, name: str, value: float, metric: str) -> dict[str, object]:
        labels = {**row(value, metric=metric, pod=f"{name}-0")["metric"], "holdfast_service": name}
        return {"metric": labels, "value": [NOW, str(value)]}

    def named(self, promql: str) -> set[str]:
        if OURS in promql:
            return set(self.started)
        return {name for name in self.started if f"{name}|" in promql or f'{name}"' in promql}

    def names_asked(self, number: int) -> set[str]:
        """The services that one of the queries named."""
        return self.named(self.asked[number]["query"])


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with Store() as fake:
        yield fake


@pytest.fixture
async def source(store: Store) -> AsyncIterator[PrometheusSource]:
    source = PrometheusSource(PrometheusAddress(store.url, timeout_seconds=30.0))
    await source.observe(MANY, NOW)
    source.catch_up()
    await source.settle()
    store.asked.clear()
    yield source
    await source.close()


async def test_a_tick_at_constant_load_waits_for_the_pulse_alone_and_asks_the_rest_afterwards(
    store: Store, source: PrometheusSource
) -> None:
    first = await source.observe(MANY, NOW + 5)
    assert len(store.asked) == 1
    source.catch_up()
    await source.settle()
    assert len(first) == len(MANY)
    assert len(store.names_asked(1)) == SHARE
    second = await source.observe(MANY, NOW + 10)
    assert sum(second[key] is not first[key] for key in first) == SHARE, "what was asked between the ticks"
    assert {form["time"] for form in store.asked[:-1]} == {f"{NOW + 5:.3f}"}


async def test_within_three_ticks_everybody_has_been_asked_about(store: Store, source: PrometheusSource) -> None:
    seen = [await source.observe(MANY, NOW)]
    for tick in range(1, 5):
        source.catch_up()
        await source.settle()
        seen.append(await source.observe(MANY, NOW + 5 * tick))
    assert all(seen[-1][key] is not seen[0][key] for key in seen[0])


async def test_a_rise_is_seen_in_the_tick_that_finds_it_by_one_query_more(
    store: Store, source: PrometheusSource
) -> None:
    before = await source.observe(MANY, NOW + 5)
    store.started["s042"] = 200.0
    store.asked.clear()
    after = await source.observe(MANY, NOW + 10)
    assert [key.name for key in before if after[key] is not before[key]] == ["s042"]
    assert len(store.asked) == 2
    assert store.names_asked(1) == {"s042"}


async def test_a_tick_does_not_wait_for_turns_that_take_long_and_no_others_begin_meanwhile(
    store: Store, source: PrometheusSource
) -> None:
    await source.observe(MANY, NOW + 5)
    store.late = asyncio.Event()
    source.catch_up()
    for tick in range(2, 5):
        await source.observe(MANY, NOW + 5 * tick)
        source.catch_up()
    pulses = [form for form in store.asked if '"started"' in form["query"]]
    assert len(store.asked) - len(pulses) <= 1, "one query of the turn that is under way"
    store.late.set()
    await source.settle()


async def test_what_a_late_turn_saw_does_not_replace_what_is_newer(store: Store, source: PrometheusSource) -> None:
    await source.observe(MANY, NOW + 5)
    store.late, asked = asyncio.Event(), len(store.asked)
    source.catch_up()
    while len(store.asked) == asked:
        await asyncio.sleep(0.001)
    name = min(store.names_asked(asked))
    store.started[name] = 300.0
    waiting = store.late
    store.late = None
    newer = (await source.observe(MANY, NOW + 10))[ServiceKey("prod", name)]
    waiting.set()
    await source.settle()
    assert (await source.observe(MANY, NOW + 15))[ServiceKey("prod", name)] is newer


async def test_a_turn_that_fails_is_told_of_those_it_was_about_and_of_nobody_else(
    store: Store, source: PrometheusSource
) -> None:
    await source.observe(MANY, NOW + 5)
    store.failing = "generation_tokens_total"
    source.catch_up()
    await source.settle()
    seen = await source.observe(MANY, NOW + 10)
    assert [one.state for one in seen.values()].count(SignalState.UNREACHABLE) == SHARE
    store.failing = ""
    source.catch_up()
    await source.settle()
    assert all(one.state is not SignalState.UNREACHABLE for one in (await source.observe(MANY, NOW + 15)).values())


async def test_after_an_outage_everybody_is_asked_about_at_once(store: Store, source: PrometheusSource) -> None:
    store.failing = "started"
    down = await source.observe(MANY, NOW + 5)
    assert {one.state for one in down.values()} == {SignalState.UNREACHABLE}
    source.catch_up()
    assert len(store.asked) == 1, "nothing more of a Prometheus that does not answer"
    store.failing = ""
    store.asked.clear()
    await source.observe(MANY, NOW + 120)
    assert len(store.asked) == 1 + len(combined_queries.IN_TWO)


async def test_no_tick_asks_more_than_twelve_queries_whatever_is_asked_beside(store: Store) -> None:
    trying = [dataclasses.replace(one, on_trial=True) for one in MANY]
    counts: list[int] = []
    source = PrometheusSource(PrometheusAddress(store.url, timeout_seconds=30.0))
    for tick in range(12):
        store.asked.clear()
        store.started[f"s{tick:03}"] *= 3.0
        await source.observe(MANY if tick % 2 else trying, NOW + 5 * tick)
        await source.running_by_pod([CHAT], NOW + 5 * tick)
        source.catch_up()
        await source.settle()
        counts.append(len(store.asked))
    await source.close()
    assert max(counts) <= MOST_QUERIES == 12
    assert min(counts[1:]) >= 1 + 1 + len(combined_queries.IN_TWO) + 1
