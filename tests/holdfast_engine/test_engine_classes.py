"""Classes of requests: who may claim one, which bounds and which turn it gets, and in which counts it is."""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from holdfast_engine.apiserver.exchange import Exchange
from holdfast_engine.clients.ledger import Tally
from holdfast_engine.clients.written_file import CLASS_BYTES, ReportKind, WrittenReader, WrittenWriter, class_digest
from holdfast_engine.objectives.claims import BODY_KEY, CLAIMED, class_of, header_claim, header_key, pass_on
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import (
    MOST_CLASSES,
    UNBOUNDED,
    Claim,
    Kind,
    Limits,
    LimitsError,
    Objectives,
    RequestClass,
    RequestVerdict,
    parse_limits,
)
from holdfast_engine.queue.order import LOWER_SHARE, DeadlineOrder, Place
from holdfast_engine.queue.tpot_slack import LEARN_EVERY, Paces
from holdfast_engine.stats.classfiles import CLASS_FIELDS, ClassFiles, read_class, read_classes
from holdfast_engine.stats.engine_info import Identity
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import FIELDS, Mode
from holdfast_engine.stats.statsfile import StatsWriter
from tests.holdfast_engine.test_engine_admission import record
from tests.holdfast_engine.test_engine_fastloop import LAW, ToyEngine, ToyRequest
from tests.holdfast_engine.test_engine_middleware import Pod, pod

__all__ = ["pod"]
SECRET = "holdfast-1234"
KEY = header_key(SECRET)
TIGHT = RequestClass("tight", Objectives(0.5, 0.03), priority=10)
BULK = RequestClass("bulk", Objectives(30.0, 0.2), priority=-5)
OWN = Objectives(2.0, 0.05)
LIMITS = Limits(1, OWN, prior=LAW, classes=(TIGHT, BULK))
BAD_NAMES = ["", "tight\0", "Tight", "x" * 10_000, "-", "tight,bulk", "../tight", "tight.class", "t\u00efght"]


def engine_of(limits: Limits = LIMITS, **more: Any) -> ToyEngine:
    return ToyEngine(limits, own_name=SECRET, **more)


def offer(engine: ToyEngine, rate: float, seconds: float, shares: dict[str, float], rest_seconds: float = 60.0) -> None:
    """Poisson arrivals of these classes while the engine runs, and the time that they need."""
    draw, end = random.Random(7), engine.now + seconds
    due = engine.now
    while engine.now < end:
        while due <= engine.now:
            name = draw.choices(list(shares), list(shares.values()))[0]
            claims = {KEY: name} if name else None
            engine.arrive(draw.randint(50, 400), draw.randint(5, 60), engine.now - due, claims)
            due += draw.expovariate(rate)
        engine.step()
    engine.run(rest_seconds)


def total(tally: Tally) -> int:
    return tally.good + sum(tally.bad.values()) + tally.withdrawn + tally.unjudged


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_header_that_can_be_no_name_claims_nothing(name: str) -> None:
    assert header_claim([(b"x-slo-class", name.encode())]) == ""


def test_our_header_counts_before_that_of_gateways_and_contradictions_count_as_nothing() -> None:
    ours, theirs = (b"x-slo-class", b"tight"), (b"x-gateway-inference-objective", b"bulk")
    assert header_claim([theirs, ours]) == "tight"
    assert header_claim([theirs]) == "bulk"
    assert header_claim([ours, ours]) == "tight"
    assert header_claim([ours, (b"x-slo-class", b"bulk"), theirs]) == ""


@pytest.mark.parametrize(
    ("claim", "claims", "found"),
    [
        (Claim.HEADER, {KEY: "tight"}, "tight"),
        (Claim.HEADER, {BODY_KEY: "tight"}, ""),
        (Claim.HEADER, {KEY: "bulk", BODY_KEY: "tight"}, "bulk"),
        (Claim.BODY, {BODY_KEY: "tight"}, "tight"),
        (Claim.BODY, {KEY: "bulk", BODY_KEY: "tight"}, "bulk"),
        (Claim.NONE, {KEY: "bulk", BODY_KEY: "tight"}, ""),
        *((Claim.BODY, {BODY_KEY: each}, "") for each in (*BAD_NAMES, 7, None, ["tight"], {"tight": 1}, math.nan)),
        *((Claim.HEADER, each, "") for each in (None, {}, "tight", ["tight"], {"": "tight"})),
    ],
)
def test_only_a_declared_name_that_came_on_the_declared_way_is_a_class(claim: Claim, claims: Any, found: str) -> None:
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=claims))
    assert class_of(request, Limits(1, OWN, classes=(TIGHT, BULK), claim=claim), KEY).name == found


ADAPTER = RequestClass("sql", Objectives(0.2, 0.05), adapter=True)


@pytest.mark.parametrize(
    ("claim", "claims", "adapter", "found"),
    [
        *((claim, {}, "sql", "sql") for claim in Claim),
        (Claim.HEADER, {KEY: "tight"}, "sql", "tight"),
        (Claim.HEADER, {KEY: "unknown"}, "sql", "sql"),
        (Claim.HEADER, {BODY_KEY: "tight"}, "sql", "sql"),
        (Claim.BODY, {BODY_KEY: "tight"}, "sql", "tight"),
        (Claim.NONE, {KEY: "tight"}, "sql", "sql"),
        (Claim.HEADER, {KEY: "sql"}, None, ""),
        (Claim.BODY, {BODY_KEY: "sql"}, None, ""),
        (Claim.HEADER, {}, "tight", ""),
        *((Claim.HEADER, {}, name, "") for name in ("other", "", None, 7, ["sql"])),
    ],
)
def test_a_claim_counts_before_the_adapter_and_only_requests_for_an_adapter_have_its_class(
    claim: Claim, claims: Any, adapter: Any, found: str
) -> None:
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args=claims), lora_request=SimpleNamespace(lora_name=adapter)
    )
    assert class_of(request, Limits(1, OWN, classes=(TIGHT, ADAPTER), claim=claim), KEY).name == found


def test_the_class_of_an_adapter_binds_under_every_claim_and_no_header_finds_it_at_the_door() -> None:
    limits = Limits(1, OWN, classes=(TIGHT, ADAPTER), claim=Claim.NONE)
    assert [each.name for each in limits.claimable] == ["", "sql"]
    assert limits.tightest == Objectives(0.2, min(0.05, OWN.tpot_seconds))
    assert parse_limits(limits.to_json()) == limits
    engine = engine_of(Limits(1, OWN, prior=LAW, classes=(TIGHT, ADAPTER)))
    bound = CLASS_FIELDS.index("limit_ttft_seconds")
    bounds = {name: numbers[bound] for name, numbers in engine.loop.class_numbers().items()}
    assert math.isnan(bounds.pop("sql"))
    assert bounds == {"": OWN.ttft_seconds, "tight": 0.5}


def test_a_request_without_parameters_has_the_services_class() -> None:
    assert class_of(SimpleNamespace(), LIMITS, KEY).objectives == OWN
    assert class_of(SimpleNamespace(sampling_params=None), LIMITS, KEY).objectives == OWN


def test_an_engine_without_a_word_of_its_own_believes_no_header() -> None:
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"": "tight", "slo_class_": "tight"}))
    assert header_key("") == ""
    assert class_of(request, LIMITS, "").name == ""


def test_what_a_header_claims_goes_with_the_request_and_leaves_the_rest_alone() -> None:
    given_args = {"mine": 1}
    params = SimpleNamespace(extra_args=given_args)
    token = CLAIMED.set("tight")
    pass_on(params, KEY)
    pass_on(None, KEY)
    assert (params.extra_args, given_args) == ({"mine": 1, KEY: "tight"}, {"mine": 1})
    CLAIMED.reset(token)
    params = SimpleNamespace(extra_args=None)
    pass_on(params, KEY)
    assert params.extra_args is None


def test_classes_that_no_request_may_claim_bind_no_limit() -> None:
    patient = RequestClass("patient", Objectives(3600.0, 0.001))
    limits = Limits(1, OWN, classes=(TIGHT, patient), claim=Claim.NONE)
    assert limits.tightest == OWN
    assert limits.longest_wait_seconds == Limits(1, OWN).longest_wait_seconds
    assert list(limits.by_name) == ["", "tight", "patient"]
    open_to_all = Limits(1, OWN, classes=(TIGHT, patient))
    assert (open_to_all.tightest, open_to_all.longest_wait_seconds) == (Objectives(0.5, 0.001), 3600.0)


def test_limits_with_classes_are_read_as_they_are_written() -> None:
    limits = Limits(3, OWN, classes=(TIGHT, BULK), claim=Claim.BODY)
    assert parse_limits(limits.to_json()) == limits
    assert limits.tightest == Objectives(0.5, 0.03)
    assert Limits(3, OWN, classes=(BULK,), max_queued_seconds=5.0).longest_wait_seconds == 30.0
    assert "class" not in Limits(1, OWN).to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": {}}, "classes must be a list"),
        ({"classes": [{"name": f"c{i}", "ttftSeconds": 1, "tpotSeconds": 1} for i in range(MOST_CLASSES + 1)]}, "32"),
        ({"classes": [TIGHT, TIGHT]}, "names of their own"),
        ({"classes": [None]}, "DNS label"),
        *(({"classes": [{"name": name, "ttftSeconds": 1, "tpotSeconds": 1}]}, "DNS label") for name in BAD_NAMES),
        ({"classes": [{"name": "a", "ttftSeconds": 1}]}, "tpotSeconds is missing"),
        ({"classes": [{"name": "a", "ttftSeconds": 0, "tpotSeconds": 1}]}, "ttftSeconds must be positive"),
        ({"classes": [{"name": "a", "ttftSeconds": 1, "tpotSeconds": 1, "priority": True}]}, "priority"),
        ({"classes": [{"name": "a", "ttftSeconds": 1, "tpotSeconds": 1, "priority": "high"}]}, "priority"),
        ({"classes": [{"name": "a", "ttftSeconds": 1, "tpotSeconds": 1, "adapter": "sql"}]}, "adapter must be true or"),
        ({"claim": "Header, Body"}, "claim must be one of Header, Body, None"),
        ({"claim": ["Header"]}, "claim must be one of"),
    ],
)
def test_unusable_classes_leave_the_limits_as_they_are(changes: dict[str, Any], message: str) -> None:
    def plain(each: Any) -> Any:
        return {"name": each.name, "ttftSeconds": 1, "tpotSeconds": 1} if isinstance(each, RequestClass) else each

    classes = changes.get("classes")
    if isinstance(classes, list):
        changes = {"classes": [plain(each) for each in classes]}
    text = json.dumps({"version": 1, "ttftSeconds": 1.0, "tpotSeconds": 0.1, **changes})
    with pytest.raises(LimitsError, match=message):
        parse_limits(text)


def test_a_request_is_judged_by_the_bounds_of_its_class() -> None:
    engine = engine_of()
    for claims in ({KEY: "tight"}, {KEY: "bulk"}, None):
        engine.arrive(claims=claims)
    engine.now += 1.0
    engine.loop.look()
    assert engine.loop.ledger.classes["tight"].bad[RequestVerdict.TTFT] == 1
    assert (engine.loop.ledger.classes["bulk"].unjudged, engine.loop.ledger.own.unjudged) == (1, 1)
    engine.now += 2.0
    engine.loop.look()
    assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 1
    engine.run(5.0)
    assert engine.loop.ledger.classes["bulk"].good == 1


def test_a_request_keeps_the_class_and_the_bounds_under_which_it_arrived() -> None:
    engine = engine_of()
    engine.arrive(claims={KEY: "tight"})
    engine.files.current = None
    engine.loop._take(Limits(2, OWN, classes=(RequestClass("tight", Objectives(9.0, 1.0)),)))
    entry = engine.loop.ledger.entry("r1")
    assert entry is not None
    assert entry.objectives == TIGHT.objectives
    assert engine.loop.ledger.classes["tight"].arrived == 1


def test_a_class_that_is_declared_no_more_takes_its_counts_along_and_harms_nobody() -> None:
    engine = engine_of()
    engine.arrive(claims={KEY: "bulk"})
    engine.loop._take(Limits(2, OWN, classes=(TIGHT,)))
    engine.arrive(claims={KEY: "bulk"})
    engine.run(5.0)
    assert list(engine.loop.class_numbers()) == ["", "tight"]
    assert (engine.loop.ledger.own.arrived, engine.loop.ledger.own.good) == (1, 1)
    engine.loop._take(Limits(3, OWN))
    assert engine.loop.class_numbers() == {}


def test_100_000_names_need_no_memory_and_count_as_the_services_own() -> None:
    engine = engine_of(Limits(1, OWN, classes=(TIGHT,), claim=Claim.BODY))
    for number in range(100_000):
        request = ToyRequest(f"x{number}", engine.now + 1e9, 10, 1)
        request.sampling_params = SimpleNamespace(extra_args={BODY_KEY: f"name-{number}", KEY: None})
        engine.loop.arrive(request)
        engine.loop.finish([request.request_id])
    assert engine.loop.ledger.own.arrived == 100_000
    assert list(engine.loop.class_numbers()) == ["", "tight"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["", "tight", "bulk", "other"]), st.integers(0, 9)), max_size=60))
def test_what_arrived_is_the_sum_over_classes_and_each_class_adds_up(happenings: list[tuple[str, int]]) -> None:
    engine, asked = engine_of(), []
    for name, what in happenings:
        asked.append(engine.arrive(prompt=50, output=2 + what, claims={KEY: name}))
        for _ in range(what % 3):
            engine.step()
        if what == 9:
            engine.abort(asked[0])
        tallies = [engine.loop.ledger.own, *engine.loop.ledger.classes.values()]
        assert sum(tally.arrived for tally in tallies) == len(asked)
        assert [total(tally) for tally in tallies] == [tally.arrived for tally in tallies]
    engine.run(30.0)
    assert [tally.unjudged for tally in (engine.loop.ledger.own, *engine.loop.ledger.classes.values())] == [0, 0, 0]
    found = [sum(name == wanted for name, _ in happenings) for wanted in ("tight", "bulk")]
    assert [engine.loop.ledger.classes[name].arrived for name in ("tight", "bulk")] == found


def test_a_tight_class_stays_good_in_an_overload_and_the_others_wait() -> None:
    engine = engine_of()
    offer(engine, 40.0, 40.0, {"tight": 0.3, "": 0.5, "bulk": 0.2})
    tight, own = engine.loop.ledger.classes["tight"], engine.loop.ledger.own
    assert tight.good >= 0.98 * tight.arrived
    assert own.good < 0.9 * own.arrived, "no overload"


def test_the_class_that_bears_least_limits_the_steps_while_it_runs() -> None:
    paces = Paces()
    paces.start("a", 0.0, "tight")
    paces.start("b", 0.0, "bulk")
    paces.step(0.01)
    assert paces.binding(LIMITS, 0.01, 0)[0] == TIGHT.objectives.tpot_seconds
    paces.step(10.0)
    assert paces.binding(LIMITS, 10.0, 1) == (TIGHT.objectives.tpot_seconds, 0.0)
    paces.end("a")
    assert paces.binding(LIMITS, 10.0, 0)[0] == BULK.objectives.tpot_seconds
    paces.end("b")
    assert paces.binding(LIMITS, 10.0, 0) == (LIMITS.tightest.tpot_seconds, math.inf)


def test_classes_that_are_declared_no_more_are_forgotten_when_nothing_runs_in_them() -> None:
    paces = Paces()
    paces.start("a", 0.0, "tight")
    paces.keep(["bulk"])
    assert paces.binding(Limits(1, OWN), 0.0, 0)[0] == OWN.tpot_seconds
    paces.end("a")
    assert paces.binding(Limits(1, OWN), 0.0, 0) == (OWN.tpot_seconds, math.inf)
    assert not paces._others


def test_the_short_answers_of_a_class_that_is_gone_deny_nobody_a_long_step() -> None:
    paces = Paces()
    paces.keep(["tight"])
    for number in range(LEARN_EVERY):
        paces.start(f"short-{number}", 0.0, "tight")
        paces.end(f"short-{number}")
    paces.start("last", 0.0, "tight")
    paces.keep(["bulk"])
    assert not paces.bears_long_steps
    paces.end("last")
    assert paces.bears_long_steps


def item(priority: int, rank: float, tokens: int = 100) -> Place:
    return Place(rank, rank, 0.0, tokens, priority)


def test_a_higher_priority_starts_first_and_deadlines_order_within_one() -> None:
    order: DeadlineOrder[str] = DeadlineOrder(lower_share=0.0)
    for name, place in (("b", item(0, 1.0)), ("late", item(9, 0.1)), ("a", item(5, 8.0)), ("c", item(0, 2.0))):
        order.add(name, place)
    order.advance(0.5)
    assert order.sizes == (0, 3, 1)
    assert (order.fresh_tokens, order.fresh_tokens_from(1)) == (300, 100)
    assert list(order) == [order.take() for _ in range(4)] == ["a", "b", "c", "late"]


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(2, 4))
def test_no_priority_gets_less_than_its_share_while_it_waits(high: int, low: int, priorities: int) -> None:
    order: DeadlineOrder[tuple[int, int]] = DeadlineOrder()
    for priority in range(priorities):
        for number in range(600):
            order.add((priority, number), item(priority, 1e6 + number, high if priority == priorities - 1 else low))
    started = dict.fromkeys(range(priorities), 0)
    while started[priorities - 1] < 590 * high and all(count < 590 * low for count in list(started.values())[:-1]):
        taken = order.take()
        started[taken[0]] += high if taken[0] == priorities - 1 else low
    for priority in range(priorities - 1):
        others = sum(started.values()) - started[priority]
        assert started[priority] >= LOWER_SHARE / (priorities - 1) * others - low - high


@settings(deadline=None, max_examples=30)
@given(st.integers(2, MOST_CLASSES + 1), st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_the_highest_priority_gets_nine_tenths_of_what_starts_behind_any_number_and_each_gets_some(
    priorities: int, high: int, low: list[int]
) -> None:
    order: DeadlineOrder[tuple[int, int]] = DeadlineOrder()
    started, number, top = dict.fromkeys(range(priorities), 0), 0, priorities - 1

    def add(priority: int) -> None:
        nonlocal number
        number += 1
        order.add((priority, number), item(priority, 1e6 + number, high if priority == top else low[number % len(low)]))

    for priority in range(priorities):
        add(priority)
    while sum(started.values()) < 100_000:
        tokens = order.fresh_tokens
        priority, _ = order.take()
        started[priority] += tokens - order.fresh_tokens
        add(priority)
    assert started[top] >= 0.9 * sum(started.values())
    assert min(started.values()) > 0


def test_each_class_has_a_file_and_a_class_that_goes_loses_it(tmp_path: Path) -> None:
    stats = tmp_path / "engine-1.stats"
    (tmp_path / "engine-1.old.class").write_text("of an earlier engine")
    other = ClassFiles(tmp_path / "engine-11.stats")
    other.write({"tight": [1.0] * len(CLASS_FIELDS)})
    files = ClassFiles(stats)
    assert read_classes(stats) == {}
    files.write({"": [0.0] * len(CLASS_FIELDS), "tight": [2.0] * len(CLASS_FIELDS)})
    assert read_classes(stats)["tight"]["arrived"] == 2.0
    files.write({"": [0.0] * len(CLASS_FIELDS)})
    assert list(read_classes(stats)) == [""]
    assert read_class(stats, "tight") is None
    assert read_class(tmp_path / "engine-11.stats", "tight") is not None


def test_prometheus_sees_each_class_and_refusals_of_a_class(tmp_path: Path) -> None:
    stats = tmp_path / "engine-0.stats"
    numbers = dict.fromkeys(FIELDS, 0.0) | {"mode": float(Mode.ACTIVE), "arrived": 5.0, "good": 5.0}
    StatsWriter(stats, len(FIELDS)).write([numbers[name] for name in FIELDS])
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0) | {"arrived": 3.0, "bad_ttft": 2.0, "unjudged": 1.0}
    ClassFiles(stats).write({name: list(of_class.values()) for name in ("", "tight")})
    collector, registry = EngineCollector(Identity("m", "0", "0.32.0"), {0: stats}), CollectorRegistry()
    registry.register(collector)
    for name in ("tight", "unknown", ""):
        token = CLAIMED.set(name)
        collector.reject()
        CLAIMED.reset(token)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"holdfast:{name}", {"model_name": "m", "engine": "0", **labels})

    assert value("requests_arrived_total", **{"class": "tight"}) == 4.0
    assert value("requests_arrived_total", **{"class": ""}) == 7.0
    assert value("requests_bad_total", cause="ttft", **{"class": "tight"}) == 2.0
    assert value("requests_bad_total", cause="rejected", **{"class": "tight"}) == 1.0
    assert value("requests_unjudged", **{"class": "tight"}) == 1.0
    assert value("requests_arrived_total", **{"class": "unknown"}) is None


def test_refusals_of_a_class_by_any_of_several_api_servers_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, registry = tmp_path / "engine-0.stats", CollectorRegistry()
    StatsWriter(stats, len(FIELDS)).write([0.0] * len(FIELDS))
    ClassFiles(stats).write({name: [0.0] * len(CLASS_FIELDS) for name in ("", "tight")})
    for process, refusals in ((101, 2), (102, 1)):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        collector = EngineCollector(Identity("m", "0", "0.32.0"), {0: stats}, tmp_path)
        for name in ("tight",) * refusals:
            token = CLAIMED.set(name)
            collector.reject()
            CLAIMED.reset(token)
    registry.register(collector)
    labels = {"model_name": "m", "engine": "0", "class": "tight"}
    assert registry.get_sample_value("holdfast:requests_bad_total", {**labels, "cause": "rejected"}) == 3.0
    assert registry.get_sample_value("holdfast:requests_arrived_total", labels) == 3.0


@pytest.mark.parametrize("is_shared", [False, True])
def test_refusals_of_a_class_that_is_declared_no_more_are_forgotten(tmp_path: Path, *, is_shared: bool) -> None:
    stats, registry = tmp_path / "engine-0.stats", CollectorRegistry()
    StatsWriter(stats, len(FIELDS)).write([0.0] * len(FIELDS))
    files, none = ClassFiles(stats), [0.0] * len(CLASS_FIELDS)
    collector = EngineCollector(Identity("m", "0", "0.32.0"), {0: stats}, tmp_path if is_shared else None)
    registry.register(collector)

    def refused(name: str, times: int) -> float | None:
        for _ in range(times):
            token = CLAIMED.set(name)
            collector.reject()
            CLAIMED.reset(token)
        labels = {"model_name": "m", "engine": "0", "class": name, "cause": "rejected"}
        return registry.get_sample_value("holdfast:requests_bad_total", labels)

    files.write({"": none, "tight": none})
    assert (refused("tight", 5), refused("", 1)) == (5.0, 1.0)
    files.write({"": none})
    assert refused("tight", 0) is None
    files.write({"": none, "tight": none})
    assert (refused("tight", 0), refused("", 1)) == (0.0, 2.0)
    assert refused("tight", 3) == 3.0


async def test_a_request_is_judged_at_the_door_by_its_own_class(pod: Pod, tmp_path: Path) -> None:
    pod.tell(**record(waiting_fresh_tokens=5000.0))
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0)
    numbers = {
        "": of_class | {"limit_ttft_seconds": 1.0, "waiting_fresh_tokens": 5000.0},
        "tight": of_class | {"limit_ttft_seconds": 0.5, "waiting_fresh_tokens": 0.0},
        "bulk": of_class | {"limit_ttft_seconds": 30.0, "waiting_fresh_tokens": 9000.0},
        "hidden": of_class | {"limit_ttft_seconds": math.nan, "waiting_fresh_tokens": 0.0},
    }
    ClassFiles(tmp_path / "engine-0.stats").write({name: list(each.values()) for name, each in numbers.items()})
    names = ("tight", "bulk", "hidden", "unknown", "x" * 10_000)
    assert [await pod.post(x_slo_class=name) for name in names] == [200, 200, 503, 503, 503]
    assert await pod.post() == 503


async def test_batch_that_has_gone_is_forgotten_when_the_scheduler_is_off(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_engine.middleware._SWEEP_SECONDS", 0.0)
    pod.tell(mode=float(Mode.OFF))
    night = dict.fromkeys(CLASS_FIELDS, 0.0) | {"limit_ttft_seconds": math.inf}
    ClassFiles(tmp_path / "engine-0.stats").write({"night": list(night.values())})
    pod.vllm.tokens_per_byte = 1.0
    assert await pod.post() == 200  # only now the middleware follows vLLM's requests
    pod.vllm.output_processor.request_states["r2"] = SimpleNamespace(is_prefilling=False)
    assert await pod.post(x_slo_class="night") == 200
    await asyncio.sleep(0.0)
    assert pod.app._patient == {"r2"}
    pod.vllm.output_processor.request_states.clear()
    for _ in range(20):
        await asyncio.sleep(0.0)
    assert not pod.app._patient


async def test_what_waits_of_lower_priorities_fills_the_queue_for_its_own_class_alone(pod: Pod, tmp_path: Path) -> None:
    pod.tell(**record(waiting_front=1.0, waiting_fresh=5.0, waiting_late=4.0, limit_max_queued_requests=10.0))
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0)
    numbers = {
        "": of_class | {"limit_ttft_seconds": 1.0, "waiting_requests": 2.0},
        "tight": of_class | {"limit_ttft_seconds": 1.0, "waiting_requests": 1.0},
        "bulk": of_class | {"limit_ttft_seconds": 30.0, "waiting_requests": 10.0},
    }
    ClassFiles(tmp_path / "engine-0.stats").write({name: list(each.values()) for name, each in numbers.items()})
    assert [await pod.post(x_slo_class=name) for name in ("bulk", "tight", "unknown", "bulk")] == [503, 200, 200, 503]


def test_the_engine_tells_the_door_what_waits_of_own_and_higher_priorities_late_ones_too() -> None:
    engine = engine_of()
    for name in ("bulk", "bulk", "", "tight", "bulk"):
        engine.arrive(claims={KEY: name})
    first = {name: numbers[-2:] for name, numbers in engine.loop.class_numbers().items()}
    assert {name: numbers[0] for name, numbers in first.items()} == {"": 2, "tight": 1, "bulk": 5}
    engine.now += 1.0  # the tight one is late
    engine.loop.queue.advance(engine.now)
    found = {name: numbers[-2:] for name, numbers in engine.loop.class_numbers().items()}
    assert [found[name][0] for name in ("", "tight", "bulk")] == [2, 1, 5]
    assert found["tight"][1] == 0 < first["tight"][1]
    engine.run(60.0)
    assert [numbers[-2] for numbers in engine.loop.class_numbers().values()] == [0, 0, 0]


def test_a_request_at_the_door_waits_with_the_bounds_of_its_class(tmp_path: Path) -> None:
    writer = WrittenWriter(tmp_path / "answers.written")
    engine = engine_of(written=WrittenReader(tmp_path / "answers.written"))
    for number, name in enumerate(("tight", "unknown", "")):
        held = class_digest(name) + bytes([number]) * (16 - CLASS_BYTES)
        writer.write(ReportKind.HELD, held, engine.now)
    engine.loop.look()
    assert (engine.loop.ledger.classes["tight"].arrived, engine.loop.ledger.own.arrived) == (1, 2)


NIGHT = RequestClass("night", UNBOUNDED, kind=Kind.BATCH)


@pytest.mark.parametrize(
    ("header", "adapter", "body", "found"),
    [
        ("sql", None, None, ""),
        ("", "sql", None, "sql"),
        ("", None, "night", "night"),
        ("full", None, None, ""),
        ("tight", "sql", "night", "tight"),
    ],
)
@pytest.mark.parametrize("waited_seconds", [0.05, 3.0])
def test_a_request_that_waited_at_the_door_has_the_class_that_the_engine_finds(
    tmp_path: Path, header: str, adapter: str | None, body: str | None, found: str, waited_seconds: float
) -> None:
    writer, full = WrittenWriter(tmp_path / "written"), RequestClass("full", TIGHT.objectives, max_share=0.0)
    limits = Limits(1, OWN, prior=LAW, classes=(TIGHT, ADAPTER, NIGHT, full), claim=Claim.BODY)
    engine = engine_of(limits, written=WrittenReader(tmp_path / "written"))
    engine.arrive(prompt=1, output=1, claims={KEY: "full"})
    engine.run(1.0)
    came_at, held = engine.now, class_digest(header) + b"x" * (16 - CLASS_BYTES)
    writer.write(ReportKind.HELD, held, came_at)
    engine.loop.look()
    engine.now += waited_seconds
    engine.loop.look()
    counted = [numbers[:7] for numbers in engine.loop.class_numbers().values()]
    Exchange(writer, lambda: engine.now, came_at, held).start("r2", streams=False)
    claims = {KEY: header or None, BODY_KEY: body}
    engine.arrive(output=1, claims=claims, adapter=adapter)

    entry, ledger = engine.loop.ledger.entry("r2"), engine.loop.ledger
    assert entry is not None
    assert (entry.request_class.name, entry.arrived) == (found, pytest.approx(came_at))
    assert entry.judged or entry.tally is ledger.classes.get(found, ledger.own)
    assert ("r2" in engine.loop.batch.names) == (found == "night")
    engine.run(5.0)
    after = [numbers[:7] for numbers in engine.loop.class_numbers().values()]
    assert all(now >= before for each in zip(counted, after, strict=True) for before, now in zip(*each, strict=True))
    tallies = [ledger.own, *ledger.classes.values()]
    assert [total(tally) for tally in tallies] == [tally.arrived for tally in tallies]
    assert sum(tally.unjudged for tally in tallies) == 0
    assert sum(tally.arrived - tally.withdrawn for tally in tallies) == 2


def test_classes_change_while_the_engine_serves(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_text(LIMITS.to_json())
    files = LimitsFiles([path], look_seconds=0.0)
    assert files.poll(0.0) == LIMITS
    path.write_text(Limits(2, OWN).to_json())
    found = files.poll(1.0)
    assert found is not None
    assert found.classes == ()
