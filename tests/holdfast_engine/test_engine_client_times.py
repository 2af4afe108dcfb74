"""Requests are judged by the times at which their bytes were written: the fast loop, the middleware and a file between.

All on one virtual clock. A toy engine makes tokens, an ASGI application stands for vLLM's API server.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_engine.apiserver.admission import terms_of
from holdfast_engine.apiserver.exchange import Exchange
from holdfast_engine.clients.clientlag import LagEstimate
from holdfast_engine.clients.written_file import Report, ReportKind, WrittenReader, WrittenWriter, name_of
from holdfast_engine.middleware import AdmissionMiddleware
from holdfast_engine.objectives.rules import Limits, Objectives, Overload, RequestVerdict
from holdfast_engine.stats.stats_fields import COUNTS, FIELDS, LAGS
from tests.fakes import FakeApiServer
from tests.holdfast_engine.test_engine_fastloop import LAW, LIMITS, Cached, ToyEngine, ToyOutput, ToyRequest

TOKEN = b'data: {"choices":[{"index":0,"text":" a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
SLOW_FRONT_END = Limits(1, Objectives(0.5, 0.05), prior=LAW)
# What the toy engine serves within these objectives when its front end takes no time.
CAPACITY_RPS = 30.0


class World:
    """A pod: clients, the middleware, the API server and the engine, on one clock."""

    def __init__(self, folder: Path, limits: Limits = LIMITS) -> None:
        self.path = folder / "answers.written"
        self.engine = ToyEngine(limits, written=WrittenReader(self.path))
        self.server = FakeApiServer()
        self.middleware = AdmissionMiddleware(self.server, lambda: self.engine.now)
        self.ledger = self.engine.loop.ledger.own
        self.gone: set[str] = set()

    def ask(self, output: int = 1, *, streams: bool = True, n: int = 1) -> tuple[ToyRequest, asyncio.Task[None]]:
        """A client's request, at the engine at once."""
        first, *_ = [self.engine.arrive(output=output) for _ in range(n)]
        scope = {
            **{"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions", "headers": []},
            **{"app": self.server, "name": first.request_id, "streams": streams, "n": n},
        }
        return first, asyncio.create_task(self._client(scope))

    async def _client(self, scope: Any) -> None:
        async def send(_: Any) -> None:
            if scope["name"] in self.gone:
                raise OSError("the client is gone")

        sent = [{"type": "http.request", "body": b"{}"}]

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        await self.middleware(scope, receive, send)

    async def settle(self) -> None:
        """Let all tasks go on as far as they can."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def write(self, request: ToyRequest, at: float, *events: bytes | None) -> None:
        """The API server writes at this time."""
        self.engine.now = max(self.engine.now, at)
        self.server.give(request.request_id, *events)
        await self.settle()

    def look(self) -> dict[str, float]:
        """What the engine tells after it has looked for reports, as it does while it is idle."""
        self.engine.loop.look()
        return numbers(self.engine)

    def is_conserved(self) -> bool:
        ledger = self.ledger
        judged = ledger.good + sum(ledger.bad.values()) + ledger.withdrawn
        return ledger.arrived == judged + ledger.unjudged and ledger.unjudged >= 0


def numbers(engine: ToyEngine) -> dict[str, float]:
    counts = dict(zip(COUNTS, engine.loop.counts(), strict=False))
    return counts | dict(zip(FIELDS[len(COUNTS) :], engine.loop.record(), strict=True))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("HOLDFAST_ENGINE_FOLDER", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return World(tmp_path)


async def test_a_first_token_that_is_written_late_is_bad_though_it_left_the_engine_in_time(world: World) -> None:
    request, client = world.ask()
    await world.settle()
    arrived = world.engine.now
    world.engine.step()
    assert (world.ledger.good, world.ledger.unjudged) == (0, 1), "its verdict waits for its bytes"
    await world.write(request, arrived + 1.01, TOKEN, DONE, None)
    await client
    told = world.look()
    assert (told["good"], told["bad_ttft"], told["unjudged"]) == (0, 1, 0)
    assert told["client_times"] == 1


async def test_a_verdict_that_an_empty_step_came_to_is_published_by_the_next_look(world: World) -> None:
    """An engine with nothing to compute publishes nothing by itself: for its readers the verdict would stay open."""
    request, client = world.ask()
    await world.settle()
    world.engine.step()
    numbers(world.engine)
    await world.write(request, world.engine.now + 0.1, TOKEN, DONE, None)
    await client
    loop = world.engine.loop
    loop.before_step(0)
    assert world.ledger.unjudged == 0
    assert loop.look(), "nobody was told"
    assert numbers(world.engine)["unjudged"] == 0
    assert not loop.look()


async def test_a_first_token_that_is_written_in_time_is_good_by_its_own_times(world: World) -> None:
    request, client = world.ask(output=3)
    await world.settle()
    while world.engine.running or world.engine.loop.queue:
        world.engine.step()
    ended = world.engine.now
    await world.write(request, ended + 0.2, TOKEN)
    await world.write(request, ended + 0.25, TOKEN, TOKEN, DONE, None)
    await client
    told = world.look()
    assert (told["good"], told["good_tokens"], told["unjudged"]) == (1, 3, 0)
    assert sum(told[f"lag_first_{edge}"] for edge in ("0.2", "0.5")) == 1
    assert told["lag_last_0.5"] == 1
    assert told["lag_last_sum"] == pytest.approx(0.25)


async def test_tpot_and_e2e_are_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENGINE_FOLDER", str(tmp_path))
    world = World(tmp_path, Limits(1, Objectives(1.0, 0.05, e2e_seconds=0.6)))
    for seconds, cause in ((0.3, RequestVerdict.TPOT), (0.75, RequestVerdict.E2E)):
        request, client = world.ask(output=3)
        await world.settle()
        arrived = world.engine.now
        while world.engine.running or world.engine.loop.queue:
            world.engine.step()
        first = arrived + seconds - (0.2 if cause is RequestVerdict.TPOT else 0.01)
        await world.write(request, first, TOKEN)
        await world.write(request, arrived + seconds, DONE, None)
        await client
        world.look()
        assert world.ledger.bad[cause] == 1
    assert world.is_conserved()


async def test_a_first_token_that_is_overdue_in_the_engine_is_bad_at_once(world: World) -> None:
    _, client = world.ask()
    await world.settle()
    world.engine.now += 1.01
    assert world.look()["bad_ttft"] == 1
    client.cancel()


async def test_a_late_report_of_the_first_token_is_bad_at_once_while_the_answer_runs(world: World) -> None:
    request, client = world.ask(output=50)
    await world.settle()
    arrived = world.engine.now
    world.engine.step()
    await world.write(request, arrived + 1.5, TOKEN)
    world.engine.step()
    assert (world.ledger.bad[RequestVerdict.TTFT], world.ledger.unjudged) == (1, 0)
    client.cancel()


@pytest.mark.parametrize(("streams", "n"), [(False, 1), (True, 2), (True, 3)])
async def test_answers_that_are_no_stream_of_their_own_are_judged_by_the_engine(
    world: World, streams: bool, n: int
) -> None:
    request, client = world.ask(streams=streams, n=n)
    await world.settle()
    world.engine.step()
    await world.write(request, world.engine.now + 5.0, TOKEN, None)
    await client
    told = world.look()
    assert (told["good"], told["unjudged"], told["client_times"]) == (n, 0, 0)
    assert world.is_conserved()


async def test_a_client_that_leaves_before_its_bytes_is_judged_by_the_engine(world: World) -> None:
    request, client = world.ask(output=2)
    await world.settle()
    world.engine.step()
    world.gone.add(request.request_id)
    await world.write(request, world.engine.now, TOKEN)
    with pytest.raises(OSError, match="gone"):
        await client
    world.engine.abort(request)
    told = world.look()
    assert (told["good"], told["unjudged"], told["client_times"]) == (1, 0, 0)


async def test_a_client_that_leaves_in_time_before_any_token_withdraws(world: World) -> None:
    request, client = world.ask()
    await world.settle()
    client.cancel()
    await world.settle()
    world.engine.abort(request)
    told = world.look()
    assert (told["withdrawn"], told["unjudged"], told["client_times"]) == (1, 0, 1)


async def test_a_stop_string_that_the_server_finds_ends_by_the_clients_times(world: World) -> None:
    request, client = world.ask(output=50)
    await world.settle()
    arrived = world.engine.now
    for _ in range(3):
        world.engine.step()
    await world.write(request, arrived + 0.9, TOKEN, TOKEN, DONE, None)
    await client
    world.engine.step()
    world.engine.abort(request)
    told = world.look()
    assert (told["good"], told["unjudged"], told["client_times"]) == (1, 0, 1)


async def test_a_middleware_that_fails_leaves_the_engines_times(world: World) -> None:
    _, client = world.ask(output=2)
    await world.settle()
    while world.engine.running or world.engine.loop.queue:
        world.engine.step()
    assert world.look()["unjudged"] == 1
    world.middleware._give_up(RuntimeError("a fault"))
    told = world.look()
    assert (told["good"], told["unjudged"], told["client_times"]) == (1, 0, 0)
    client.cancel()


async def test_an_answer_that_is_never_reported_is_judged_in_the_end(world: World) -> None:
    _, client = world.ask()
    await world.settle()
    world.engine.step()
    world.engine.now += 59.0
    assert world.look()["unjudged"] == 1
    world.engine.now += 2.0
    assert world.look()["good"] == 1
    client.cancel()


def test_with_several_api_servers_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENGINE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    world = World(tmp_path)
    assert not world.path.exists()
    assert world.look()["client_times"] == 0


def test_where_nothing_lies_between_the_engine_and_its_clients_its_times_are_theirs() -> None:
    engine = ToyEngine()
    engine.arrive(output=2)
    engine.run(1.0)
    assert (numbers(engine)["good"], numbers(engine)["client_times"]) == (1, 1)


class Reports:
    """The file as the API server writes it, whatever it says."""

    def __init__(self, path: Path, limits: Limits = LIMITS) -> None:
        self.writer = WrittenWriter(path)
        self.engine = ToyEngine(limits, written=WrittenReader(path))

    def say(self, kind: ReportKind, request: ToyRequest, at: float = math.nan) -> None:
        self.writer.write(kind, name_of(request.request_id), at)


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, -1.0, 0.0, 99.0, 1e300])
def test_times_that_cannot_be_are_not_believed(tmp_path: Path, at: float) -> None:
    reports = Reports(tmp_path / "answers.written")
    engine = reports.engine
    request = engine.arrive(output=2)
    reports.say(ReportKind.STARTED, request, engine.now)
    engine.step()
    reports.say(ReportKind.FIRST, request, at)
    engine.step()
    reports.say(ReportKind.LAST, request, at)
    engine.loop.look()
    told = numbers(engine)
    assert (told["good"], told["unjudged"], told["client_times"]) == (1, 0, 0)
    assert told["front_end_lag"] == 0.0
    assert sum(told[name] for name in LAGS) == 0.0


class BusyReader(WrittenReader):
    """While it is called, the API server writes."""

    def __init__(self, path: Path, writes: Callable[[], None]) -> None:
        super().__init__(path)
        self._writes = writes

    def poll(self, now: float) -> list[Report]:
        self._writes()
        return super().poll(now)


def test_a_report_that_is_written_while_reports_are_read_is_believed(tmp_path: Path) -> None:
    writer, due = WrittenWriter(tmp_path / "answers.written"), list[tuple[ReportKind, ToyRequest]]()

    def write() -> None:
        for kind, request in due:
            engine.now += 0.001
            writer.write(kind, name_of(request.request_id), engine.now)
        due.clear()

    engine = ToyEngine(written=BusyReader(writer.path, write))
    request = engine.arrive(output=2)
    for kind in (ReportKind.STARTED, ReportKind.FIRST):
        due.append((kind, request))
        engine.step()
    due.append((ReportKind.LAST, request))
    engine.loop.look()
    told = numbers(engine)
    assert (told["good"], told["client_times"]) == (1, 1)
    assert told["lag_first_sum"] == pytest.approx(0.001)
    assert told["lag_last_sum"] == pytest.approx(0.001)
    engine.now += 0.6
    engine.loop.look()
    assert numbers(engine)["front_end_lag"] == pytest.approx(0.001)


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "step", "abort", "look", "close", *ReportKind)),
        st.integers(0, 5),
        st.sampled_from((0.0, 0.01, 0.7, 3.0, 70.0)),
        st.sampled_from((0.0, -0.5, -1e9, 1e9, math.nan)),
    ),
    max_size=60,
)


@given(HAPPENINGS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_request_is_counted_once_whatever_is_reported(
    tmp_path: Path, happenings: list[tuple[Any, int, float, float]]
) -> None:
    reports = Reports(tmp_path / "answers.written")
    engine, ledger, known = reports.engine, reports.engine.loop.ledger.own, [reports.engine.arrive(output=2)]
    do: dict[str, Callable[[ToyRequest], Any]] = {
        "arrive": lambda _: known.append(engine.arrive(output=3)),
        "step": lambda _: engine.step() if engine.running or engine.loop.queue else None,
        "abort": engine.abort,
        "look": lambda _: engine.loop.look(),
        "close": lambda _: reports.writer.close(),
    }
    for what, number, passed, at in happenings:
        engine.now += passed
        request = known[number % len(known)]
        if isinstance(what, ReportKind):
            reports.say(what, request, engine.now + at)
        else:
            do[what](request)
        judged = ledger.good + sum(ledger.bad.values()) + ledger.withdrawn
        assert ledger.arrived == judged + ledger.unjudged
        assert 0 <= ledger.unjudged <= ledger.arrived
    for request in known:
        engine.abort(request)
    for _ in range(len(ReportKind) + len(happenings)):
        engine.now += 2000.0
        engine.loop.look()
    assert ledger.unjudged == len(engine.loop.ledger) == 0
    assert not engine.loop.client_times._names


def test_reports_of_requests_of_other_engines_take_no_memory(tmp_path: Path) -> None:
    reports = Reports(tmp_path / "answers.written")
    for number in range(40_000):
        reports.writer.write(ReportKind.STARTED, name_of(str(number)), 0.0)
        if number % 5000 == 0:
            reports.engine.loop.look()
    reports.engine.loop.look()
    assert len(reports.engine.loop.client_times._early) <= 16384


def told_lag(engine: ToyEngine, seconds: float) -> None:
    """Some clients saw this lag."""
    times = engine.loop.client_times
    for _ in range(20):
        times.lag.add(engine.now, seconds)
    times.lag._estimated_at = -math.inf
    engine.loop.look()


def test_who_would_be_late_for_its_client_is_late(tmp_path: Path) -> None:
    """Ten requests, one at a time: those whose bytes would come too late leave the lane of those in time."""
    lanes = []
    for lag in (0.0, 0.3):
        limits = Limits(1, Objectives(1.0, 0.05), active_sequences=1, adapt=False, prior=LAW)
        engine = ToyEngine(limits, written=WrittenReader(tmp_path / "answers.written"))
        told_lag(engine, lag)
        engine.arrive(output=1000)
        engine.step()
        engine.arrive()
        engine.run(0.4)
        lanes.append((numbers(engine)["waiting_fresh"], numbers(engine)["waiting_late"]))
        assert engine.loop.ledger.own.bad[RequestVerdict.TTFT] == 0, "late is no verdict"
    assert lanes == [(1, 0), (0, 1)]


def test_admission_leaves_the_front_end_its_part_of_the_bound(tmp_path: Path) -> None:
    limits = Limits(1, Objectives(1.0, 0.05), overload=Overload.REJECT, prior=LAW)
    engine = ToyEngine(limits, written=WrittenReader(tmp_path / "answers.written"))
    told_lag(engine, 0.3)
    terms = terms_of(numbers(engine))
    assert terms is not None
    assert terms.ttft_seconds == pytest.approx(0.7)
    told_lag(engine, 30.0)
    terms = terms_of(numbers(engine))
    assert terms is not None
    assert terms.ttft_seconds == pytest.approx(0.5)


def test_a_step_that_is_launched_ahead_is_time_that_a_new_request_waits() -> None:
    engine = ToyEngine(Limits(1, Objectives(1.0, 0.05), prior=LAW))
    request = engine.arrive(output=50)
    engine.step()
    for under_way in (0, 1):
        assert numbers(engine)["under_way_seconds"] == 0.0
        engine.loop.before_step(1)
        cached = Cached([request.request_id], [request.num_computed_tokens + under_way])
        engine.loop.scheduled(ToyOutput([], cached, {request.request_id: 1}))
    told = numbers(engine)
    assert told["under_way_seconds"] == LAW.seconds(*engine.loop._last) > 0.0
    terms = terms_of(told)
    assert terms is not None
    assert terms.ttft_seconds == pytest.approx(1.0 - told["under_way_seconds"])
    engine.loop._pending.clear()
    assert numbers(engine)["under_way_seconds"] == 0.0, "an engine that ran empty has nothing under way"


class SlowFrontEnd:
    """An engine in overload, behind an API server that takes so much longer for a token per running stream."""

    def __init__(self, path: Path, seconds_per_stream: float) -> None:
        self.writer = WrittenWriter(path)
        self.engine = ToyEngine(SLOW_FRONT_END, active=256, written=WrittenReader(path))
        self.written_at = -math.inf
        self.estimates: list[float] = []
        self.good: list[int] = []
        self._each = seconds_per_stream
        self._due: list[tuple[float, int, Exchange, bytes, bool]] = []
        self._order = itertools.count()
        self._exchanges: dict[str, tuple[ToyRequest, Exchange]] = {}
        self._random = random.Random(7)

    def run(self, seconds: float, rate: float) -> None:
        """Poisson arrivals of mixed lengths; every second the estimate and the good requests so far are noted."""
        engine, next_arrival, next_note = self.engine, self.engine.now, self.engine.now
        end = engine.now + seconds
        while engine.now < end:
            while next_arrival <= engine.now:
                next_arrival += self._random.expovariate(rate)
                self._arrive()
            before = {name: request.num_output_tokens for name, (request, _) in self._exchanges.items()}
            engine.step()
            self._emit(before)
            self._write()
            if engine.now >= next_note:
                next_note += 1.0
                self.estimates.append(engine.loop.client_times.lag.seconds)
                self.good.append(engine.loop.ledger.own.good)

    def good_rps(self, seconds: int) -> list[float]:
        """Good requests per second, in spans of five seconds, of the last seconds."""
        found = self.good[-seconds - 1 :: 5]
        return [(after - before) / 5.0 for before, after in itertools.pairwise(found)]

    def _arrive(self) -> None:
        prompt, output = self._random.randint(50, 350), self._random.randint(5, 35)
        request = self.engine.arrive(prompt=prompt, output=output)
        exchange = Exchange(self.writer, lambda: self.written_at, self.engine.now)
        exchange.start(request.request_id, True)
        self._exchanges[request.request_id] = request, exchange

    def _emit(self, before: dict[str, int]) -> None:
        lag = self._each * len(self.engine.running)
        for name, tokens in before.items():
            request, exchange = self._exchanges[name]
            ends = request.num_output_tokens >= request.max_tokens
            if request.num_output_tokens > tokens and (tokens == 0 or ends):
                heapq.heappush(self._due, (self.engine.now + lag, next(self._order), exchange, TOKEN, not ends))
            if ends:
                del self._exchanges[name]

    def _write(self) -> None:
        while self._due and self._due[0][0] <= self.engine.now:
            self.written_at, _, exchange, body, more = heapq.heappop(self._due)
            message = {"type": "http.response.body", "body": body, "more_body": more}
            if exchange.is_awaited(message):
                exchange.write(message)


@pytest.mark.parametrize("per_stream", [0.001, 0.003, 0.006])
@pytest.mark.parametrize("rate", [34.0, 60.0])
def test_a_lag_that_grows_with_the_running_streams_does_not_swing(
    tmp_path: Path, per_stream: float, rate: float
) -> None:
    front = SlowFrontEnd(tmp_path / "answers.written", per_stream)
    front.run(120.0, rate)
    half, good = front.estimates[60:], front.good_rps(60)
    swing = (max(half) - min(half)) / statistics.fmean(half)
    spread = statistics.pstdev(good) / statistics.fmean(good)
    print(
        f"{1e3 * per_stream:g} ms per stream, {rate:g}/s: lag {statistics.fmean(half):.3f} s, swing {swing:.0%}; ",
        end="",
    )
    print(f"good {statistics.fmean(good):.1f}/s, spread {spread:.0%}")
    assert swing < 0.25
    assert spread < 0.1
    assert statistics.fmean(good) > 0.75 * CAPACITY_RPS


class Ignored(LagEstimate):
    """No decision sets anything aside for the front end."""

    def within(self, bound_seconds: float) -> float:
        return 0.0


def test_where_decisions_ignore_the_lag_hardly_any_answer_is_in_time(tmp_path: Path) -> None:
    front = SlowFrontEnd(tmp_path / "answers.written", 0.003)
    front.engine.loop.client_times.lag = Ignored()
    front.run(120.0, 60.0)
    assert statistics.fmean(front.good_rps(60)) < 0.2 * CAPACITY_RPS


def test_after_an_overload_the_estimate_returns_to_what_the_front_end_takes(tmp_path: Path) -> None:
    front = SlowFrontEnd(tmp_path / "answers.written", 0.005)
    front.run(40.0, 60.0)
    overloaded = front.estimates[-1]
    front.run(60.0, 2.0)
    assert front.estimates[-1] < 0.5 * overloaded
