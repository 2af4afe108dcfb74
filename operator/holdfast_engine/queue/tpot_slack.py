"""How far the decoding sequences are ahead of their TPOT objective.

Every decoding sequence gets a token from every step. One that had its first token at `start`, after `steps` steps, is
therefore ahead by tpot x (steps now - steps) - (now - start), and the one that is least ahead is known without looking
at the others: all move alike, by tpot less the length of the step.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable

from holdfast_engine.law.arithmetic import ahead_seconds, spare_seconds
from holdfast_engine.objectives.rules import SERVICE_CLASS, Limits

# All but this share of answers are at least as long as what a new sequence is believed to have before it.
SHORT_SHARE = 0.05
ANSWERS = 128
LEARN_EVERY = 16
SMOOTHING = 0.05
# What is further ahead is left to the prompts that come until then; looking at fewer sequences is also faster.
MOST_STEPS = 12
_COMPACT_ABOVE = 64


class Pace:
    """Sequences between their first and their last token; what is not O(1) is O(log n) or O(sequences just begun)."""

    def __init__(self) -> None:
        self.surest_steps = 0
        self._tpot_seconds = 0.0
        self._steps = 0
        self._last_step = -math.inf
        self._step_seconds = math.inf
        self._starts: dict[str, tuple[int, float]] = {}
        self._young: deque[str] = deque()
        self._heap: list[tuple[float, str]] = []
        self._answers: deque[int] = deque(maxlen=ANSWERS)
        self._ended = 0

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def bears_long_steps(self) -> bool:
        """Whether one long step weighs little in the mean of nearly every answer; not denied before any have ended."""
        return self._ended < LEARN_EVERY or self.surest_steps == MOST_STEPS

    def step(self, now: float) -> None:
        """A step has ended: every sequence has one token more."""
        self._steps += 1
        seconds, self._last_step = now - self._last_step, now
        if not self._starts:
            return
        known = self._step_seconds
        self._step_seconds = known + SMOOTHING * (seconds - known) if math.isfinite(known) else seconds

    def start(self, name: str, now: float) -> None:
        """A sequence got its first token."""
        self._starts[name] = (self._steps, now)
        self._young.append(name)

    def end(self, name: str) -> None:
        """A sequence got its last token, or will get none."""
        start = self._starts.pop(name, None)
        if start is None:
            return
        self._answers.append(self._steps - start[0])
        self._ended += 1
        if self._ended % LEARN_EVERY == 0:
            shortest = sorted(self._answers)[int(SHORT_SHARE * len(self._answers))]
            self.surest_steps = min(shortest, MOST_STEPS)
        if len(self._heap) + len(self._young) > 2 * len(self._starts) + _COMPACT_ABOVE:
            self._forget()

    def spare_seconds(self, tpot_seconds: float, now: float) -> float:
        """How much longer than the objective the next step may take for the sequence that can bear least.

        One that has just begun can bear what the steps it will still have at least make up for; where it has borne more
        than that, the next ones must be shorter than the objective: negative. 0 where an older sequence is behind,
        infinite where none is known.
        """
        if tpot_seconds != self._tpot_seconds:
            self._tpot_seconds = tpot_seconds
            self._forget()
        self._grow_up()
        while self._heap and self._heap[0][1] not in self._starts:
            heapq.heappop(self._heap)
        least = self._heap[0][0] if self._heap else math.inf
        gain = max(0.0, tpot_seconds - self._step_seconds)
        # Each gains in the steps it still has at least: surest_steps less those since its start, and less this one.
        to_come, slope, youngest = self.surest_steps - self._steps - 1, gain - tpot_seconds, math.inf
        for name in self._young:
            start = self._starts.get(name)
            if start is not None:
                ahead = start[1] + slope * start[0]
                if ahead < youngest:
                    youngest = ahead
        here = ahead_seconds(tpot_seconds, self._steps, now)
        return spare_seconds(least, youngest, to_come, gain, here)

    def _grow_up(self) -> None:
        """Sequences older than the shortest answers can no longer count on steps to come, from then on."""
        young = self._young
        while young:
            start = self._starts.get(young[0])
            if start is not None:
                if self._steps - start[0] < self.surest_steps:
                    return
                heapq.heappush(self._heap, (ahead_seconds(self._tpot_seconds, *start), young[0]))
            young.popleft()

    def _forget(self) -> None:
        """Let go of sequences that are gone, and order the old ones by the objective of now."""
        starts, tpot_seconds = self._starts, self._tpot_seconds
        self._young = deque(name for name in self._young if name in starts)
        self._heap = [(ahead_seconds(tpot_seconds, *starts[name]), name) for _, name in self._heap if name in starts]
        heapq.heapify(self._heap)


class Paces:
    """The decoding sequences by class: a step gives a token to each of them, so the class that bears least binds."""

    def __init__(self) -> None:
        self._own = Pace()
        self._others: dict[str, Pace] = {}
        self._declared: frozenset[str] = frozenset()

    @property
    def bears_long_steps(self) -> bool:
        """Whether answers of all classes do."""
        return self._own.bears_long_steps and all(pace.bears_long_steps for pace in self._others.values())

    def keep(self, names: Iterable[str]) -> None:
        """These classes are declared: others are forgotten as soon as nothing runs in them."""
        self._declared = frozenset(names)
        self._forget()

    def _forget(self) -> None:
        self._others = {name: pace for name, pace in self._others.items() if name in self._declared or len(pace)}

    def step(self, now: float) -> None:
        """A step has ended."""
        self._own.step(now)
        for pace in self._others.values():
            pace.step(now)

    def start(self, name: str, now: float, of_class: str) -> None:
        """A sequence of this class got its first token."""
        pace = self._own if of_class == SERVICE_CLASS else self._others.get(of_class)
        if pace is None:
            pace = self._others[of_class] = Pace()
        pace.start(name, now)

    def end(self, name: str) -> None:
        """A sequence got its last token, or will get none."""
        self._own.end(name)
        if self._others:
            for pace in self._others.values():
                pace.end(name)
            self._forget()

    def binding(self, limits: Limits, now: float, ahead: int) -> tuple[float, float]:
        """TPOT of the class that bears least after `ahead` more steps, and how much longer the next step may take for
        it, as `Pace.spare_seconds`; the tightest TPOT declared where nothing runs."""
        own_tpot = limits.objectives.tpot_seconds
        if not self._others and not limits.classes:
            return own_tpot, self._own.spare_seconds(own_tpot, now)
        found = []
        for name, pace in ((SERVICE_CLASS, self._own), *self._others.items()):
            if len(pace):
                known = limits.by_name.get(name)
                tpot_seconds = own_tpot if known is None else known.objectives.tpot_seconds
                spare = pace.spare_seconds(tpot_seconds, now)
                found.append(((1 + ahead) * tpot_seconds + spare, tpot_seconds, spare))
        _, tpot_seconds, spare = min(found, default=(math.inf, limits.tightest.tpot_seconds, math.inf))
        return tpot_seconds, spare
