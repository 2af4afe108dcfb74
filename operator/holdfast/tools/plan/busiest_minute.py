"""The busiest minute of a trace of any length, lengths drawn from all of it, and the requests around that minute."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Integers
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.traces import TraceRow, requests

MINUTE = 60.0

SAMPLE = 20_000
"""Requests whose lengths stand for all of a trace, and as many as are kept around its busiest minute."""

FOLLOWING = 20
"""At least this part of what is kept follows the busiest minute, if the trace goes on so long."""


@dataclass(frozen=True, slots=True)
class Busiest:
    """What a plan needs of a trace: how many came in its busiest minute, and lengths drawn from all of it.

    `rate_rps` is that minute's; of a trace shorter than a minute, that of the whole. `begins_seconds` is from the
    first request on. `recorded` are the requests around that minute as they came, the first one at 0 s.
    """

    requests: int
    rate_rps: float
    begins_seconds: float
    prompt_tokens: Integers
    output_tokens: Integers
    recorded: Workload


def read_busiest(path: Path, format_name: str, around_seconds: float, sample: int = SAMPLE) -> Busiest:
    """Reads a trace once, in the memory of a few times `sample` requests and of those of a minute.

    What is `recorded` lasts `around_seconds` at most, the busiest minute in the middle, and has `sample` requests at
    most, or little more than that minute. BadInput as of `read_trace`, and for a
    single request, which has no rate.
    """
    draw = random.Random(0)
    kept: list[tuple[int, int]] = []
    inside: deque[float] = deque()
    stretch = _Stretch(max(around_seconds, MINUTE), sample)
    number = most = 0
    at = begins = 0.0
    for number, (at, prompt, output) in enumerate(requests(path, format_name), start=1):
        inside.append(at)
        while inside[0] <= at - MINUTE:
            inside.popleft()
        stretch.add((at, prompt, output))
        if len(inside) > most:
            begins, most = inside[0], len(inside)
            stretch.move(begins + 0.5 * MINUTE, most)
        if number <= sample:
            kept.append((prompt, output))
        elif (place := int(draw.random() * number)) < sample:
            kept[place] = (prompt, output)
    if number == 1:
        raise BadInput(f"{path}: a single request has no rate: give a longer trace, or --rate")
    prompts, outputs = np.array(kept, np.int64).T
    return Busiest(number, most / min(MINUTE, max(1.0, at)), begins, prompts, outputs, stretch.recorded())


@dataclass(slots=True)
class _Stretch:
    """The requests around the busiest minute so far: those of the minute, and as many before as after it.

    There are `room` of them, which is more than asked for where a minute has more.
    """

    seconds: float
    room: int
    recent: deque[TraceRow] = field(default_factory=deque)
    middle: float = 0.0
    missing: int = 0
    rows: list[TraceRow] = field(default_factory=list)

    def add(self, row: TraceRow) -> None:
        """The next request; what is around the minute is kept once enough have followed."""
        self.recent.append(row)
        if len(self.recent) > self.room:
            self.recent.popleft()
        self.missing -= 1
        if self.missing == 0:
            self._keep()

    def move(self, middle: float, of_a_minute: int) -> None:
        """A busier minute, which ends with the newest request."""
        self.middle = middle
        # Some must follow: to keep a crowd that grows with every request would take the square of its time.
        self.missing = max(1, self.room // FOLLOWING, (self.room - of_a_minute) // 2)
        self.room = max(self.room, of_a_minute + self.missing)

    def recorded(self) -> Workload:
        """What is kept, the first request at 0 s."""
        if self.missing > 0:
            self._keep()
        at, prompts, outputs = (np.array(column) for column in zip(*self.rows, strict=True))
        return Workload(at - at[0], prompts.astype(np.int64), outputs.astype(np.int64), np.zeros(len(at), np.int64))

    def _keep(self) -> None:
        self.rows = [row for row in self.recent if abs(row[0] - self.middle) <= 0.5 * self.seconds]
