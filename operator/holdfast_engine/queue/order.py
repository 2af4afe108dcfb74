"""The order in which waiting requests start: requests that can still be in time by priority and deadline, then the
late ones, then batch.

Used by the queue inside vLLM, by the emulator and by the simulator. Every operation is O(log n); the time is given once
per step and stands still in between, so that what is looked at is what is taken.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

# Share of the started prompt tokens that goes to late requests while others can still be in time: a late request is
# worth nothing to the objective, but somebody may still be waiting for it.
LATE_SHARE = 0.02
# The same for requests that can still be in time and wait for requests of a higher priority, in equal parts for each
# priority that waits: nobody is shut out, and many priorities take no more from the highest than two do.
LOWER_SHARE = 0.05
_COMPACT_ABOVE = 64

Item = TypeVar("Item", bound=Hashable)


class Place(NamedTuple):
    """What a request's place follows from, in seconds and tokens.

    `start_by` is the last moment at which starting it still brings its first token in time; of the requests
    that can be in time, those of the highest priority start first, and of these the one with the lowest `rank`.
    """

    rank: float
    start_by: float
    arrived: float
    tokens: int
    priority: int = 0
    batch: bool = False


@dataclass(slots=True, eq=False)
class _Entry(Generic[Item]):
    item: Item
    place: Place
    number: int
    lane: _Lane[Item]
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Lane(Generic[Item]):
    """Items that wait behind all lanes before theirs, but for a share of what the others take: that is saved up while
    any item is here, and spent on their own tokens."""

    priority: int = 0
    heap: list[tuple[float, int, _Entry[Item]]] = field(default_factory=list)
    count: int = 0
    tokens: int = 0
    credit: float = 0.0

    def add(self, entry: _Entry[Item], rank: float) -> None:
        entry.lane = self
        self.count += 1
        self.tokens += entry.place.tokens
        heapq.heappush(self.heap, (rank, entry.number, entry))

    def leave(self, entry: _Entry[Item]) -> None:
        """An item left; its place in the heap is forgotten later."""
        self.count -= 1
        self.tokens -= entry.place.tokens
        if not self.count:
            self.credit = 0.0

    def drop_gone(self) -> None:
        while self.heap and self.heap[0][2].gone:
            heapq.heappop(self.heap)

    def compact(self) -> None:
        self.heap[:] = [element for element in self.heap if not element[2].gone]
        heapq.heapify(self.heap)

    def emptied(self) -> _Lane[Item]:
        """This lane without its items."""
        return _Lane(self.priority, credit=self.credit)


class DeadlineOrder(Generic[Item]):
    """Waiting items in the order they start in.

    Four kinds of lanes: items without a place first come first served and before all others (preempted requests, or
    all of them while there are no objectives), items that can still be in time by rank, in a lane for each priority,
    late ones of all priorities by arrival, and batch items, again in a lane for each priority.

    `batch_room` is how many batch items may start in this step, `shares` what a priority gets behind others where that
    is not an equal part of the lower share.
    """

    def __init__(self, late_share: float = LATE_SHARE, lower_share: float = LOWER_SHARE) -> None:
        self._late_share, self._lower_share = late_share, lower_share
        self._now = float("-inf")
        self._front: deque[Item] = deque()
        self._fresh: list[_Lane[Item]] = [_Lane()]
        self._late: _Lane[Item] = _Lane()
        self._batch: list[_Lane[Item]] = []
        self._lanes = (*self._fresh, self._late)
        self.batch_room: float = math.inf
        self.shares: Mapping[int, float] = {}
        self._entries: dict[Item, _Entry[Item]] = {}
        self._counts: dict[int, int] = {}
        self._numbers = 0
        self._taken: dict[Item, list[tuple[_Lane[Item], float]]] = {}

    def __len__(self) -> int:
        return len(self._front) + len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries or item in self._front

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Items at the front, items that can still be in time, and late ones; batch items are in none of them."""
        return len(self._front), len(self._entries) - self._late.count - self.batch_count, self._late.count

    @property
    def batch_count(self) -> int:
        """Batch items."""
        return sum(lane.count for lane in self._batch) if self._batch else 0

    @property
    def urgent_count(self) -> int:
        """All other items."""
        return len(self._front) + len(self._entries) - (self.batch_count if self._batch else 0)

    @property
    def any_may_start(self) -> bool:
        """Whether an item may start in this step."""
        return bool(self._front) or len(self._entries) > (0 if self.batch_room >= 1.0 else self.batch_count)

    @property
    def fresh_tokens(self) -> int:
        """Tokens of items that can still be in time, batch items left out."""
        return sum(lane.tokens for lane in self._fresh)

    def fresh_tokens_from(self, priority: int, batch: bool = False) -> int:
        """The same of this priority and higher ones; before a batch item, with those of batch items."""
        if batch:
            return self.fresh_tokens + sum(lane.tokens for lane in self._batch if lane.priority >= priority)
        return sum(lane.tokens for lane in self._fresh if lane.priority >= priority)

    def count_from(self, priority: int, batch: bool = False) -> int:
        """Items at the front, and items of this priority and higher ones, late ones too; before a batch item, all
        items that are not batch as well."""
        if batch:
            return self.urgent_count + sum(lane.count for lane in self._batch if lane.priority >= priority)
        return len(self._front) + sum(count for each, count in self._counts.items() if each >= priority)

    def advance(self, now: float) -> None:
        """Begin a step at this time."""
        if now > self._now:
            self._now = now
        if self._taken:
            self._taken = {}
        # A full engine asks for no head, and still wants to know what has become late.
        self._settle()

    def add(self, item: Item, place: Place | None) -> None:
        """Append an item; without a place it goes to the end of the front lane."""
        if place is None:
            self._front.append(item)
            return
        self._numbers += 1
        lane = self._fresh[0]
        if place.batch or lane.priority != place.priority:
            lane = self._lane(place.priority, place.batch)
        self._entries[item] = entry = _Entry(item, place, self._numbers, lane)
        if not place.batch:
            self._counts[place.priority] = self._counts.get(place.priority, 0) + 1
        lane.add(entry, place.rank)

    def put_first(self, item: Item) -> None:
        """Put an item before all others."""
        self._front.appendleft(item)

    def put_back(self, item: Item, place: Place) -> None:
        """Give an item that was taken in this step and could not start its place again, and the share it took."""
        self.add(item, place)
        if item in self._taken and place.batch:
            self.batch_room += 1
        for lane, amount in self._taken.pop(item, ()):
            lane.credit = max(0.0, lane.credit - amount)

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
        """Take out these items; missing items are passed over."""
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
        out, it has its first token or its place in the next step, and so are batch items, which may wait."""
        found = []
        for item, entry in self._entries.items():
            if entry.place.batch:
                continue
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

    def _lane(self, priority: int, batch: bool) -> _Lane[Item]:
        """The lane of items of this priority; lanes without items are forgotten when another one comes."""
        lanes = self._batch if batch else self._fresh
        for lane in lanes:
            if lane.priority == priority:
                return lane
        found: _Lane[Item] = _Lane(priority)
        lanes[:] = sorted(
            (found, *(lane for lane in lanes if lane.count)), key=lambda lane: lane.priority, reverse=True
        )
        self._lanes = (*self._fresh, self._late, *self._batch)
        return found

    def _next(self) -> _Entry[Item]:
        self._settle()
        first, saved = None, None
        for lane in self._lanes:
            if lane.count:
                if first is None:
                    first = lane
                elif lane.credit > 0.0 and lane.credit >= lane.heap[0][2].place.tokens:
                    saved = lane
        found = saved or first
        if found is None:
            raise IndexError("nothing waits")
        return found.heap[0][2]

    def _settle(self) -> None:
        """Bring all heaps to a head that counts: drop what is gone, move what has become late."""
        late = self._late
        for lane in self._fresh:
            heap = lane.heap
            while heap and (heap[0][2].gone or heap[0][2].place.start_by < self._now):
                entry = heapq.heappop(heap)[2]
                if not entry.gone:
                    lane.leave(entry)
                    late.add(entry, entry.place.arrived)
        late.drop_gone()
        for lane in self._batch:
            lane.drop_gone()

    def _leave(self, entry: _Entry[Item]) -> None:
        entry.gone = True
        del self._entries[entry.item]
        if not entry.place.batch:
            self._counts[entry.place.priority] -= 1
        entry.lane.leave(entry)

    def _charge(self, entry: _Entry[Item]) -> None:
        """Items behind others save up a share of what the others take, and spend it on their own tokens."""
        if len(self._lanes) == 2 and not self._late.count:
            return  # nobody is behind others
        if entry.place.batch:
            self.batch_room -= 1
            self._taken[entry.item] = []
            return
        tokens, taken = entry.place.tokens, []
        lower = self._lower_share / max(1, sum(lane.count > 0 for lane in self._fresh) - 1)
        for lane in (*self._fresh, self._late):
            if lane.count:
                before = lane.credit
                share = self._late_share if lane is self._late else self.shares.get(lane.priority, lower)
                lane.credit = max(0.0, before + (-tokens if lane is entry.lane else share * tokens))
                taken.append((lane, lane.credit - before))
        self._taken[entry.item] = taken

    def _copy(self) -> DeadlineOrder[Item]:
        rest: DeadlineOrder[Item] = DeadlineOrder(self._late_share, self._lower_share)
        rest._now, rest._late = self._now, self._late.emptied()
        rest._fresh, rest._counts = [lane.emptied() for lane in self._fresh], self._counts.copy()
        rest._batch, rest.shares = [lane.emptied() for lane in self._batch], self.shares
        rest._lanes = (*rest._fresh, rest._late, *rest._batch)
        lanes = {id(old): new for old, new in zip(self._lanes, rest._lanes, strict=True)}
        for entry in self._entries.values():
            lane = lanes[id(entry.lane)]
            rest._entries[entry.item] = copied = replace(entry, lane=lane)
            lane.add(copied, entry.place.arrived if lane is rest._late else entry.place.rank)
        return rest

    def _compact(self) -> None:
        """Forget removed items that lie deep in a heap, so that the heaps grow with what waits and not with time."""
        if sum(len(lane.heap) for lane in self._lanes) > 2 * len(self._entries) + _COMPACT_ABOVE:
            for lane in self._lanes:
                lane.compact()
