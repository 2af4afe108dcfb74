"""The waiting queue against a list that is kept in order the slow way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast_engine.queue.order import LATE_SHARE, Place
from holdfast_engine.queue.waiting import DeadlineQueue


@dataclass(eq=False)
class Request:
    """A request as the queue sees it."""

    name: int
    place: Place
    preempted: bool = False

    def current_place(self) -> Place | None:
        return None if self.preempted else self.place


class Reference:
    """The rules of the order, sorted anew each time."""

    def __init__(self) -> None:
        self.now = float("-inf")
        self.front: list[Request] = []
        self.placed: list[Request] = []
        self.late: set[Request] = set()
        self.credit = 0.0
        self.spent: dict[Request, float] = {}

    def in_order(self) -> list[Request]:
        copy = Reference()
        copy.now, copy.credit = self.now, self.credit
        copy.front, copy.placed, copy.late = list(self.front), list(self.placed), set(self.late)
        return [copy.take() for _ in range(len(copy.front) + len(copy.placed))]

    def settle(self) -> None:
        for request in sorted(set(self.placed) - self.late, key=lambda found: self._rank(found, found.place.rank)):
            if request.place.start_by >= self.now:
                break
            self.late.add(request)

    def next(self) -> Request:
        if self.front:
            return self.front[0]
        self.settle()
        fresh = [request for request in self.placed if request not in self.late]
        late = sorted(self.late, key=lambda request: self._rank(request, request.place.arrived))
        if late and (not fresh or self.credit >= late[0].place.tokens):
            return late[0]
        return min(fresh, key=lambda request: self._rank(request, request.place.rank))

    def take(self) -> Request:
        request = self.next()
        if self.front:
            return self.front.pop(0)
        if self.late:
            before, tokens = self.credit, request.place.tokens
            self.credit = max(0.0, before + (-tokens if request in self.late else LATE_SHARE * tokens))
            self.spent[request] = self.credit - before
        self.leave(request)
        return request

    def leave(self, request: Request) -> None:
        self.placed.remove(request)
        if request in self.late:
            self.late.remove(request)
            if not self.late:
                self.credit = 0.0

    def _rank(self, request: Request, key: float) -> tuple[float, int]:
        return key, self.placed.index(request)


class QueueMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.queue: DeadlineQueue[Request] = DeadlineQueue(lambda request: request.current_place())
        self.reference = Reference()
        self.number = 0
        self.now = 0.0
        self.skipped: deque[Request] = deque()

    @rule(ttft=st.sampled_from([1.0, 2.0, 5.0]), needs=st.floats(0, 1.5), tokens=st.integers(1, 500))
    def add(self, ttft: float, needs: float, tokens: int) -> None:
        self.number += 1
        deadline = self.now + ttft
        request = Request(self.number, Place(deadline, deadline - needs, self.now, tokens))
        self.queue.add_request(request)
        self.reference.placed.append(request)

    @rule(seconds=st.floats(0, 1.5))
    def begin_step(self, seconds: float) -> None:
        self._end_step()
        self.now += seconds
        self.queue.advance(self.now)
        self.reference.now = self.now
        self.reference.spent.clear()

    @precondition(lambda self: len(self.queue) > 0)
    @rule(skip=st.booleans())
    def peek_and_pop(self, skip: bool) -> None:
        shown = self.queue.peek_request()
        assert shown is self.reference.next()
        assert self.queue.pop_request() is shown is self.reference.take()
        if skip:
            self.skipped.appendleft(shown)

    @rule()
    def preempt(self) -> None:
        self.number += 1
        request = Request(self.number, Place(0.0, 0.0, 0.0, 1), preempted=True)
        self.queue.prepend_request(request)
        self.reference.front.insert(0, request)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data(), strangers=st.integers(0, 2))
    def remove_some(self, data: st.DataObject, strangers: int) -> None:
        waiting = self.reference.front + self.reference.placed
        leaving = data.draw(st.lists(st.sampled_from(waiting), unique=True))
        unknown = [Request(-1, Place(0.0, 0.0, 0.0, 1)) for _ in range(strangers)]
        self.queue.remove_requests([*leaving, *unknown])
        self._forget(leaving)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.reference.front + self.reference.placed))
        self.queue.remove_request(request)
        self._forget([request])

    @invariant()
    def holds_what_the_reference_holds(self) -> None:
        if not hasattr(self, "queue"):
            return
        expected = self.reference.in_order()
        assert len(self.queue) == len(expected)
        assert bool(self.queue) is bool(expected)
        assert [request.name for request in self.queue] == [request.name for request in expected]

    @precondition(lambda self: self.reference.placed and not self.reference.front)
    @rule()
    def counts_agree(self) -> None:
        self.queue.peek_request()
        self.reference.settle()
        late = self.reference.late
        fresh = [request for request in self.reference.placed if request not in late]
        assert self.queue.order.sizes == (0, len(fresh), len(late))
        assert self.queue.order.fresh_tokens == sum(request.place.tokens for request in fresh)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self._end_step()
            expected = self.reference.in_order()
            assert [self.queue.pop_request() for _ in expected] == expected
            assert not self.queue
            assert self.queue.failure is None

    def _end_step(self) -> None:
        self.queue.prepend_requests(self.skipped)
        for request in self.skipped:
            if request.preempted:
                self.reference.front.insert(0, request)
            else:
                self.reference.placed.append(request)
                self.reference.credit = max(0.0, self.reference.credit - self.reference.spent.pop(request, 0.0))
        self.skipped.clear()

    def _forget(self, leaving: list[Request]) -> None:
        self.reference.front = [request for request in self.reference.front if request not in leaving]
        for request in leaving:
            if request in self.reference.placed:
                self.reference.leave(request)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40)


def broken_after(count: int) -> DeadlineQueue[Request]:
    """A queue with three requests whose order fails from the n-th place on."""
    asked = 0

    def place_of(request: Request) -> Place | None:
        nonlocal asked
        asked += 1
        if asked > count:
            raise RuntimeError("no place")
        return request.place

    queue: DeadlineQueue[Request] = DeadlineQueue(place_of)
    for number in range(3):
        queue.add_request(Request(number, Place(9.0 - number, 9.0 - number, float(number), 1)))
    return queue


@pytest.mark.parametrize("count", range(3))
def test_a_queue_that_cannot_order_goes_on_by_arrival(count: int) -> None:
    queue = broken_after(count)
    assert isinstance(queue.failure, RuntimeError)
    assert [request.name for request in queue] == [0, 1, 2]
    assert queue.peek_request() is queue.pop_request()
    queue.remove_requests(list(queue)[:1])
    queue.prepend_request(Request(7, Place(0, 0, 0, 1)))
    assert [queue.pop_request().name for _ in range(len(queue))] == [7, 2]
    assert not queue


def break_order(queue: DeadlineQueue[Request], method: str) -> None:
    class Broken(type(queue.order)):  # type: ignore[misc]
        pass

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    setattr(Broken, method, fail)
    queue.order.__class__ = Broken


@pytest.mark.parametrize("method", ["take", "__len__"])
def test_what_vllm_has_looked_at_is_what_it_gets_though_the_order_fails_in_between(method: str) -> None:
    queue = broken_after(99)
    shown = queue.peek_request()
    assert shown.name == 2, "the last to arrive is the first by deadline"
    break_order(queue, method)
    assert queue.pop_request() is shown
    assert [queue.pop_request().name for _ in range(len(queue))] == [0, 1]


@pytest.mark.parametrize("method", ["head", "take", "put_first", "put_back", "remove", "__iter__", "__len__"])
def test_no_request_is_lost_whatever_fails(method: str) -> None:
    queue = broken_after(99)
    taken = queue.pop_request()
    break_order(queue, method)
    queue.prepend_requests([taken])
    queue.prepend_request(Request(5, Place(0, 0, 0, 1)))
    queue.remove_requests([])
    names = [request.name for request in queue]
    assert queue.peek_request().name == names[0]
    assert sorted(queue.pop_request().name for _ in range(len(queue))) == [0, 1, 2, 5]
    assert isinstance(queue.failure, RuntimeError)


def test_an_empty_queue_raises_as_the_stock_one_does() -> None:
    queue: DeadlineQueue[Request] = DeadlineQueue(lambda request: request.place)
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove_request(Request(1, Place(0, 0, 0, 1)))
    assert queue.failure is None
