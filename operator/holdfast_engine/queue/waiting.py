"""vLLM's waiting queue with deadlines: the interface of `vllm.v1.core.sched.request_queue.RequestQueue`.

It imports no vLLM, so that it is tested without. Should anything in the order of requests fail, the queue goes on as a
first-come-first-served one by itself: vLLM holds it in the middle of a step and must always get an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from holdfast_engine.queue.order import DeadlineOrder, Item, Place

Result = TypeVar("Result")


class DeadlineQueue(Generic[Item]):
    """Requests that wait; `place_of` gives a request's place, None for one that goes to the front lane.

    `failure` is the exception after which the queue went on first come first served.
    """

    def __init__(self, place_of: Callable[[Item], Place | None]) -> None:
        self.order: DeadlineOrder[Item] = DeadlineOrder()
        self.failure: Exception | None = None
        self._place_of = place_of
        self._plain: deque[Item] = deque()
        self._shown: Item | None = None

    def advance(self, now: float) -> None:
        """Begin a step: the order stands still until the next one."""
        self._shown = None
        self.order.advance(now)

    def add_request(self, request: Item) -> None:
        """Add a request that arrived."""
        if self.failure is None:
            try:
                return self.order.add(request, self._place_of(request))
            except Exception as error:
                self._give_up(error, without=request)
        self._plain.append(request)

    def pop_request(self) -> Item:
        """Take the request that `peek_request` shows."""
        if not len(self):
            raise IndexError("pop from an empty queue")
        if self.failure is None:
            try:
                return self.order.take()
            except Exception as error:
                self._give_up(error)
        return self._plain.popleft()

    def peek_request(self) -> Item:
        """Show the request that starts next."""
        if not len(self):
            raise IndexError("peek from an empty queue")
        if self.failure is None:
            try:
                self._shown = self.order.head()
                return self._shown
            except Exception as error:
                self._give_up(error)
        return self._plain[0]

    def prepend_request(self, request: Item) -> None:
        """Put a preempted request before all others: it has its first token, and others wait for its memory. Batch
        requests go back to their place behind the others."""
        if self.failure is None:
            try:
                place = self._place_of(request)
                if place is not None and place.batch:
                    return self.order.add(request, place)
                return self.order.put_first(request)
            except Exception as error:
                self._give_up(error, without=request)
        self._plain.appendleft(request)

    def prepend_requests(self, requests: Iterable[Item]) -> None:
        """Put requests back that were taken in this step and cannot start yet, the last one first.

        Preempted requests stand before all others again, the rest where their deadlines place them.
        """
        for request in list(requests):
            self._put_back(request)

    def remove_request(self, request: Item) -> None:
        """Take a request out; ValueError where it does not wait here."""
        if request not in self.in_arrival_order():
            raise ValueError("the request does not wait here")
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Item]) -> None:
        """Take requests out; requests that do not wait here are passed over."""
        leaving = set(requests)
        if self.failure is None:
            try:
                return self.order.remove(leaving)
            except Exception as error:
                self._give_up(error)
        self._plain = deque(request for request in self._plain if request not in leaving)

    def in_arrival_order(self) -> list[Item]:
        """All requests as a first-come-first-served queue holds them."""
        return list(self._plain) if self.failure is not None else self.order.by_arrival()

    def __bool__(self) -> bool:
        """Whether a request may start in this step: batch requests may have to wait although there is room."""
        if self.failure is None:
            try:
                return self.order.any_may_start
            except Exception as error:
                self._give_up(error)
        return len(self._plain) > 0

    def __len__(self) -> int:
        if self.failure is None:
            try:
                return len(self.order)
            except Exception as error:
                self._give_up(error)
        return len(self._plain)

    def __iter__(self) -> Iterator[Item]:
        if self.failure is None:
            try:
                return iter(list(self.order))
            except Exception as error:
                self._give_up(error)
        return iter(list(self._plain))

    def _put_back(self, request: Item) -> None:
        if self.failure is None:
            try:
                place = self._place_of(request)
                return self.order.put_first(request) if place is None else self.order.put_back(request, place)
            except Exception as error:
                self._give_up(error, without=request)
        self._plain.appendleft(request)

    def _give_up(self, error: Exception, without: Item | None = None) -> None:
        """Go on first come first served; `without` is the request that the caller adds itself.

        What vLLM has looked at in this step comes first: it has memory by now, and is what vLLM means to take.
        """
        waiting = self.order.by_arrival()
        self._plain = deque(request for request in waiting if request is not without)
        shown = self._shown
        if shown is not None and shown in self._plain:
            self._plain.remove(shown)
            self._plain.appendleft(shown)
        self.failure = error
