"""Which requests were good: every request is counted once when it arrives and once when it is judged.

A request is judged by the times at which its bytes were written, where the API server reports them, else by the times
at which its tokens left the engine core. docs/designs/0019-client-times.md says why one process does all of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast_engine.objectives.rules import Ending, Objectives, RequestClass, RequestVerdict, judge

BAD = (RequestVerdict.TTFT, RequestVerdict.TPOT, RequestVerdict.E2E, RequestVerdict.ERROR)
# So long a verdict waits for the end of an answer that is being written; then the engine's times count.
LONGEST_WRITE_SECONDS = 60.0


class _End(NamedTuple):
    """How a request left the engine."""

    ending: Ending
    at: float
    output_tokens: int


@dataclass(slots=True, eq=False)
class Tally:
    """Counts of the requests of one class: arrived = good + bad + withdrawn + handed over + unjudged, always.

    Of the arrived ones, `received` came from a prefill engine; the blocks of `kv_expired` came too late. `left` and
    `killed` arrived at an engine that was killed in this container: the latter are counted as bad.
    """

    arrived: int = 0
    good: int = 0
    bad: dict[RequestVerdict, int] = field(default_factory=lambda: dict.fromkeys(BAD, 0))
    withdrawn: int = 0
    handed_over: int = 0
    received: int = 0
    kv_expired: int = 0
    unjudged: int = 0
    good_tokens: int = 0
    left: int = 0
    killed: int = 0
    is_batch: bool = False

    @property
    def numbers(self) -> list[float]:
        """The first numbers of stats_fields.COUNTS."""
        pair = self.handed_over, self.received, self.kv_expired
        return [self.arrived, self.good, *self.bad.values(), self.killed, self.withdrawn, *pair, self.good_tokens]

    @property
    def open(self) -> int:
        """Requests without a verdict, here or left by a predecessor."""
        return self.unjudged + self.left


@dataclass(slots=True, eq=False)
class Entry:
    """An open request: its class and its bounds stay those under which it arrived at the engine.

    `first_token` is when the first token left the engine core, `first_written` and `last_written` when bytes were
    written. While it is `followed`, more reports will come.
    """

    request_class: RequestClass
    arrived: float
    tally: Tally
    first_token: float | None = None
    judged: bool = False
    followed: bool = False
    first_written: float | None = None
    last_written: float | None = None
    end: _End | None = None

    @property
    def objectives(self) -> Objectives:
        """Its bounds."""
        return self.request_class.objectives

    @property
    def deadline(self) -> float:
        """When its first token is due."""
        return self.arrived + self.request_class.objectives.ttft_seconds

    @property
    def is_engine_timed(self) -> bool:
        """Whether it has a token whose time of writing is unknown."""
        return self.first_token is not None and self.first_written is None


class Ledger:
    """Counts of requests by class.

    `own` are those of the service's own class. `engine_timed` are the verdicts by the engine's times. One that
    `hands_over` judges nothing before its end: a late request that goes on is late elsewhere.
    """

    def __init__(self) -> None:
        self.own = Tally()
        self.classes: dict[str, Tally] = {}
        self.hands_over = False
        self.judged = 0
        self.engine_timed = 0
        self._arrived = 0
        self._open: dict[str, Entry] = {}
        self._unwritten: dict[str, Entry] = {}
        self._due: list[tuple[float, int, Entry]] = []

    def __len__(self) -> int:
        return len(self._open) + len(self._unwritten)

    def declare(self, classes: Iterable[RequestClass]) -> None:
        """Count these classes apart. A class that is not among them any more takes its counts along, and what it has
        open is in no count: labels stay as many as are declared. So does one that becomes Batch, or is it no more:
        its counts have other names then."""
        known, self.classes = self.classes, {}
        for each in classes:
            tally = known.get(each.name)
            if tally is None or tally.is_batch != each.is_batch:
                tally = Tally(is_batch=each.is_batch)
            self.classes[each.name] = tally

    def entry(self, request_id: str) -> Entry | None:
        """The request of this name in the engine, None where it is unknown."""
        return self._open.get(request_id)

    def arrive(self, request_id: str, arrived: float, request_class: RequestClass) -> Entry:
        """Count a request; one that is known already stays as it is."""
        known = self._open.get(request_id)
        if known is not None:
            return known
        tally = self.classes.get(request_class.name, self.own)
        entry = self._open[request_id] = Entry(request_class, arrived, tally)
        self._arrived += 1
        tally.arrived += 1
        tally.unjudged += 1
        if not request_class.is_batch:
            heapq.heappush(self._due, (entry.deadline, self._arrived, entry))
        return entry

    def inherit(self, left: Mapping[str, int]) -> None:
        """An engine that was killed in this container left requests without a verdict, by class."""
        for name, count in left.items():
            tally = self.classes.get(name, self.own)
            (self.own if tally.is_batch else tally).left += count

    def lose(self) -> None:
        """Count as bad what the predecessor left."""
        for tally in (self.own, *self.classes.values()):
            tally.killed, tally.left = tally.killed + tally.left, 0

    def date_back(self, request_id: str, arrived: float) -> None:
        """An open request came earlier than was known."""
        entry = self._open.get(request_id)
        if entry is not None:
            entry.arrived = min(entry.arrived, arrived)

    def rename(self, request_id: str, name: str, request_class: RequestClass) -> None:
        """An open request has this name and class in the engine; nothing changes where the name is taken.

        Where the class is another one than at the door, that one counts it as withdrawn: no counter may ever fall.
        """
        if request_id not in self._open or name in self._open:
            return
        entry = self._open.pop(request_id)
        if entry.request_class.name != request_class.name:
            if not entry.judged:
                self._judge(entry, RequestVerdict.WITHDRAWN)
                self.arrive(name, entry.arrived, request_class)
                return
            entry.request_class = request_class
        self._open[name] = entry

    def expire(self, now: float) -> list[str]:
        """Judge what should have its first token by now and has none, and what was never written to its end; returns
        the names of the latter."""
        due = self._due
        while due and due[0][0] < now:
            entry = heapq.heappop(due)[2]
            if entry.first_token is None:
                self._judge_late(entry)
        given_up: list[str] = []
        while self._unwritten:
            name, entry = next(iter(self._unwritten.items()))
            if entry.end is not None and now - entry.end.at < LONGEST_WRITE_SECONDS:
                break
            self.unfollow(name)
            given_up.append(name)
        return given_up

    def first_token(self, request_id: str, now: float) -> Entry | None:
        """Note when the first token came; returns the request as `entry`."""
        entry = self._open.get(request_id)
        if entry is not None and entry.first_token is None:
            entry.first_token = now
        return entry

    def end(self, request_id: str, ending: Ending, now: float, output_tokens: int) -> None:
        """Judge a request that left the engine, unless that was done when its deadline passed.

        Its verdict waits for the end of its answer where that is still being written.
        """
        entry = self._open.pop(request_id, None)
        if entry is None:
            return
        if entry.first_token is None and output_tokens > 0:
            entry.first_token = now
        entry.end = _End(ending, now, output_tokens)
        if not entry.followed or entry.first_token is None or ending is Ending.FAILED:
            self._settle(entry)
            return
        if request_id in self._unwritten:
            self.unfollow(request_id)  # an id may be used again by a client that chooses its ids
        self._unwritten[request_id] = entry

    def is_unwritten(self, request_id: str) -> bool:
        """Whether a request has left the engine and its answer is still being written."""
        return request_id in self._unwritten

    def follow(self, request_id: str) -> None:
        """The answer of this request is watched, from its arrival on."""
        entry = self._open.get(request_id)
        if entry is not None and entry.first_token is None:
            entry.followed = True

    def write_first(self, request_id: str, at: float, now: float) -> float:
        """The first token was written; returns the front-end lag, NaN where the report is not plausible.

        Late is bad at once.
        """
        entry = self._followed(request_id)
        if entry is None or entry.first_token is None or entry.first_written is not None:
            return math.nan
        if not entry.first_token <= at <= now:
            return math.nan
        entry.first_written = at
        if at > entry.deadline:
            self._judge_late(entry)
        return at - entry.first_token

    def write_last(self, request_id: str, at: float, now: float) -> float:
        """The answer was written to its end; returns the lag of its last token, NaN where that is not known."""
        entry = self._followed(request_id)
        if entry is None:
            return math.nan
        if entry.first_written is not None and entry.first_written <= at <= now:
            entry.last_written = at
        ended_at = math.nan if entry.end is None else entry.end.at
        self._unfollow(request_id, entry)
        lag = math.nan if entry.last_written is None else entry.last_written - ended_at
        return lag if lag >= 0.0 else math.nan

    def unfollow(self, request_id: str) -> None:
        """No more reports of this request will come: what is not known by now is taken from the engine."""
        entry = self._followed(request_id)
        if entry is not None:
            self._unfollow(request_id, entry)

    def _unfollow(self, request_id: str, entry: Entry) -> None:
        entry.followed = False
        if self._unwritten.pop(request_id, None) is not None:
            self._settle(entry)

    def unfollow_all(self) -> None:
        """No more reports will come at all."""
        for request_id in [*self._unwritten, *(name for name, entry in self._open.items() if entry.followed)]:
            self.unfollow(request_id)

    def _followed(self, request_id: str) -> Entry | None:
        entry = self._unwritten.get(request_id) or self._open.get(request_id)
        return entry if entry is not None and entry.followed else None

    def _settle(self, entry: Entry) -> None:
        """Judge a request that has ended by all that is known of it."""
        end = entry.end
        if entry.judged or end is None:
            return
        first = entry.first_token if entry.first_written is None else entry.first_written
        last = end.at if entry.last_written is None else entry.last_written
        verdict = judge(
            entry.objectives,
            end.ending,
            ttft_seconds=None if first is None else first - entry.arrived,
            # An answer that is cut off may have its first bytes written after the engine ended it.
            e2e_seconds=(last if first is None else max(first, last)) - entry.arrived,
            output_tokens=end.output_tokens,
        )
        self._judge(entry, verdict)
        if verdict is RequestVerdict.GOOD:
            entry.tally.good_tokens += end.output_tokens

    def _judge_late(self, entry: Entry) -> None:
        if not (entry.judged or self.hands_over):
            self._judge(entry, RequestVerdict.TTFT)

    def _judge(self, entry: Entry, verdict: RequestVerdict) -> None:
        entry.judged = True
        self.judged += 1
        # Whose times they were matters only where a time is judged.
        handed_over = verdict is RequestVerdict.HANDED_OVER
        self.engine_timed += entry.is_engine_timed and not (entry.request_class.is_batch or handed_over)
        tally = entry.tally
        tally.unjudged -= 1
        if verdict is RequestVerdict.GOOD:
            tally.good += 1
        elif verdict is RequestVerdict.WITHDRAWN:
            tally.withdrawn += 1
        elif handed_over:
            tally.handed_over += 1
        else:
            tally.bad[verdict] += 1
