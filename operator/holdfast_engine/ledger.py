"""Which requests were good: every request is counted once when it arrives and once when it is judged."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from holdfast_engine.rules import Ending, Objectives, RequestVerdict, judge

BAD = (RequestVerdict.TTFT, RequestVerdict.TPOT, RequestVerdict.E2E, RequestVerdict.ERROR)


@dataclass(slots=True, eq=False)
class Entry:
    """An open request: its bounds stay those under which it arrived."""

    objectives: Objectives
    arrived: float
    first_token: float | None = None
    judged: bool = False

    @property
    def deadline(self) -> float:
        """When its first token is due."""
        return self.arrived + self.objectives.ttft_seconds


class Ledger:
    """Counts of requests: arrived = good + bad + withdrawn + unjudged, always."""

    def __init__(self) -> None:
        self.arrived = 0
        self.good = 0
        self.bad = dict.fromkeys(BAD, 0)
        self.withdrawn = 0
        self.unjudged = 0
        self.good_tokens = 0
        self._open: dict[str, Entry] = {}
        self._due: list[tuple[float, int, Entry]] = []

    def __len__(self) -> int:
        return len(self._open)

    def entry(self, request_id: str) -> Entry | None:
        """The open request of this name, None where it is unknown."""
        return self._open.get(request_id)

    def arrive(self, request_id: str, arrived: float, objectives: Objectives) -> Entry:
        """Count a request; one that is known already stays as it is."""
        known = self._open.get(request_id)
        if known is not None:
            return known
        entry = self._open[request_id] = Entry(objectives, arrived)
        self.arrived += 1
        self.unjudged += 1
        heapq.heappush(self._due, (entry.deadline, self.arrived, entry))
        return entry

    def expire(self, now: float) -> None:
        """Judge what should have its first token by now and has none."""
        due = self._due
        while due and due[0][0] < now:
            entry = heapq.heappop(due)[2]
            if entry.first_token is None and not entry.judged:
                self._judge(entry, RequestVerdict.TTFT)

    def first_token(self, request_id: str, now: float) -> None:
        """Note when the first token came."""
        entry = self._open.get(request_id)
        if entry is not None and entry.first_token is None:
            entry.first_token = now

    def end(self, request_id: str, ending: Ending, now: float, output_tokens: int) -> None:
        """Judge a request that left the engine, unless that was done when its deadline passed."""
        entry = self._open.pop(request_id, None)
        if entry is None or entry.judged:
            return
        if entry.first_token is None and output_tokens > 0:
            entry.first_token = now
        verdict = judge(
            entry.objectives,
            ending,
            ttft_seconds=None if entry.first_token is None else entry.first_token - entry.arrived,
            e2e_seconds=now - entry.arrived,
            output_tokens=output_tokens,
        )
        self._judge(entry, verdict)
        if verdict is RequestVerdict.GOOD:
            self.good_tokens += output_tokens

    def _judge(self, entry: Entry, verdict: RequestVerdict) -> None:
        entry.judged = True
        self.unjudged -= 1
        if verdict is RequestVerdict.GOOD:
            self.good += 1
        elif verdict is RequestVerdict.WITHDRAWN:
            self.withdrawn += 1
        else:
            self.bad[verdict] += 1
