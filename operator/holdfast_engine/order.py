"""The order in which waiting requests start: those that can still be in time by deadline, then the late ones.

Used by the queue inside vLLM, by the emulator and by the simulator. Every operation is O(log n); the time is given once
per step and stands still in between, so that what is looked at is what is taken.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

# Share of the started prompt tokens that goes to late requests while others can still be in time: a late request is
# worth nothing to the objective, but somebody may still be waiting for it.
LATE_SHARE = 0.02
_COMPACT_ABOVE = 64

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Place:
    """What a request's place follows from, in seconds and tokens.

    `start_by` is the last moment at which starting it still brings its first token in time; of those that can be in
    time, the one with the lowest `rank` starts first.
    """

    rank: float
    start_by: float
    arrived: float
    tokens: int


@dataclass(slots=True, eq=False)
class _Entry(Generic[Item]):
    item: Item
    place: Place
    number: int
    late: bool = False
    gone: bool = False


_Heap = list[tuple[float, int, _Entry[Item]]]


class DeadlineOrder(Generic[Item]):
    """Waiting items in the order they start in.

    Three lanes: items without a place first come first served and before all others (preempted requests, or all of
    them while there are no objectives), items that can still be in time by rank, and late ones by arrival.
    """

    def __init__(self, late_share: float = LATE_SHARE) -> None:
        self.fresh_tokens = 0
        self._late_share = late_share
        self._now = float("-inf")
        self._front: deque[Item] = deque()
        self._fresh: _Heap[Item] = []
        self._late: _Heap[Item] = []
        self._entries: dict[Item, _Entry[Item]] = {}
        self._late_count = 0
        self._numbers = 0
        self._credit = 0.0
        self._taken: dict[Item, float] = {}

    def __len__(self) -> int:
        return len(self._front) + len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries or item in self._front

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Items at the front, those that can still be in time, and late ones."""
        return len(self._front), len(self._entries) - self._late_count, self._late_count

    def advance(self, now: float) -> None:
        """Begin a step at this time."""
        self._now = max(self._now, now)
        self._taken.clear()
        # A full engine asks for no head, and still wants to know what has become late.
        self._settle()

    def add(self, item: Item, place: Place | None) -> None:
        """Append an item; without a place it goes to the end of the front lane."""
        if place is None:
            self._front.append(item)
            return
        self._numbers += 1
        entry = _Entry(item, place, self._numbers)
        self._entries[item] = entry
        self.fresh_tokens += place.tokens
        heapq.heappush(self._fresh, (place.rank, entry.number, entry))

    def put_first(self, item: Item) -> None:
        """Put an item before all others."""
        self._front.appendleft(item)

    def put_back(self, item: Item, place: Place) -> None:
        """Give an item that was taken in this step and could not start its place again, and the share it took."""
        self.add(item, place)
        self._credit = max(0.0, self._credit - self._taken.pop(item, 0.0))

    def head(self) -> Item:
        """The item that starts next; IndexError where there is none."""
        if self._front:
            return self._front[0]
        return self._next().item

    def take(self) -> Item:
        """Take out the item that starts next; IndexError where there is none."""
        if self._front:
            return self._front.popleft()
        entry = self._next()
        self._charge(entry)
        self._leave(entry)
        return entry.item

    def remove(self, items: Iterable[Item]) -> None:
        """Take out these items; those that are not here are passed over."""
        leaving = set(items)
        for item in leaving:
            entry = self._entries.get(item)
            if entry is not None:
                self._leave(entry)
        if any(item in leaving for item in self._front):
            self._front = deque(item for item in self._front if item not in leaving)
        self._compact()

    def older_than(self, moment: float) -> list[Item]:
        """Items that arrived before the moment, as far as they stand before all younger ones; the front lane is left
        out, it has its first token or its place in the next step."""
        found = []
        for item, entry in self._entries.items():
            if entry.place.arrived >= moment:
                break
            found.append(item)
        return found

    def by_arrival(self) -> list[Item]:
        """All items as a first-come-first-served queue would hold them: the front lane, then by arrival."""
        entries = sorted(self._entries.values(), key=lambda entry: (entry.place.arrived, entry.number))
        return [*self._front, *(entry.item for entry in entries)]

    def __iter__(self) -> Iterator[Item]:
        """The items in the order they would start in if all started now."""
        rest = self._copy()
        yield from list(self._front)
        while rest._entries:
            yield rest.take()

    def _next(self) -> _Entry[Item]:
        self._settle()
        if self._late and (not self._fresh or self._credit >= self._late[0][2].place.tokens):
            return self._late[0][2]
        return self._fresh[0][2]

    def _settle(self) -> None:
        """Bring both heaps to a head that counts: drop what is gone, move what has become late."""
        fresh, late = self._fresh, self._late
        while fresh and (fresh[0][2].gone or fresh[0][2].place.start_by < self._now):
            entry = heapq.heappop(fresh)[2]
            if not entry.gone:
                entry.late = True
                self._late_count += 1
                self.fresh_tokens -= entry.place.tokens
                heapq.heappush(late, (entry.place.arrived, entry.number, entry))
        while late and late[0][2].gone:
            heapq.heappop(late)

    def _leave(self, entry: _Entry[Item]) -> None:
        entry.gone = True
        del self._entries[entry.item]
        if not entry.late:
            self.fresh_tokens -= entry.place.tokens
            return
        self._late_count -= 1
        if not self._late_count:
            self._credit = 0.0

    def _charge(self, entry: _Entry[Item]) -> None:
        """Late items save up a share of what the others take, and spend it on their own tokens."""
        if self._late_count:
            before = self._credit
            amount = -float(entry.place.tokens) if entry.late else self._late_share * entry.place.tokens
            self._credit = max(0.0, before + amount)
            self._taken[entry.item] = self._credit - before

    def _copy(self) -> DeadlineOrder[Item]:
        rest: DeadlineOrder[Item] = DeadlineOrder(self._late_share)
        rest._now, rest._credit, rest._late_count = self._now, self._credit, self._late_count
        for entry in self._entries.values():
            copied = rest._entries[entry.item] = replace(entry)
            if entry.late:
                rest._late.append((entry.place.arrived, entry.number, copied))
            else:
                rest._fresh.append((entry.place.rank, entry.number, copied))
        heapq.heapify(rest._fresh)
        heapq.heapify(rest._late)
        return rest

    def _compact(self) -> None:
        """Forget removed items that lie deep in a heap, so that the heaps grow with what waits and not with time."""
        if len(self._fresh) + len(self._late) > 2 * len(self._entries) + _COMPACT_ABOVE:
            for heap in (self._fresh, self._late):
                heap[:] = [element for element in heap if not element[2].gone]
                heapq.heapify(heap)
