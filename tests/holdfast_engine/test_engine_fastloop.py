"""The fast loop over a toy engine that schedules as vLLM does: what it orders, limits, measures and counts."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.clients.written_file import WrittenReader
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives, RequestVerdict
from holdfast_engine.stats.stats_fields import COUNTS, FIELDS, Mode

LAW = Law(0.004, 1e-4, 5e-4, 1e-7, 0.0)
LIMITS = Limits(1, Objectives(ttft_seconds=1.0, tpot_seconds=0.05))


@dataclass(frozen=True)
class Status:
    name: str


@dataclass(eq=False)
class ToyRequest:
    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    num_preemptions: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    status: Status = Status("WAITING")
    sampling_params: Any = None
    lora_request: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    abort_immediately: bool = False


@dataclass
class New:
    req_id: str
    num_computed_tokens: int


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class ToyOutput:
    scheduled_new_reqs: list[New]
    scheduled_cached_reqs: Cached
    num_scheduled_tokens: dict[str, int]

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class ToyEngine:
    """One step after another: running requests first, then waiting ones, in chunks, within the loop's limits."""

    resumes_apart = False
    """Whether preempted requests that start again are told with running ones, as to vLLM's first model runner."""

    def __init__(
        self,
        limits: Limits | None = LIMITS,
        *,
        active: int = 64,
        tokens: int = 2048,
        written: WrittenReader | None = None,
        own_name: str = "",
    ) -> None:
        self.now = 100.0
        self.files = LimitsFiles([])
        self.files.current = limits
        self.loop = FastLoop(
            StartLimits(active, tokens),
            self.files,
            clock=lambda: self.now,
            wall_clock=lambda: self.now + 1e9,
            written=written,
            own_name=own_name,
        )
        if limits is not None:
            self.loop._take(limits)
        self.gap_seconds = 0.0
        """What the engine does between two steps: hand tokens out, take requests in."""
        self.running: list[ToyRequest] = []
        self.largest_running = 0
        self._number = 0

    def arrive(
        self,
        prompt: int = 200,
        output: int = 20,
        transit: float = 0.0,
        claims: dict[str, Any] | None = None,
        adapter: str | None = None,
        params: dict[str, Any] | None = None,
    ) -> ToyRequest:
        self._number += 1
        request = ToyRequest(f"r{self._number}", self.now + 1e9 - transit, prompt, output)
        request.sampling_params = SimpleNamespace(extra_args=claims)
        request.lora_request = SimpleNamespace(lora_name=adapter) if adapter else None
        request.kv_transfer_params = params
        self.loop.arrive(request)
        self.loop.queue.add_request(request)
        return request

    def step(self) -> None:
        if self.loop.batch.names:
            for request in self.loop.give_way(self.running, 0, 0.0):
                self.preempt(request)
        limits = self.loop.before_step(len(self.running))
        output = self._schedule(limits.active_sequences, limits.tokens_per_step)
        self.largest_running = max(self.largest_running, len(self.running))
        self.loop.scheduled(output)
        found = self.loop._last
        self.now += LAW.seconds(found.prefill, found.decodes, found.kv, found.pairs)
        self.loop.updated(output, self._complete(output))
        self.now += self.gap_seconds

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            if self.running or self.loop.queue:
                self.step()
            else:
                self.now = end

    def abort(self, request: ToyRequest) -> None:
        request.status = Status("FINISHED_ABORTED")
        if request in self.running:
            self.running.remove(request)
        self.loop.queue.remove_requests([request])
        self.loop.finish([request.request_id])

    def preempt(self, victim: ToyRequest | None = None) -> None:
        victim = victim or self.running[-1]
        self.running.remove(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.loop.queue.prepend_request(victim)

    def _schedule(self, active: int, budget: int) -> ToyOutput:
        scheduled, cached, new = {}, Cached(), []
        for request in self.running:
            tokens = min(self._missing(request), budget)
            if tokens > 0:
                cached.req_ids.append(request.request_id)
                cached.num_computed_tokens.append(request.num_computed_tokens)
                scheduled[request.request_id] = tokens
                budget -= tokens
        while self.loop.queue and budget > 0 and len(self.running) < active:
            request = self.loop.queue.peek_request()
            assert self.loop.queue.pop_request() is request
            tokens = min(self._missing(request), budget)
            if request.num_preemptions and self.resumes_apart:
                cached.req_ids.append(request.request_id)
                cached.num_computed_tokens.append(request.num_computed_tokens)
            else:
                new.append(New(request.request_id, request.num_computed_tokens))
            scheduled[request.request_id] = tokens
            self.running.append(request)
            budget -= tokens
        for request in self.running:
            request.num_computed_tokens += scheduled.get(request.request_id, 0)
        return ToyOutput(new, cached, scheduled)

    def _complete(self, output: ToyOutput) -> list[str]:
        finished = []
        for request in list(self.running):
            if request.request_id in output.num_scheduled_tokens and self._missing(request) == 0:
                request.num_output_tokens += 1
                if request.num_output_tokens >= request.max_tokens:
                    request.status = Status("FINISHED_LENGTH_CAPPED")
                    self.running.remove(request)
                    finished.append(request.request_id)
        return finished

    @staticmethod
    def _missing(request: ToyRequest) -> int:
        return request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens


class EngineAhead(ToyEngine):
    """Schedules a step while the one before it is under way, as vLLM does on GPUs: every other one has no token."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way: deque[ToyOutput] = deque()
        self.steps = 0

    def step(self) -> None:
        if self.running or self.loop.queue:
            limits = self.loop.before_step(len(self.running))
            output = self._schedule(limits.active_sequences, limits.tokens_per_step)
            self.loop.scheduled(output)
            self._under_way.append(output)
            if len(self._under_way) < 2:
                return
        output = self._under_way.popleft()
        self.steps += bool(output.total_num_scheduled_tokens)
        found = self.loop._last
        self.now += (
            LAW.seconds(found.prefill, found.decodes, found.kv, found.pairs) if output.num_scheduled_tokens else 0
        )
        self.loop.updated(output, self._complete(output))


def assert_conserved(loop: FastLoop) -> None:
    own = loop.ledger.own
    assert own.arrived == own.good + sum(own.bad.values()) + own.withdrawn + own.handed_over + own.unjudged


def offer(engine: ToyEngine, rate: float, seconds: float, seed: int = 1) -> None:
    """Poisson arrivals of mixed lengths while the engine runs, and 2 s more."""
    draw, end = random.Random(seed), engine.now + seconds
    due = engine.now + draw.expovariate(rate)
    while engine.now < end:
        while due <= engine.now:
            engine.arrive(draw.randint(50, 400), draw.randint(5, 60), transit=engine.now - due)
            due += draw.expovariate(rate)
        if engine.running or engine.loop.queue:
            engine.step()
        else:
            engine.now = due
    engine.run(2.0)


def test_a_request_is_counted_when_it_arrives_and_judged_once() -> None:
    engine = ToyEngine()
    engine.arrive()
    assert (engine.loop.ledger.own.arrived, engine.loop.ledger.own.unjudged) == (1, 1)
    engine.run(5.0)
    own = engine.loop.ledger.own
    assert (own.good, own.unjudged, own.good_tokens) == (1, 0, 20)
    assert len(engine.loop.ledger) == 0


def test_a_waiting_request_is_bad_from_the_moment_its_first_token_is_late() -> None:
    engine = ToyEngine(active=1)
    engine.arrive(output=1000)
    waiting = engine.arrive()
    engine.run(1.1)
    assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 1
    engine.abort(waiting)
    assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 1
    assert engine.loop.ledger.own.withdrawn == 0
    assert_conserved(engine.loop)


def test_the_time_until_the_engine_counts_for_ttft() -> None:
    engine = ToyEngine()
    engine.arrive(transit=1.5)
    engine.run(1.0)
    assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 1


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_jump_of_the_wall_clock_harms_only_requests_on_their_way(jump: float) -> None:
    engine = ToyEngine()
    engine.arrive(transit=jump)
    engine.run(1.0)
    for _ in range(5):
        engine.arrive()
    engine.run(3.0)
    assert engine.loop.ledger.own.good >= 5
    assert_conserved(engine.loop)


def test_a_request_aborted_before_its_first_token_in_time_is_withdrawn() -> None:
    engine = ToyEngine(active=1)
    engine.arrive(output=1000)
    waiting = engine.arrive()
    engine.run(0.5)
    engine.abort(waiting)
    assert engine.loop.ledger.own.withdrawn == 1
    assert waiting not in list(engine.loop.queue)


def test_without_objectives_the_loop_is_a_plain_queue_that_counts_nothing() -> None:
    engine = ToyEngine(limits=None, active=1)
    names = [engine.arrive(output=2).request_id for _ in range(5)]
    assert [request.request_id for request in engine.loop.queue] == names
    engine.run(5.0)
    assert engine.loop.ledger.own.arrived == 0
    assert engine.loop.mode is Mode.WAITING


def test_limits_that_arrive_later_leave_earlier_requests_uncounted_and_first() -> None:
    engine = ToyEngine(limits=None, active=1)
    early = [engine.arrive(output=3) for _ in range(3)]
    engine.loop._take(LIMITS)
    engine.arrive(output=3)
    assert [request.request_id for request in engine.loop.queue][:3] == [request.request_id for request in early]
    engine.run(5.0)
    assert engine.loop.ledger.own.arrived == engine.loop.ledger.own.good == 1


def test_the_law_of_the_engine_is_found() -> None:
    engine = ToyEngine()
    offer(engine, rate=6.0, seconds=60.0)
    fit = engine.loop.fit
    assert fit.confident
    assert fit.law is not None
    assert fit.law.seconds(300, 10, 3000, 0) == pytest.approx(LAW.seconds(300, 10, 3000, 0), rel=0.1)


def test_overload_leaves_most_of_what_can_be_carried_good() -> None:
    calm, stormy = ToyEngine(active=256), ToyEngine(active=256)
    offer(calm, rate=12.0, seconds=60.0)
    offer(stormy, rate=60.0, seconds=60.0)
    assert calm.loop.ledger.own.good > 0.97 * calm.loop.ledger.own.arrived
    assert stormy.loop.ledger.own.arrived > 2.5 * stormy.loop.ledger.own.good
    assert stormy.loop.ledger.own.good > 1.2 * calm.loop.ledger.own.good
    assert stormy.loop.step_limits.active_sequences < 256 / 2
    assert_conserved(stormy.loop)


def test_tokens_keep_their_pace_where_the_engine_is_busy_between_its_steps_as_well() -> None:
    engine = ToyEngine(active=256)
    engine.gap_seconds = 0.02
    ledger, fit = engine.loop.ledger.own, engine.loop.fit
    offer(engine, rate=40.0, seconds=20.0)
    while_learning = ledger.bad[RequestVerdict.TPOT]
    offer(engine, rate=40.0, seconds=20.0, seed=2)
    assert fit.law is not None
    assert fit.law.seconds(100, 10, 3000, 0) == pytest.approx(LAW.seconds(100, 10, 3000, 0) + 0.02, rel=0.1)
    assert ledger.bad[RequestVerdict.TPOT] - while_learning < 0.02 * ledger.good


def test_an_idle_engine_is_no_slow_engine() -> None:
    engine = ToyEngine()
    for _ in range(40):
        engine.arrive(output=5)
        engine.run(2.0)
    fit = engine.loop.fit
    assert fit.law is not None
    assert fit.law.seconds(0, 1, 200, 0) == pytest.approx(LAW.seconds(0, 1, 200, 0), rel=0.1)


def test_late_requests_are_served_too_while_the_overload_lasts() -> None:
    engine = ToyEngine()
    offer(engine, rate=60.0, seconds=20.0)
    old = [request for request in engine.loop.queue if engine.loop.ledger.entry(request.request_id) is not None]
    offer(engine, rate=60.0, seconds=40.0, seed=2)
    served = [request for request in old if request.num_output_tokens > 0]
    assert 5 < len(served) < 0.2 * len(old)
    assert all(request in served for request in old[:3])


def test_limits_of_the_operator_are_upper_bounds() -> None:
    engine = ToyEngine(Limits(1, LIMITS.objectives, active_sequences=5, tokens_per_step=100))
    for _ in range(50):
        engine.arrive()
    engine.run(3.0)
    assert engine.largest_running == 5
    assert engine.loop.step_limits.tokens_per_step <= 100


def test_fixed_limits_are_used_as_they_are() -> None:
    tight = Objectives(ttft_seconds=1.0, tpot_seconds=0.001)
    engine = ToyEngine(Limits(1, tight, active_sequences=40, tokens_per_step=700, adapt=False))
    offer(engine, rate=50.0, seconds=20.0)
    assert engine.loop.fit.law is not None
    assert engine.loop.step_limits.active_sequences == 40
    assert engine.loop.step_limits.tokens_per_step == 700


def test_no_limit_exceeds_what_the_engine_was_started_with() -> None:
    engine = ToyEngine(Limits(1, LIMITS.objectives, active_sequences=10_000, tokens_per_step=10**6), active=8)
    assert engine.loop.before_step(0).active_sequences == 8
    assert engine.loop.before_step(0).tokens_per_step == 2048


def test_a_prior_limits_from_the_first_step_on() -> None:
    engine = ToyEngine(Limits(1, LIMITS.objectives, prior=Law(0.01, 1e-3, 1e-3, 0.0, 0.0)))
    for _ in range(10):
        engine.arrive(prompt=20, output=100)
    engine.step()
    assert engine.loop.before_step(10).tokens_per_step < 2048


def _beside_a_new_answer(ttft_seconds: float, answer: int) -> tuple[ToyEngine, ToyRequest]:
    """A prompt of 2,000 tokens that has had its first step beside an answer that has just begun.

    A decode takes 4.5 ms: TPOT's pace is 64 prompt tokens a step, 350 ms in all. In one step they take 205 ms.
    """
    engine = ToyEngine(Limits(1, Objectives(ttft_seconds, tpot_seconds=0.008)))
    for _ in range(40):
        engine.arrive(prompt=50, output=answer)
        engine.run(0.4)
    engine.arrive(prompt=50, output=200)
    engine.step()
    long = engine.arrive(prompt=2000, output=answer)
    engine.step()
    return engine, long


def test_a_prompt_that_is_late_at_the_pace_of_tpot_is_not_cut() -> None:
    engine, long = _beside_a_new_answer(ttft_seconds=0.3, answer=40)
    engine.step()
    assert long.num_output_tokens == 1


@pytest.mark.parametrize(("ttft_seconds", "answer"), [(0.3, 5), (0.1, 40), (1.0, 40)])
def test_a_prompt_is_cut_beside_short_answers_or_where_it_is_late_or_in_time_anyhow(
    ttft_seconds: float, answer: int
) -> None:
    engine, long = _beside_a_new_answer(ttft_seconds, answer)
    for _ in range(5):
        engine.step()
    assert not long.num_output_tokens


def test_a_record_has_a_number_for_every_field() -> None:
    for engine in (ToyEngine(limits=None), ToyEngine()):
        engine.arrive()
        engine.run(1.0)
        numbers = [*engine.loop.counts(), 0.0, 0.0, *engine.loop.record()]
        assert len(numbers) == len(FIELDS)
        found = dict(zip(FIELDS, numbers, strict=True))
        assert found["mode"] == engine.loop.mode
        assert found["arrived"] == engine.loop.ledger.own.arrived
        assert found["limit_active_sequences"] == 64
        assert found["steps_one"] == engine.loop.fit.sums[0]


def test_who_waits_in_another_order_than_ours_counts_for_the_door_as_well() -> None:
    engine = ToyEngine()
    engine.arrive(prompt=300)
    engine.arrive(prompt=500)
    engine.run(2.0)
    engine.loop.others = [object()] * 7
    numbers = dict(zip(FIELDS, [*engine.loop.counts(), 0.0, 0.0, *engine.loop.record()], strict=True))
    assert [numbers[f"waiting_{lane}"] for lane in ("front", "fresh", "late")] == [0, 7, 0]
    assert numbers["waiting_fresh_tokens"] == pytest.approx(7 * 400.0)


def test_nobody_finds_room_at_once_where_others_wait_in_an_order_of_vllm_s_own() -> None:
    engine = ToyEngine()
    engine.arrive(prompt=300, output=50)
    engine.step()
    engine.step()
    assert engine.loop._free_sequences > 0
    engine.loop.others = [object()]
    engine.step()
    assert engine.loop._free_sequences == 0


def test_a_record_that_told_of_waiting_requests_is_followed_by_one_that_does_not() -> None:
    engine = ToyEngine(limits=None, active=1)
    engine.arrive(prompt=10, output=2)
    engine.arrive(prompt=10, output=2)
    engine.step()
    assert engine.loop.is_record_due()
    assert engine.loop.record()[2] == 1, "one waits at the front"
    while engine.loop.queue:
        engine.step()
    assert engine.loop.is_record_due()
    assert engine.loop.record()[2] == 0
    assert not engine.loop.is_record_due()


def test_records_are_due_now_and_then_and_when_the_last_request_ends() -> None:
    engine = ToyEngine()
    engine.arrive(prompt=10, output=50)
    due = []
    while not due or engine.running:
        engine.step()
        due.append(engine.loop.is_record_due())
    assert due[0]
    assert due[-1]
    assert 3 <= sum(due) <= 10


def test_steps_without_a_token_between_others_under_way_hide_none_of_them() -> None:
    engine, observed, due = EngineAhead(), [], 0
    engine.loop.fit.observe = lambda *step: observed.append(step[-1])  # type: ignore[method-assign]
    engine.arrive(prompt=200, output=100)
    engine.arrive(prompt=200, output=100)
    while engine.running or engine.loop.queue:
        engine.step()
        due += engine.loop.is_record_due()
    assert len(observed) == engine.steps >= 100
    assert max(observed) < 0.05, "no step seems to last as long as several"
    assert due >= 3
    assert engine.loop.ledger.own.good == 2


def test_a_step_that_vllm_gave_up_is_no_part_of_the_next_one() -> None:
    engine, observed = ToyEngine(), []
    engine.loop.fit.observe = lambda *step: observed.append(step[-1])  # type: ignore[method-assign]
    engine.arrive(prompt=200, output=10)
    engine.loop.scheduled(engine._schedule(64, 2048))
    engine.now += 1.0
    engine.running[0].num_computed_tokens = 0
    engine.step()
    engine.step()
    assert len(observed) == 2


def test_a_loop_without_limits_is_published_now_and_then_only() -> None:
    engine = ToyEngine(limits=None)
    engine.arrive(prompt=10, output=50)
    due = []
    while not due or engine.running:
        engine.step()
        due.append(engine.loop.is_record_due())
    assert 2 <= sum(due) <= 10


def test_a_queue_that_failed_is_reported_at_the_next_step() -> None:
    engine = ToyEngine()
    engine.arrive()
    engine.loop.queue.failure = RuntimeError("no order")
    with pytest.raises(RuntimeError, match="no order"):
        engine.loop.before_step(0)


def actions() -> st.SearchStrategy[list[tuple[str, int]]]:
    kinds = st.sampled_from(["arrive", "step", "step", "step", "abort", "preempt", "limits"])
    return st.lists(st.tuples(kinds, st.integers(0, 1000)), max_size=80)


@settings(max_examples=100)
@given(actions())
def test_counts_are_conserved_whatever_happens(story: list[tuple[str, int]]) -> None:
    engine, alive = ToyEngine(active=4, tokens=256), list[ToyRequest]()
    for kind, number in story:
        if kind == "arrive":
            alive.append(engine.arrive(1 + number, 1 + number % 7))
        elif kind == "abort" and alive:
            engine.abort(alive.pop(number % len(alive)))
        elif kind == "preempt" and engine.running:
            engine.preempt()
        elif kind == "limits":
            engine.loop._take(Limits(2 + number, Objectives(0.01 + number / 500, 0.05)))
        elif kind == "step":
            engine.step()
        alive = [request for request in alive if not request.status.name.startswith("FINISHED")]
        assert_conserved(engine.loop)
        assert engine.loop.ledger.own.unjudged >= 0
        assert len(engine.loop.ledger) == len(alive)
    drain(engine)
    assert engine.loop.ledger.own.unjudged == 0
    assert_conserved(engine.loop)


def drain(engine: ToyEngine) -> None:
    for _ in range(10_000):
        if not engine.running and not engine.loop.queue:
            return
        engine.step()
    raise AssertionError("the engine does not become empty")


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    engine = ToyEngine()
    offer(engine, rate=40.0, seconds=30.0)
    for request in list(engine.loop.queue):
        engine.abort(request)
    drain(engine)
    engine.now += 10.0
    engine.arrive(output=2)
    drain(engine)
    engine.now += 10.0
    engine.loop.before_step(0)
    loop = engine.loop
    kept = (loop._known, loop._starting, loop._pending, loop.ledger._open, loop.ledger._due, loop.queue.order._entries)
    assert [len(each) for each in kept] == [0] * len(kept)
    assert sum(len(lane.heap) for lane in (*loop.queue.order._fresh, loop.queue.order._late)) < 100


def test_the_token_that_a_pod_asks_of_itself_is_in_no_count() -> None:
    engine = ToyEngine(own_name="holdfast-5f")
    warm_up = ToyRequest("cmpl-holdfast-5f-0-1f", engine.now + 1e9, 1, 1)
    engine.loop.arrive(warm_up)
    engine.loop.queue.add_request(warm_up)
    engine.run(1.0)
    assert warm_up.num_output_tokens == 1
    assert engine.loop.ledger.own.arrived == engine.loop.ledger.own.unjudged == 0


@pytest.mark.parametrize("name", ["cmpl-holdfast-warm-up-0-1f", "cmpl--0-1f", "cmpl-holdfast--0-1f"])
def test_no_name_that_a_client_can_know_keeps_a_request_out_of_the_counts(name: str) -> None:
    engine = ToyEngine()
    engine.loop.arrive(ToyRequest(name, engine.now, 1, 1))
    assert engine.loop.ledger.own.arrived == 1


def test_the_fast_loop_asks_a_request_for_nothing_that_its_client_chooses_freely() -> None:
    """Priority, kv_transfer_params, vllm_xargs, max_tokens and the like: such a request has none of them."""

    class Bare:
        """A request with the declared fields only; any other one is an AttributeError."""

        __slots__ = (
            "arrival_time",
            "num_output_tokens",
            "num_preemptions",
            "num_prompt_tokens",
            "request_id",
            "status",
        )

        def __init__(self, name: str, now: float) -> None:
            self.request_id, self.arrival_time, self.num_prompt_tokens = name, now, 100
            self.num_preemptions = self.num_output_tokens = 0
            self.status = Status("FINISHED_STOPPED")

    engine = ToyEngine()
    request: Any = Bare("cmpl-x-0", engine.now + 1e9)
    engine.loop.arrive(request)
    engine.loop.queue.add_request(request)
    engine.loop.before_step(0)
    assert engine.loop.queue.pop_request() is request
    engine.loop.finish(["cmpl-x-0"])
    assert engine.loop.ledger.own.arrived == 1
    assert engine.loop.ledger.own.unjudged == 0


def test_only_what_waits_for_too_long_is_too_old() -> None:
    engine = ToyEngine(Limits(1, Objectives(1.0, 0.05), active_sequences=1, adapt=False, max_queued_seconds=5.0))
    engine.arrive(output=100_000)
    engine.run(0.1)
    first, second = engine.arrive(), engine.arrive(prompt=5)
    engine.run(3.0)
    assert engine.loop.too_old() == []
    later = engine.arrive()
    engine.run(2.5)
    assert engine.loop.too_old() == [first, second]
    for request in engine.loop.too_old():
        engine.abort(request)
    engine.run(1.0)
    assert engine.loop.too_old() == []
    engine.run(2.5)
    assert engine.loop.too_old() == [later]
    assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 3


def test_the_record_tells_of_room_while_sequences_are_free() -> None:
    engine = ToyEngine(Limits(1, Objectives(1.0, 0.05), active_sequences=4, adapt=False))
    for _ in range(3):
        engine.arrive(prompt=100, output=100_000)
    engine.run(3.0)
    told = dict(zip(FIELDS[len(COUNTS) :], engine.loop.record(), strict=True))
    assert told["room_tokens"] == pytest.approx(100.0)
    assert told["burst_tps"] > told["prefill_tps"]
    engine.arrive(prompt=100, output=100_000)
    engine.run(0.5)
    assert dict(zip(FIELDS[len(COUNTS) :], engine.loop.record(), strict=True))["room_tokens"] == 0.0


def test_a_short_prompt_starts_before_a_long_one_that_came_just_before() -> None:
    engine = ToyEngine(Limits(1, Objectives(10.0, 0.05), active_sequences=1, adapt=False, prior=LAW))
    engine.arrive(output=1000)
    engine.run(0.1)
    long = engine.arrive(prompt=4000)
    engine.now += 0.01
    short = engine.arrive(prompt=10)
    assert list(engine.loop.queue) == [short, long]
    engine.now += 5.0
    later = engine.arrive(prompt=10)
    assert list(engine.loop.queue) == [short, long, later]
