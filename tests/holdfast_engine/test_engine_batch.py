"""Batch classes run in what the others leave: they start last, give way, and are judged by no time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from holdfast_engine.objectives.rules import (
    UNBOUNDED,
    Claim,
    Kind,
    Limits,
    LimitsError,
    Objectives,
    RequestClass,
    RequestVerdict,
    parse_limits,
    shares,
)
from holdfast_engine.queue import batch
from holdfast_engine.queue.order import DeadlineOrder, Place
from holdfast_engine.stats.classfiles import CLASS_FIELDS, ClassFiles
from holdfast_engine.stats.engine_info import Identity
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import BATCH_SUMS, FIELDS, Mode
from holdfast_engine.stats.statsfile import StatsWriter
from tests.holdfast_engine.test_engine_admission import record
from tests.holdfast_engine.test_engine_classes import BULK, KEY, OWN, TIGHT, engine_of, offer, total
from tests.holdfast_engine.test_engine_fastloop import LAW, ToyEngine, ToyRequest
from tests.holdfast_engine.test_engine_middleware import Pod, pod

__all__ = ["pod"]
NIGHT = RequestClass("night", UNBOUNDED, kind=Kind.BATCH)
SLOW = RequestClass("slow", UNBOUNDED, priority=-3, kind=Kind.BATCH)
LIMITS = Limits(1, OWN, prior=LAW, classes=(TIGHT, NIGHT, SLOW))


def ask(engine: ToyEngine, name: str, **more: Any) -> ToyRequest:
    return engine.arrive(claims={KEY: name} if name else None, **more)


def sums(engine: ToyEngine) -> dict[str, int]:
    """What an engine counted of batch that began."""
    found = dict(zip(BATCH_SUMS, engine.loop.batch.sums, strict=True))
    return {name: found[name] for name in ("started", "started_prompt_tokens", "cached_prompt_tokens")}


def place(rank: float, *, priority: int = 0, is_batch: bool = False) -> Place:
    return Place(rank, math.inf if is_batch else rank, rank, 100, priority, is_batch)


def test_limits_with_batch_are_read_as_they_are_written_and_bind_no_limit() -> None:
    limits = Limits(3, OWN, classes=(TIGHT, NIGHT, replace(BULK, min_share=0.2, max_share=0.7)))
    assert parse_limits(limits.to_json()) == limits
    assert NIGHT in limits.claimable
    assert limits.tightest.ttft_seconds == TIGHT.objectives.ttft_seconds
    assert limits.longest_wait_seconds == Limits(3, OWN, classes=(TIGHT, BULK)).longest_wait_seconds
    assert NIGHT not in replace(limits, claim=Claim.NONE).claimable


def test_a_plugin_from_before_batch_finds_bounds_in_every_class() -> None:
    (night,) = json.loads(Limits(1, OWN, classes=(NIGHT,)).to_json())["classes"]
    assert night == {"name": "night", "ttftSeconds": 2.0, "tpotSeconds": 0.05, "priority": 0, "kind": "Batch"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5, "5%", True, [0.1]])
def test_a_share_that_is_none_is_refused_by_name(value: Any) -> None:
    for name in ("minShare", "maxShare"):
        classes = [{"name": "a", "ttftSeconds": 1, "tpotSeconds": 1, name: value}]
        with pytest.raises(LimitsError, match=name):
            parse_limits(json.dumps({"version": 1, "ttftSeconds": 1.0, "tpotSeconds": 0.1, "classes": classes}))


def test_a_kind_that_is_none_is_refused_by_name() -> None:
    classes = [{"name": "a", "ttftSeconds": 1, "tpotSeconds": 1, "kind": "Nightly"}]
    with pytest.raises(LimitsError, match="kind must be one of Interactive, Batch"):
        parse_limits(json.dumps({"version": 1, "ttftSeconds": 1.0, "tpotSeconds": 0.1, "classes": classes}))


def test_batch_starts_behind_late_requests_by_priority_and_arrival() -> None:
    order: DeadlineOrder[str] = DeadlineOrder(late_share=0.0)
    for name, each in (
        ("slow", place(0.0, priority=-3, is_batch=True)),
        ("night 2", place(2.0, is_batch=True)),
        ("late", place(1.0)),
        ("night 1", place(1.0, is_batch=True)),
        ("fresh", place(9.0, priority=-9)),
    ):
        order.add(name, each)
    order.advance(5.0)
    assert (order.sizes, order.batch_count, order.urgent_count) == ((0, 1, 1), 3, 2)
    assert (order.count_from(-9), order.count_from(0, batch=True), order.count_from(-3, batch=True)) == (2, 4, 5)
    assert order.fresh_tokens_from(0, batch=True) == 300
    assert list(order) == [order.take() for _ in range(5)] == ["fresh", "late", "night 1", "night 2", "slow"]


def test_without_room_batch_waits_and_the_queue_is_not_empty() -> None:
    engine = engine_of(LIMITS)
    request, queue = ask(engine, "night"), engine.loop.queue
    queue.order.batch_room = 0
    assert (bool(queue), len(queue), list(queue)) == (False, 1, [request])
    queue.order.batch_room = 1
    assert queue
    assert queue.peek_request() is queue.pop_request() is request
    assert queue.order.batch_room == 0
    queue.prepend_requests([request])
    assert (bool(queue), queue.order.batch_room) == (True, 1)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-2, 2), st.booleans()), max_size=40), st.integers(0, 5))
def test_every_item_is_taken_once_and_batch_only_where_nothing_else_waits(
    items: list[tuple[str, int, bool]], removed: int
) -> None:
    order: DeadlineOrder[tuple[int, bool]] = DeadlineOrder()
    for number, (_, priority, is_batch) in enumerate(items):
        order.add((number, is_batch), place(float(number), priority=priority, is_batch=is_batch))
    gone = [(number, items[number][2]) for number in range(min(removed, len(items)))]
    order.remove(gone)
    order.advance(3.0)
    taken = []
    while len(order):
        urgent = order.urgent_count
        taken.append(order.take())
        assert not (taken[-1][1] and urgent)
    assert sorted([*taken, *gone]) == [(number, is_batch) for number, (_, _, is_batch) in enumerate(items)]


def test_batch_is_good_however_long_it_waited_and_bad_only_by_an_error() -> None:
    engine = engine_of(LIMITS)
    ask(engine, "night")
    engine.abort(ask(engine, "night"))
    engine.now += 1e6
    engine.loop.look()
    engine.run(10.0)
    tally = engine.loop.ledger.classes["night"]
    assert (tally.arrived, tally.good, tally.withdrawn, sum(tally.bad.values())) == (2, 1, 1, 0)
    assert not engine.loop.ledger._due, "what is due never is kept for ever"


def test_running_batch_gives_its_sequences_to_requests_that_come() -> None:
    engine = engine_of(LIMITS, active=4)
    for _ in range(6):
        ask(engine, "night", prompt=50, output=500)
    for _ in range(20):
        engine.step()
    assert len(engine.running) == 4
    urgent = [ask(engine, "tight", prompt=50, output=20), ask(engine, "", prompt=50, output=20)]
    engine.step()
    assert all(each in engine.running for each in urgent)
    assert (engine.loop.batch.running, engine.loop.queue.order.batch_count) == (2, 4)
    engine.run(60.0)
    assert engine.loop.ledger.classes["night"].good == 6, "what was preempted ends later"


def test_a_batch_prompt_leaves_the_step_to_a_request_that_comes() -> None:
    engine = engine_of(LIMITS)
    long = ask(engine, "night", prompt=20_000)
    engine.step()
    assert engine.running == [long]
    assert engine.now - 100.0 <= batch.STEP_SHARE * TIGHT.objectives.ttft_seconds + LAW.c0
    request = ask(engine, "tight")
    engine.step()
    assert engine.running[0] is request
    assert long not in engine.running


@pytest.mark.parametrize("resumes_apart", [False, True])
def test_prompt_tokens_of_batch_are_counted_once_however_often_it_is_preempted(resumes_apart: bool) -> None:
    engine = engine_of(LIMITS)
    engine.resumes_apart = resumes_apart
    ask(engine, "night", prompt=20_000).num_computed_tokens = 7_000
    engine.step()
    ask(engine, "tight")
    engine.step()
    assert sums(engine) == {"started": 0, "started_prompt_tokens": 0, "cached_prompt_tokens": 7_000}
    engine.run(60.0)
    assert sums(engine) == {"started": 1, "started_prompt_tokens": 20_000, "cached_prompt_tokens": 7_000}


def test_a_first_token_that_was_under_way_when_batch_left_is_counted_once() -> None:
    engine = engine_of(LIMITS)
    long = ask(engine, "night", prompt=20_000)
    engine.step()
    ask(engine, "tight")
    engine.step()
    assert long not in engine.running
    long.num_output_tokens = 1
    engine.step()
    assert sums(engine)["started"] == 1
    engine.run(60.0)
    assert sums(engine) == {"started": 1, "started_prompt_tokens": 20_000, "cached_prompt_tokens": 0}
    assert not engine.loop.batch.interrupted


def test_prompt_tokens_of_other_requests_are_in_no_sum_of_batch() -> None:
    engine = engine_of(LIMITS)
    ask(engine, "tight", prompt=300).num_computed_tokens = 200
    engine.run(10.0)
    assert set(engine.loop.batch.sums) == {0}


def test_batch_stays_where_a_waiting_request_lacks_nothing_of_it() -> None:
    engine = engine_of(LIMITS)
    for _ in range(4):
        ask(engine, "night", output=300)
    for _ in range(10):
        engine.step()
    ask(engine, "tight")
    engine.step()
    assert (engine.loop.batch.running, len(engine.running)) == (4, 5)


def test_deferred_requests_need_no_sequence() -> None:
    engine = engine_of(LIMITS, active=2)
    for _ in range(2):
        ask(engine, "night", output=300)
    engine.step()
    engine.step()
    ask(engine, "tight")
    assert engine.loop.give_way(engine.running, 1, 0.0) == []
    assert len(engine.loop.give_way(engine.running, 0, 0.0)) == 1


def passed_over(status: str = "WAITING", adapter: int = 0, grammar: Any = None, stale: int = 0) -> Any:
    return SimpleNamespace(
        status=SimpleNamespace(name=status),
        lora_request=SimpleNamespace(lora_int_id=adapter) if adapter else None,
        structured_output_request=SimpleNamespace(grammar=grammar),
        num_stale_output_tokens=stale,
        drop_stale_output=False,
    )


@pytest.mark.parametrize(
    ("waiting", "found"),
    [
        (passed_over("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"), (1, False)),
        (passed_over("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", grammar="ready"), (0, False)),
        (passed_over("WAITING", grammar="ready"), (0, False)),
        (passed_over("WAITING_FOR_STREAMING_REQ"), (1, False)),
        (passed_over("PREEMPTED", stale=1), (1, False)),
        (passed_over("PREEMPTED"), (0, False)),
        (passed_over(adapter=1), (0, False)),
        (passed_over(adapter=2), (1, True)),
        (passed_over("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", adapter=2), (1, False)),
    ],
)
def test_a_request_is_held_up_only_while_it_waits_for_more_than_its_turn(waiting: Any, found: tuple[int, bool]) -> None:
    assert batch.held_up([waiting], [passed_over(adapter=1), passed_over()], slots=1) == found
    assert batch.held_up([waiting], [passed_over(adapter=1)], slots=math.inf) == (found[0] - found[1], False)


def test_batch_with_an_adapter_leaves_for_a_request_that_lacks_a_lora_slot() -> None:
    engine = engine_of(LIMITS)
    night = [ask(engine, "night", output=300) for _ in range(3)]
    night[1].lora_request = SimpleNamespace(lora_int_id=1)
    for _ in range(10):
        engine.step()
    ask(engine, "tight")
    assert engine.loop.give_way(engine.running, 1, 0.0, lacks_slot=False) == []
    assert engine.loop.queue.order.batch_room > 0
    assert engine.loop.give_way(engine.running, 1, 0.0, lacks_slot=True) == [night[1]]
    assert engine.loop.give_way([night[0]], 1, 0.0, lacks_slot=True) == []
    assert engine.loop.queue.order.batch_room == 0, "its own slot would be taken again"


def test_without_a_prefix_cache_batch_prompts_end_under_steady_load() -> None:
    engine = engine_of(LIMITS)
    engine.loop._capacity = replace(engine.loop._capacity, keeps_prefixes=False)
    for _ in range(12):
        ask(engine, "night", prompt=800, output=3)
    for _ in range(200):
        request = ask(engine, "tight", prompt=40, output=2)
        while not request.status.name.startswith("FINISHED"):
            engine.step()
    assert engine.loop.ledger.classes["night"].good == 12
    assert engine.loop.ledger.classes["tight"].good == 200
    long = ask(engine, "night", prompt=20_000)
    engine.step()
    ask(engine, "tight")
    engine.step()
    assert long not in engine.running, "the others would be late"


def test_who_lacks_memory_gets_that_of_the_newest_batch_requests() -> None:
    requests = [ToyRequest(f"r{n}", 0.0, 100, 9, num_output_tokens=1, num_computed_tokens=100) for n in range(4)]
    assert batch.leaving(requests, 0, 0.0) == []
    assert batch.leaving(requests, 0, 150.0) == [requests[3], requests[2]]
    assert batch.leaving(requests, 1, 150.0) == [requests[3], requests[2]]
    assert batch.leaving(requests, 9, math.inf) == requests[::-1]
    requests[0].num_computed_tokens = 7
    assert batch.leaving(requests, 0, 0.0) == [requests[0]]
    assert batch.leaving(requests, 0, 0.0, prompt_tokens=92.0) == [requests[0]]
    assert batch.leaving(requests, 0, 0.0, prompt_tokens=93.0) == []
    requests[2].num_computed_tokens = 50
    assert batch.leaving(requests, 0, 0.0, prompt_tokens=93.0) == [requests[2]]
    assert batch.leaving(requests, 0, 0.0) == [requests[2], requests[0]]


def test_a_request_that_cannot_be_preempted_is_lost_nowhere() -> None:
    running, waiting = [ToyRequest(f"r{number}", 0.0, 100, 9) for number in range(3)], []

    def put_back(request: ToyRequest) -> None:
        if waiting:
            raise RuntimeError("no connection")
        waiting.append(request)

    first, second, third = running
    with pytest.raises(RuntimeError):
        batch.preempt(running, [third, second], put_back)
    assert (running, waiting) == ([first, second], [third])


@pytest.mark.parametrize(
    ("usage", "found"), [(0.0, 5), (batch.MOST_KV_USAGE, 5), (0.95, 0), (math.nan, 0), (math.inf, 0)]
)
def test_batch_starts_only_while_there_is_kv_cache_for_others(usage: float, found: int) -> None:
    assert batch.room(10, 3, 2, usage) == found
    assert batch.room(10, 30, 2, 0.0) == 0


def test_batch_uses_what_interactive_requests_leave_and_costs_them_nothing() -> None:
    capacity, mix = 20.0, {"tight": 0.4, "": 0.6}
    full, alone, both = engine_of(LIMITS), engine_of(LIMITS), engine_of(LIMITS)
    offer(full, capacity, 40.0, mix, rest_seconds=0.0)
    offer(alone, 0.6 * capacity, 40.0, mix, rest_seconds=0.0)
    for _ in range(2000):
        ask(both, "night", prompt=200, output=30)
    offer(both, 0.6 * capacity, 40.0, mix, rest_seconds=0.0)

    def judged(engine: ToyEngine) -> tuple[int, int, int]:
        tallies = [engine.loop.ledger.own, engine.loop.ledger.classes["tight"]]
        good, bad = (sum(each.good for each in tallies), sum(sum(each.bad.values()) for each in tallies))
        return good, bad, sum(each.good_tokens for each in tallies)

    assert judged(full)[1] <= 0.01 * judged(full)[0], "beyond capacity"
    assert judged(alone)[1] == judged(both)[1] == 0
    left = judged(full)[2] - judged(both)[2]
    assert both.loop.ledger.classes["night"].good_tokens >= 0.8 * left


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["", "tight", "night", "slow"]), st.integers(0, 9)), max_size=60))
def test_each_class_adds_up_while_batch_is_preempted(happenings: list[tuple[str, int]]) -> None:
    engine, asked = engine_of(LIMITS, active=3), []
    for name, what in happenings:
        asked.append(ask(engine, name, prompt=50, output=2 + 5 * what))
        for _ in range(what % 4):
            engine.step()
        if what == 9:
            engine.abort(asked[0])
        tallies = [engine.loop.ledger.own, *engine.loop.ledger.classes.values()]
        assert [total(tally) for tally in tallies] == [tally.arrived for tally in tallies]
    engine.run(60.0)
    tallies = [engine.loop.ledger.own, *engine.loop.ledger.classes.values()]
    assert sum(tally.unjudged for tally in tallies) == 0
    assert not engine.loop.batch.names
    assert not engine.loop.batch.interrupted
    assert engine.loop.batch.running == 0


def test_a_class_keeps_the_share_that_it_declares() -> None:
    limits = Limits(1, OWN, classes=(TIGHT, replace(BULK, min_share=0.3), replace(NIGHT, min_share=0.9)))
    assert shares(limits) == {BULK.priority: 0.3}
    order: DeadlineOrder[tuple[int, int]] = DeadlineOrder()
    order.shares = shares(limits)
    for number in range(1000):
        for priority in (TIGHT.priority, 0, BULK.priority):
            order.add((priority, number), place(1e6 + number, priority=priority))
    taken = [order.take()[0] for _ in range(1000)]
    lower, own = taken.count(BULK.priority), taken.count(0)
    assert lower >= 0.3 * (len(taken) - lower) - 2
    assert own >= 0.025 * (len(taken) - own) - 2


def test_prometheus_sees_batch_under_names_of_its_own(tmp_path: Path) -> None:
    stats = tmp_path / "engine-0.stats"
    numbers = dict.fromkeys(FIELDS, 0.0) | {"mode": float(Mode.ACTIVE), "batch_running": 3.0}
    numbers |= {"waiting_batch": 4.0, "batch_done": 5.0, "batch_cached_prompt_tokens": 6.0}
    StatsWriter(stats, len(FIELDS)).write([numbers[name] for name in FIELDS])
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0) | {"is_batch": 1.0, "arrived": 9.0, "good": 5.0, "bad_error": 1.0}
    ClassFiles(stats).write({"": [0.0] * len(CLASS_FIELDS), "night": list(of_class.values())})
    registry = CollectorRegistry()
    registry.register(EngineCollector(Identity("m", "0", "0.32.0"), {0: stats}))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"holdfast:{name}", {"model_name": "m", "engine": "0", **labels})

    assert value("batch_requests_arrived_total", **{"class": "night"}) == 9.0
    assert value("batch_requests_ended_total", outcome="done", **{"class": "night"}) == 5.0
    assert value("batch_requests_ended_total", outcome="error", **{"class": "night"}) == 1.0
    assert [value("batch_requests", state=state) for state in ("running", "waiting")] == [3.0, 4.0]
    assert value("batch_sums_total", term="done") == 5.0
    assert value("batch_sums_total", term="cached_prompt_tokens") == 6.0
    assert value("requests_arrived_total", **{"class": "night"}) is None
    assert value("requests_arrived_total", **{"class": ""}) == 0.0


async def test_batch_is_taken_however_late_it_would_be_and_only_depth_turns_it_away(pod: Pod, tmp_path: Path) -> None:
    pod.tell(**record(waiting_fresh_tokens=5000.0, limit_max_queued_requests=10.0))
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0) | {"is_batch": 1.0, "limit_ttft_seconds": math.inf}
    numbers = {
        "night": of_class | {"waiting_requests": 5.0, "waiting_fresh_tokens": 1e9},
        "slow": of_class | {"waiting_requests": 10.0, "waiting_fresh_tokens": 1e9},
    }
    ClassFiles(tmp_path / "engine-0.stats").write({name: list(each.values()) for name, each in numbers.items()})
    assert [await pod.post(x_slo_class=name) for name in ("night", "slow")] == [200, 503]


def test_verdicts_of_batch_do_not_say_whose_times_are_used() -> None:
    engine = engine_of(LIMITS)
    ask(engine, "night")
    engine.run(10.0)
    assert (engine.loop.ledger.judged, engine.loop.ledger.engine_timed) == (1, 0)
    assert RequestVerdict.TTFT in engine.loop.ledger.own.bad


@pytest.mark.parametrize("is_batch_first", [False, True])
def test_a_class_of_another_kind_counts_from_zero(tmp_path: Path, is_batch_first: bool) -> None:
    """Late requests of before are no batch work that is still to be done, and batch is not good interactive work."""
    batch, interactive = NIGHT, RequestClass("night", Objectives(0.001, 0.05))
    first, second = (batch, interactive) if is_batch_first else (interactive, batch)
    engine = engine_of(replace(LIMITS, classes=(first,)))
    for _ in range(30):
        ask(engine, "night")
    engine.run(60.0)
    engine.loop._take(replace(LIMITS, version=2, classes=(second,)))
    for _ in range(5):
        ask(engine, "night")
    engine.run(60.0)
    numbers = engine.loop.class_numbers()["night"]
    assert dict(zip(CLASS_FIELDS, numbers, strict=True))["arrived"] == 5
