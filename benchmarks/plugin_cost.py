"""What the plugin costs the engine it runs in, driven without a model and without vLLM.

    python benchmarks/plugin_cost.py                        # time per step with 256 sequences, memory over 1e6 requests
    python benchmarks/plugin_cost.py --requests 100000      # a tenth of it

Every hook that the scheduler calls is called as it calls it, and the record is written to its file. Nothing else is
timed: its own CPU time. What requests cost that arrive, wait among a thousand, start and are aborted is told beside
what a step costs, with the share of all of it. Promised: at most 50 microseconds per step and 1 % of the step's time,
and memory that does not grow. Ends with 1 where that is missed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from holdfast_engine.clients.written_file import ReportKind, WrittenReader, WrittenWriter, name_of
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives
from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.statsfile import StatsWriter

MOST_MICROSECONDS, MOST_SHARE, MOST_GROWTH_MIB = 50.0, 0.01, 2.0
SEQUENCES, WAITING = 256, 1000
# A step with so many sequences on a GPU takes about this long.
STEP_SECONDS = 0.02
PROMPT_TOKENS, TOKENS_PER_STEP = 500, 2048


@dataclass(frozen=True)
class Status:
    """Of a request."""

    name: str


RUNNING, DONE, GONE = Status("RUNNING"), Status("FINISHED_STOPPED"), Status("FINISHED_ABORTED")


@dataclass(eq=False)
class Toy:
    """A request as the plugin sees it."""

    request_id: str
    arrival_time: float
    to_come: int
    num_prompt_tokens: int = PROMPT_TOKENS
    num_preemptions: int = 0
    num_output_tokens: int = 0
    status: Status = RUNNING


@dataclass
class New:
    """A request that starts."""

    req_id: str
    num_computed_tokens: int = 0


@dataclass
class Cached:
    """Those that go on."""

    req_ids: list[str]
    num_computed_tokens: list[int]


@dataclass
class Output:
    """A step."""

    scheduled_new_reqs: list[New]
    scheduled_cached_reqs: Cached
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int


@dataclass
class Engine:
    """A scheduler around the hooks: its own work is not counted. Every seventh request is aborted while it waits."""

    folder: Path
    answer_tokens: int
    now: float = 0.0
    seconds: list[float] = field(default_factory=list)
    request_seconds: list[float] = field(default_factory=list)
    running: dict[str, Toy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = self.folder / "engine-limits"
        limits.write_text(Limits(1, Objectives(2.0, 0.1), active_sequences=SEQUENCES, adapt=True).to_json())
        self.loop = FastLoop(
            StartLimits(SEQUENCES, TOKENS_PER_STEP),
            LimitsFiles([limits]),
            lambda: self.now,
            lambda: self.now,
            WrittenReader(self.folder / "answers.written"),
        )
        self.answers = WrittenWriter(self.folder / "answers.written")
        self.writer = StatsWriter(self.folder / "engine-0.stats", len(stats_fields.FIELDS))
        self.loop.look()
        self.arrived = 0
        self._names = itertools.count()

    def step(self) -> None:
        """Requests arrive until enough wait; then a step."""
        self.seconds.append(0.0)
        self.request_seconds.append(0.0)
        while len(self.loop.queue) < WAITING:
            self._arrive()
        self._of_step(self.loop.before_step, len(self.running))
        output, started = self._schedule()
        self._of_step(self.loop.scheduled, output)
        self.now += STEP_SECONDS
        self._of_step(self.loop.updated, output, self._answer(started))
        self._of_step(self._publish)

    def forget(self) -> None:
        """Drop the times so far."""
        self.seconds.clear()
        self.request_seconds.clear()

    def _of_step(self, hook: Callable[..., Any], *given: Any) -> Any:
        return _timed(self.seconds, hook, *given)

    def _of_request(self, hook: Callable[..., Any], *given: Any) -> Any:
        return _timed(self.request_seconds, hook, *given)

    def _publish(self) -> None:
        if self.loop.is_record_due():
            self.writer.write([*self.loop.counts(), 0.0, 0.0, *self.loop.record()])

    def _arrive(self) -> None:
        request = Toy(f"r{next(self._names)}", self.now, self.answer_tokens + self.arrived % 7)
        self.arrived += 1
        self._report(ReportKind.STARTED, request)
        self._of_request(self.loop.arrive, request)
        self._of_request(self.loop.queue.add_request, request)
        if self.arrived % 7 == 0:
            request.status = GONE
            self._of_request(self.loop.queue.remove_requests, [request])
            self._of_request(self.loop.finish, [request.request_id])
            self._report(ReportKind.GONE, request)

    def _report(self, kind: ReportKind, request: Toy) -> None:
        """What the API server's process does costs the engine's nothing."""
        self.answers.write(kind, name_of(request.request_id), self.now)

    def _schedule(self) -> tuple[Output, list[Toy]]:
        names = list(self.running)
        cached = Cached(names, [PROMPT_TOKENS + self.running[name].num_output_tokens for name in names])
        started = []
        # All prompts that a step could hold: more of them come and go than in an engine that computes.
        while self.loop.queue and len(self.running) + len(started) < SEQUENCES:
            self._of_request(self.loop.queue.peek_request)
            started.append(self._of_request(self.loop.queue.pop_request))
            if not self.loop.queue:
                self._arrive()
        tokens = dict.fromkeys(names, 1) | {each.request_id: PROMPT_TOKENS for each in started}
        new = [New(each.request_id) for each in started]
        return Output(new, cached, tokens, sum(tokens.values())), started  # type: ignore[arg-type]

    def _answer(self, started: list[Toy]) -> list[str]:
        self.running |= {each.request_id: each for each in started}
        finished = []
        for request in self.running.values():
            request.num_output_tokens += 1
            if request.num_output_tokens == 2:
                self._report(ReportKind.FIRST, request)
            if request.num_output_tokens >= request.to_come:
                request.status = DONE
                finished.append(request.request_id)
                self._report(ReportKind.LAST, request)
        for name in finished:
            del self.running[name]
        return finished


def _timed(spent: list[float], hook: Callable[..., Any], *given: Any) -> Any:
    """Call a hook, and add what it takes to the last of the times."""
    began = time.thread_time()
    found = hook(*given)
    spent[-1] += time.thread_time() - began
    return found


def cost(folder: Path, steps: int) -> bool:
    """Time per step in the middle of long answers."""
    engine = Engine(folder, answer_tokens=250)
    for _ in range(300):
        engine.step()
    engine.forget()
    for _ in range(steps):
        engine.step()
    microseconds = [1e6 * each for each in engine.seconds]
    mean, requests = fmean(microseconds), 1e6 * fmean(engine.request_seconds)
    share = (mean + requests) / (1e6 * STEP_SECONDS)
    tail = quantiles(microseconds, n=100)[98]
    held = mean <= MOST_MICROSECONDS and share <= MOST_SHARE
    print(
        f"{len(engine.running)} sequences, {steps} steps: mean {mean:.1f} us, p99 {tail:.1f} us, "
        f"and requests {requests:.1f} us, {share:.2%} of steps of {1e3 * STEP_SECONDS:g} ms; "
        f"promised {MOST_MICROSECONDS:g} us and {MOST_SHARE:.0%}: {verdict(held)} "
        f"(a million multiplications: {loop_milliseconds():.0f} ms)"
    )
    return held


def memory(folder: Path, requests: int) -> bool:
    """Resident memory after a tenth of the requests, and at the end."""
    engine = Engine(folder, answer_tokens=1)
    while engine.arrived < requests / 10:
        engine.step()
        engine.forget()
    before = resident_mib()
    while engine.arrived < requests:
        engine.step()
        engine.forget()
    growth = resident_mib() - before
    held = growth <= MOST_GROWTH_MIB
    ledger = engine.loop.ledger.own
    judged = ledger.good + sum(ledger.bad.values()) + ledger.withdrawn
    assert ledger.arrived == judged + ledger.unjudged
    print(
        f"{engine.arrived} requests, {judged} judged: {before:.1f} MiB after a tenth, {growth:+.2f} MiB until the end; "
        f"promised none (at most {MOST_GROWTH_MIB:g}): {verdict(held)}"
    )
    return held


def loop_milliseconds() -> float:
    """What a million multiplications take now: shared cores are slower than the same cores alone."""
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number * number
    return 1e3 * (time.thread_time() - began)


def resident_mib() -> float:
    """Memory of this process."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmRSS in /proc/self/status")


def verdict(held: bool) -> str:
    """For people."""
    return "held" if held else "MISSED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        held = [cost(Path(folder), options.steps), memory(Path(folder), options.requests)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
