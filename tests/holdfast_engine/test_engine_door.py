"""Requests that an API server reads late: how old they are, and who waits at the door."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast_engine.apiserver.admission import BEHIND_SHARE, decide
from holdfast_engine.apiserver.door import OPEN_SECONDS, Door
from holdfast_engine.apiserver.socketage import ReadingDelays, is_gone, waited_seconds
from holdfast_engine.clients.written_file import ReportKind, WrittenReader, WrittenWriter, name_of
from holdfast_engine.objectives.rules import Limits, Objectives, RejectionReason
from tests.holdfast_engine.test_engine_admission import record
from tests.holdfast_engine.test_engine_fastloop import LAW, ToyEngine
from tests.holdfast_engine.test_engine_middleware import BODY, FakeVllm, Pod, pod

__all__ = ["pod"]
LIMITS = Limits(1, Objectives(1.0, 0.05), prior=LAW)
LATE = {"limit_reject": 0.0, "limit_max_queued_seconds": 600.0}


class Engine(ToyEngine):
    """A toy engine that hears of its requests before they come."""

    def __init__(self, path: Path) -> None:
        self.writer = WrittenWriter(path)
        super().__init__(LIMITS, written=WrittenReader(path))

    def say(self, kind: ReportKind, name: bytes, ago: float = 0.0) -> None:
        self.writer.write(kind, name, self.now - ago)

    def counted(self) -> tuple[int, int, int, int]:
        self.loop.look()
        ledger = self.loop.ledger.own
        return ledger.arrived, sum(ledger.bad.values()), ledger.withdrawn, ledger.unjudged


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "answers.written")


@pytest.mark.parametrize("kind", [ReportKind.STARTED, ReportKind.ARRIVED])
def test_a_request_is_as_old_as_its_client_says_and_late_ones_start_last(engine: Engine, kind: ReportKind) -> None:
    engine.say(kind, name_of("r1"), ago=0.2)
    engine.arrive()
    engine.loop.before_step(0)
    assert engine.loop.ledger.entry("r1").arrived == pytest.approx(engine.now - 0.2)  # type: ignore[union-attr]
    engine.say(kind, name_of("r2"), ago=0.995)
    engine.arrive()
    assert engine.loop.ledger.entry("r2").arrived == pytest.approx(engine.now - 0.995)  # type: ignore[union-attr]
    engine.loop.queue.remove_requests([engine.loop.queue.peek_request()])
    fresh = engine.arrive()
    engine.loop.before_step(0)
    assert engine.loop.queue.order.sizes == (0, 1, 1)
    assert engine.loop.queue.peek_request() is fresh


@pytest.mark.parametrize("at", [math.nan, math.inf, -1e9, 1e9])
def test_an_age_that_cannot_be_is_not_believed(engine: Engine, at: float) -> None:
    engine.writer.write(ReportKind.STARTED, name_of("r1"), at)
    engine.arrive()
    assert engine.loop.ledger.entry("r1").arrived == engine.now  # type: ignore[union-attr]


def test_prompts_start_slower_while_requests_wait_long_to_be_read(engine: Engine) -> None:
    for number in range(1, 600):
        engine.say(ReportKind.STARTED, name_of(f"r{number}"), ago=0.6)
        engine.arrive(output=2)
        engine.step()
    assert engine.loop._front_end.tps < math.inf


def test_a_request_at_the_door_is_counted_once_and_bad_when_its_token_is_overdue(engine: Engine) -> None:
    engine.say(ReportKind.HELD, b"h" * 16, ago=0.5)
    assert engine.counted() == (1, 0, 0, 1)
    engine.now += 0.6
    assert engine.counted() == (1, 1, 0, 0)
    engine.say(ReportKind.RESUMED, b"h" * 16)
    engine.say(ReportKind.STARTED, name_of("r1"), ago=1.1)
    request = engine.arrive(output=1)
    assert engine.counted() == (1, 1, 0, 0)
    assert engine.loop.ledger.entry(request.request_id).arrived == pytest.approx(engine.now - 1.1)  # type: ignore[union-attr]
    while engine.loop.queue or engine.running:
        engine.step()
    engine.say(ReportKind.GONE, name_of("r1"))
    assert engine.counted() == (1, 1, 0, 0)
    assert len(engine.loop.ledger) == 0


def test_a_client_that_leaves_the_door_in_time_is_withdrawn(engine: Engine) -> None:
    engine.say(ReportKind.HELD, b"h" * 16, ago=0.3)
    assert engine.counted() == (1, 0, 0, 1)
    engine.say(ReportKind.GONE, b"h" * 16)
    assert engine.counted() == (1, 0, 1, 0)


def test_only_a_late_request_of_an_api_server_that_is_behind_waits() -> None:
    assert not decide(record(**LATE), 10).waits, "the engine alone is busy"
    assert decide(record(**LATE), 10, waited_seconds=0.3).waits
    assert not decide(record(waiting_fresh_tokens=100.0, **LATE), 10, waited_seconds=0.3).waits, "it can be in time"
    assert decide(record(waiting_fresh_tokens=100.0, **LATE), 10, waited_seconds=0.95).waits


def test_with_reject_the_time_in_which_nobody_read_a_request_counts() -> None:
    quick = record(waiting_fresh_tokens=500.0)
    assert decide(quick, 10).admitted
    assert decide(quick, 10, waited_seconds=0.6).refused is RejectionReason.LATE
    assert decide(record(waiting_fresh_tokens=0.0), 10, waited_seconds=1.2).refused is RejectionReason.LATE


def test_the_door_opens_where_all_keep_up_and_else_for_few() -> None:
    door, busy = Door(), lambda: True
    assert door.opens(0.0, lambda: False)
    assert not door.opens(0.5 * OPEN_SECONDS, lambda: False), "one after the other"
    assert not door.opens(1.5 * OPEN_SECONDS, busy)
    door.passed(is_behind=True)
    assert not door.opens(9.0, lambda: False)
    opened = 0
    for number in range(100):
        door.passed(is_behind=True)
        opened += door.opens(9.0 + number, busy)
    assert opened == 2


async def test_the_kernel_knows_how_long_a_request_has_waited() -> None:
    found: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    class Cycle(asyncio.Protocol):
        disconnected = True

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, _: bytes) -> None:
            found.set_result(waited_seconds(self.receive))

        async def receive(self) -> None: ...

    server = await asyncio.get_running_loop().create_server(Cycle, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.sendall(b"POST")
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        time.sleep(0.2)  # a thread that is busy with other things
        assert 0.1 < await found < 5.0
    server.close()
    assert is_gone(Cycle().receive)
    assert waited_seconds(object()) == 0.0
    assert not is_gone(object())


class Waited:
    """What uvicorn hands out as `receive`, of a request that has waited."""

    family = socket.AF_INET

    def __init__(self, seconds: float, peer: tuple[str, int] | None = None) -> None:
        self.transport = self
        self.disconnected = False
        self._seconds = seconds
        self._peer = peer

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else self

    def getsockopt(self, *_: int) -> bytes:
        return bytes(52) + int(1e3 * self._seconds).to_bytes(4, "little")

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}


async def ask(pod: Pod, waited: Waited) -> int:
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "app": pod.vllm}
    status = []

    async def send(message: Any) -> None:
        status.append(message.get("status"))

    await pod.app(scope, waited.receive, send)
    return int(status[0])


async def test_who_comes_too_late_waits_at_the_door_until_there_is_room(pod: Pod, tmp_path: Path) -> None:
    reader = WrittenReader(tmp_path / "answers.written")
    pod.tell(**LATE)
    late = asyncio.create_task(ask(pod, Waited(0.4)))
    await asyncio.sleep(0.02)
    assert pod.vllm.served == 0
    held = reader.poll(0.0)[-1]
    assert held.kind is ReportKind.HELD
    assert held.at == pytest.approx(pod.now - 0.4)
    assert await ask(pod, Waited(0.0)) == 200, "others are served meanwhile"
    pod.tell(waiting_fresh=0.0, waiting_fresh_tokens=0.0, **LATE)
    pod.now += 1.0
    assert await asyncio.wait_for(late, 5.0) == 200
    assert pod.vllm.served == 2


async def test_an_engine_with_nothing_to_do_keeps_nobody_at_the_door(pod: Pod) -> None:
    pod.tell(**LATE)  # by its objectives it is overloaded, and no later record says otherwise
    assert await asyncio.wait_for(ask(pod, Waited(0.4)), 5.0) == 200


async def test_who_has_left_the_door_costs_no_more_and_who_waits_too_long_gets_a_503(pod: Pod, tmp_path: Path) -> None:
    reader = WrittenReader(tmp_path / "answers.written")
    pod.tell(**LATE)
    gone = Waited(0.4)
    asked = asyncio.create_task(ask(pod, gone))
    await asyncio.sleep(0.02)
    gone.disconnected = True
    pod.tell(waiting_fresh=0.0, waiting_fresh_tokens=0.0, **LATE)
    pod.now += 1.0
    assert await asyncio.wait_for(asked, 5.0) == 503
    assert [report.kind for report in reader.poll(0.0)] == [ReportKind.HELD, ReportKind.GONE]
    pod.tell(**{**LATE, "limit_max_queued_seconds": 0.05})
    assert await asyncio.wait_for(ask(pod, Waited(0.4)), 5.0) == 503
    assert pod.vllm.served == 0


async def test_a_fault_opens_the_door(pod: Pod) -> None:
    pod.tell(**LATE)
    late = asyncio.create_task(ask(pod, Waited(0.4)))
    await asyncio.sleep(0.02)
    pod.app._give_up(RuntimeError("a fault"))
    assert await asyncio.wait_for(late, 5.0) == 200
    assert isinstance(pod.vllm, FakeVllm)
    assert BEHIND_SHARE < 0.4


async def test_who_sends_before_its_last_answer_has_not_waited_for_the_api_server(pod: Pod, tmp_path: Path) -> None:
    """HTTP pipelining: its own client let it lie in the kernel, and so would call all others late."""
    reader = WrittenReader(tmp_path / "answers.written")
    pod.tell(**LATE)
    peer = ("10.0.0.1", 4000)
    assert await ask(pod, Waited(0.0, peer)) == 200
    assert await ask(pod, Waited(0.9, peer)) == 200, "it waited for the first answer"
    assert not [report for report in reader.poll(0.0) if report.kind is ReportKind.HELD]
    pod.now += 0.4
    late = asyncio.create_task(ask(pod, Waited(0.9, peer)))
    await asyncio.sleep(0.02)
    (held,) = (report for report in reader.poll(0.0) if report.kind is ReportKind.HELD)
    assert held.at == pytest.approx(pod.now - 0.4)
    assert await ask(pod, Waited(0.0, peer)) == 200
    pod.app._give_up(RuntimeError("the end of the test"))
    assert await asyncio.wait_for(late, 5.0) == 200


async def test_a_request_is_as_old_as_its_last_byte(pod: Pod, tmp_path: Path) -> None:
    """A client that sends slowly is not late for the service's sake."""
    reader = WrittenReader(tmp_path / "answers.written")
    pod.tell(waiting_fresh_tokens=0.0)

    class Slow(Waited):
        async def receive(self) -> dict[str, Any]:
            pod.now += 30.0
            return await super().receive()

    pod.vllm.tokens_per_byte = 1.0
    assert await ask(pod, Slow(0.1)) == 200
    (arrived,) = (report for report in reader.poll(0.0) if report.kind is ReportKind.ARRIVED)
    assert arrived.at == pytest.approx(pod.now - 0.1)


def test_the_connections_that_are_remembered_are_bounded() -> None:
    delays = ReadingDelays(lambda: 0.0)
    for port in range(20_000):
        delays.answered(Waited(0.0, ("10.0.0.1", port)).receive)
    assert len(delays._answered_at) == 16_384
    delays.answered(object())
    assert delays.seconds(object()) == 0.0
