"""A prefill and a decode engine, and the hand-over between them: each request of a client is in one count."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.apiserver.admission import decide
from holdfast_engine.objectives.handover import KEY
from holdfast_engine.objectives.rules import Limits, Overload, RejectionReason, RequestVerdict, Role, parse_limits
from holdfast_engine.stats.stats_fields import COUNTS, FIELDS, Mode, off
from tests.holdfast_engine.test_engine_fastloop import LAW, LIMITS, ToyEngine, ToyRequest, assert_conserved
from tests.holdfast_engine.test_engine_metrics import Scrape

LEASE_SECONDS = 30.0
TO_BE_HANDED_OVER = {"do_remote_decode": True, "do_remote_prefill": False}
SLOW = {"prefill_tps": 1000.0, "burst_tps": 1000.0}
"""An engine that computes so few prompt tokens per second."""
PREFILL, DECODE = (replace(LIMITS, role=role) for role in (Role.PREFILL, Role.DECODE))


class PrefillEngine(ToyEngine):
    """Answers with what vLLM and the fast loop tell the decode engine."""

    def __init__(self, limits: Limits = PREFILL) -> None:
        super().__init__(limits)
        self.asked: dict[str, ToyRequest] = {}
        self.answers: dict[str, dict[str, Any] | None] = {}

    def ask(self, prompt: int = 200) -> ToyRequest:
        request = self.arrive(prompt, output=1, params=dict(TO_BE_HANDED_OVER))
        self.asked[request.request_id] = request
        return request

    def _complete(self, output: Any) -> list[str]:
        finished = super()._complete(output)
        for name in finished:
            params = {"do_remote_prefill": True, "remote_engine_id": "p"}
            self.answers[name] = self.loop.hand_over(self.asked[name], params, LEASE_SECONDS)
        return finished


class Pair:
    """Both engines and the router; the wall clock of the decode engine is `ahead_seconds` ahead."""

    def __init__(self, ahead_seconds: float = 0.0) -> None:
        self.prefill, self.decode = PrefillEngine(), ToyEngine(DECODE)
        self.ahead_seconds = ahead_seconds
        self.decode.loop._wall_clock = lambda: self.decode.now + 1e9 + ahead_seconds

    def compute(self, request: ToyRequest) -> dict[str, Any]:
        """Run the prefill engine until it has the first token; returns what its answer tells."""
        while request.request_id not in self.prefill.answers:
            self.prefill.step()
        return self.prefill.answers[request.request_id] or {}

    def hand_over(self, told: dict[str, Any], way_seconds: float = 0.01) -> ToyRequest:
        """The router sends the request on; what the decode engine loads instead of computing it, it has at once."""
        self.decode.now = max(self.decode.now, self.prefill.now + way_seconds)
        request = self.decode.arrive(params=json.loads(json.dumps(told)), transit=-self.ahead_seconds)
        request.num_computed_tokens = request.num_prompt_tokens - 16
        return request

    def whole(self, way_seconds: float = 0.01) -> ToyRequest:
        return self.hand_over(self.compute(self.prefill.ask()), way_seconds)

    @property
    def late(self) -> int:
        return self.decode.loop.ledger.own.bad[RequestVerdict.TTFT]


def test_each_request_is_counted_where_it_ends() -> None:
    pair = Pair()
    for _ in range(3):
        pair.whole()
    pair.decode.run(2.0)
    first, second = pair.prefill.loop.ledger.own, pair.decode.loop.ledger.own
    assert (first.arrived, first.handed_over, first.good, first.unjudged) == (3, 3, 0, 0)
    assert (second.arrived, second.received, second.good, second.handed_over) == (3, 3, 3, 0)
    assert_conserved(pair.prefill.loop)


def test_a_hand_over_tells_when_the_request_came_and_how_long_its_blocks_stay() -> None:
    pair = Pair()
    request, came_at = pair.prefill.ask(), pair.prefill.now
    pair.prefill.now += 0.3
    told = pair.compute(request)
    assert (told["do_remote_prefill"], told["remote_engine_id"]) == (True, "p")
    expected = {"arrived": came_at + 1e9, "finished": pair.prefill.now + 1e9, "lease": LEASE_SECONDS}
    assert told[KEY] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("at_prefill", "on_the_way", "late"), [(0.4, 0.4, 0), (0.7, 0.4, 1), (0.4, 0.7, 1)])
def test_the_first_token_is_late_by_the_time_since_the_prefill_engine_got_the_request(
    at_prefill: float, on_the_way: float, late: int
) -> None:
    pair = Pair()
    request = pair.prefill.ask()
    pair.prefill.now += at_prefill
    pair.hand_over(pair.compute(request), on_the_way)
    pair.decode.run(2.0)
    assert pair.late == late
    assert pair.decode.loop.ledger.own.good == 1 - late


def test_a_late_prompt_that_is_handed_over_is_bad_at_the_decode_engine_alone() -> None:
    pair = Pair()
    request = pair.prefill.ask()
    pair.prefill.now += 5.0
    pair.prefill.loop.look()
    assert pair.prefill.loop.ledger.own.unjudged == 1
    pair.hand_over(pair.compute(request))
    pair.decode.run(1.0)
    assert pair.prefill.loop.ledger.own.bad[RequestVerdict.TTFT] == 0
    assert pair.late == 1


@pytest.mark.parametrize(("waited", "verdict"), [(0.5, RequestVerdict.WITHDRAWN), (1.5, RequestVerdict.TTFT)])
def test_who_leaves_the_prefill_engine_is_counted_there(waited: float, verdict: RequestVerdict) -> None:
    prefill = PrefillEngine()
    request = prefill.ask()
    prefill.now += waited
    prefill.loop.look()
    prefill.abort(request)
    own = prefill.loop.ledger.own
    assert (own.withdrawn, own.bad[RequestVerdict.TTFT]) == (
        int(verdict is RequestVerdict.WITHDRAWN),
        int(verdict is RequestVerdict.TTFT),
    )
    assert own.handed_over == 0


def test_a_prefill_engine_judges_a_request_that_nobody_goes_on_with() -> None:
    prefill = PrefillEngine()
    prefill.asked["r1"] = prefill.arrive(output=1)
    prefill.run(1.0)
    assert prefill.loop.ledger.own.good == 1
    assert prefill.answers["r1"] == {"do_remote_prefill": True, "remote_engine_id": "p"}


@pytest.mark.parametrize("ahead_seconds", [-3.0, 50.0])
def test_of_clocks_that_differ_only_the_time_in_the_prefill_engine_is_believed(ahead_seconds: float) -> None:
    pair = Pair(ahead_seconds)
    request = pair.prefill.ask()
    pair.prefill.now += 0.6
    entry_of = pair.hand_over(pair.compute(request), way_seconds=0.1).request_id
    entry = pair.decode.loop.ledger.entry(entry_of)
    assert entry is not None
    assert pair.decode.now - entry.arrived == pytest.approx(pair.prefill.now - 100.0, abs=1e-5)


@pytest.mark.parametrize(
    "told",
    [
        None,
        "arrived",
        {},
        {"arrived": 1.0, "finished": 2.0},
        {"arrived": math.nan, "finished": 2.0, "lease": 3.0},
        {"arrived": -1.0, "finished": 2.0, "lease": 3.0},
        {"arrived": 10**400, "finished": 2.0, "lease": 3.0},
        {"arrived": [1.0], "finished": "2", "lease": None},
    ],
)
def test_what_is_no_hand_over_is_a_request_like_any_other(told: object) -> None:
    decode = ToyEngine(DECODE)
    decode.arrive(params={"do_remote_prefill": True, KEY: told})
    decode.run(1.0)
    own = decode.loop.ledger.own
    assert (own.arrived, own.received, own.good, own.kv_expired) == (1, 0, 1, 0)


@pytest.mark.parametrize(("since_seconds", "reads"), [(0.0, True), (22.0, True), (23.0, False), (40.0, False)])
def test_blocks_whose_lease_may_end_before_they_are_read_are_computed_anew(since_seconds: float, reads: bool) -> None:
    pair = Pair()
    request = pair.whole(since_seconds)
    assert request.kv_transfer_params is not None
    assert request.kv_transfer_params["do_remote_prefill"] is reads
    assert pair.decode.loop.ledger.own.kv_expired == int(not reads)
    assert pair.decode.loop.ledger.own.received == 1


def test_what_only_has_blocks_freed_is_no_request() -> None:
    pair = Pair()
    notice = ToyRequest("r1", pair.decode.now + 1e9, 1, 1, kv_transfer_params=pair.compute(pair.prefill.ask()))
    notice.abort_immediately = True
    pair.decode.now += 100.0
    pair.decode.loop.arrive(notice)
    pair.decode.loop.finish([notice.request_id])
    own = pair.decode.loop.ledger.own
    assert (own.arrived, own.received, own.withdrawn, sum(own.bad.values())) == (0, 0, 0, 0)
    assert notice.kv_transfer_params is not None
    assert notice.kv_transfer_params["do_remote_prefill"], "vLLM tells the prefill engine by that"


def test_an_engine_of_whole_requests_neither_tells_nor_believes_a_hand_over() -> None:
    engine = PrefillEngine(LIMITS)
    engine.ask()
    told = {"arrived": engine.now + 1e9 - 50.0, "finished": engine.now + 1e9 - 49.0, "lease": 1.0}
    params = {"do_remote_prefill": True, KEY: told}
    second = engine.arrive(params=params)
    engine.asked[second.request_id] = second
    engine.run(2.0)
    own = engine.loop.ledger.own
    assert (own.arrived, own.good, own.handed_over, own.received, own.kv_expired) == (2, 2, 0, 0, 0)
    assert all(KEY not in (answer or {}) for answer in engine.answers.values())
    assert params["do_remote_prefill"]


def test_a_prefill_engine_shortens_no_step_for_tpot() -> None:
    longest = {}
    for role in Role:
        engine = ToyEngine(replace(LIMITS, prior=LAW, role=role))
        engine.arrive()
        engine.run(1.0)
        longest[role] = numbers_of(engine)["step_seconds"]
    assert longest[Role.PREFILL] == pytest.approx(LAW.seconds(2048, 0, 0.0, 0.0), rel=0.2)
    assert longest[Role.WHOLE] == longest[Role.DECODE] <= LIMITS.objectives.tpot_seconds


def numbers_of(engine: ToyEngine) -> dict[str, float]:
    counted = [*engine.loop.counts(), 0.0, 0.0, *engine.loop.record()]
    return dict(zip(FIELDS, counted, strict=True))


@pytest.mark.parametrize(
    ("most", "refused"),
    [
        (41, {Role.WHOLE: RejectionReason.LATE, Role.PREFILL: RejectionReason.LATE, Role.DECODE: None}),
        (39, dict.fromkeys(Role, RejectionReason.FULL)),
    ],
)
def test_a_decode_engine_turns_nobody_away_for_being_late_but_keeps_its_queue_within_bounds(
    most: int, refused: dict[Role, RejectionReason | None]
) -> None:
    strict, found = replace(LIMITS, prior=LAW, overload=Overload.REJECT, max_queued_requests=most), {}
    for role in Role:
        engine = ToyEngine(replace(strict, role=role), active=1)
        for _ in range(41):
            engine.arrive(prompt=1000)
        engine.step()
        found[role] = decide(numbers_of(engine) | SLOW, 1000).refused
    assert found == refused


def test_a_decode_engine_keeps_nobody_at_its_door() -> None:
    numbers = numbers_of(ToyEngine(replace(DECODE, prior=LAW))) | SLOW
    assert decide(numbers, 1e6, waited_seconds=100.0).waits is False
    assert decide(numbers | {"limit_role": math.nan}, 1e6, waited_seconds=100.0).waits is True


def test_counters_of_a_pair_are_shown_by_engines_with_a_role_and_stay_when_one_stands_down(tmp_path: Path) -> None:
    scrape = Scrape(tmp_path / "engine-0.stats")
    scrape.write(mode=Mode.ACTIVE, arrived=5, good=5)
    assert not {"handed_over", "received", "kv_expired"} & set(scrape.text.replace("_total", "").split("requests_"))
    assert "holdfast:kv_expired" not in scrape.text
    record = dict.fromkeys(FIELDS, 0.0) | {"mode": Mode.ACTIVE, "arrived": 5, "handed_over": 4, "limit_role": 1.0}
    scrape.write(**record)
    names = {"requests_handed_over_total": 4.0, "requests_received_total": 0.0, "kv_expired_total": 0.0}
    assert {name: scrape.value(name, **{"class": ""}) for name in names} == names
    scrape.write(**dict(zip(FIELDS, off(list(record.values())), strict=True)))
    assert scrape.value("requests_handed_over_total", **{"class": ""}) == 4.0


@pytest.mark.parametrize("role", list(Role))
def test_a_role_survives_the_way_through_json(role: Role) -> None:
    limits = replace(LIMITS, role=role)
    assert parse_limits(limits.to_json()) == limits
    assert ("role" in limits.to_json()) is (role is not Role.WHOLE)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.5), st.sampled_from(["ends", "leaves prefill", "leaves between", "leaves decode"])),
        min_size=1,
        max_size=20,
    )
)
def test_counts_of_both_engines_are_those_of_the_clients(asked: list[tuple[float, str]]) -> None:
    pair = Pair()
    for apart_seconds, fate in asked:
        pair.prefill.now += apart_seconds
        request = pair.prefill.ask()
        if fate == "leaves prefill":
            pair.prefill.abort(request)
            continue
        told = pair.compute(request)
        if fate == "leaves between":
            continue
        second = pair.hand_over(told)
        pair.decode.step()
        if fate == "leaves decode":
            pair.decode.abort(second)
    pair.decode.run(10.0)
    first, second_own = pair.prefill.loop.ledger.own, pair.decode.loop.ledger.own
    lost = first.handed_over - second_own.received
    assert lost == sum(fate == "leaves between" for _, fate in asked)
    assert first.arrived - first.handed_over + second_own.arrived + lost == len(asked)
    judged = second_own.good + sum(second_own.bad.values()) + second_own.withdrawn
    assert judged == second_own.arrived == sum(fate in ("ends", "leaves decode") for _, fate in asked)
    for loop in (pair.prefill.loop, pair.decode.loop):
        assert_conserved(loop)
        assert loop.counts()[COUNTS.index("handed_over")] == loop.ledger.own.handed_over
