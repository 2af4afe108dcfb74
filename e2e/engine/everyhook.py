"""A fault at every hook of the plugin in one real engine, one after the other: `python -m e2e.engine.everyhook`.

Before them the wall clock jumps, which no request may suffer from.

It runs in vLLM's environment, with the plugin on PYTHONPATH, and writes what became of each as JSON. The engine is idle
between two faults, and the plugin is then begun anew as in an engine that starts.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.engine.hooks import UNTRIED, Fault, chosen, hooks, import_all
from e2e.patience import patient

WATCH = "HoldfastScheduler._watch"
_WATCH_WAIT_SECONDS = patient(5.0)
_SAID = re.compile(r"holdfast: (off, the engine goes on as stock vLLM|no counters on /metrics|no \w+ in engine_info): ")
_REQUESTS, _FEW, _OUTPUT_TOKENS = 8, 2, 12
_JUMPS_SECONDS = (1e6, 5.0, -5.0, -1e6)
_SHORT_TTFT_SECONDS = 4.0
# The name of the second is that of no class: its requests have the bounds of the service.
_CLASSES = ("tight", "")
# So many batch requests run when the others come, and leave for them.
_BATCH, _BATCH_CLASS = 2, "night"
# So many steps apart, a request is aborted and the queue is used in ways that vLLM has for other kinds of requests.
_ABORT_EVERY, _ABORTED = 3, 2
# Clients leave whose answers are then aborted, and others. The reports of answers end while some are still computed.
_LEAVERS, _STEPS_BEFORE_CLOSING = (2, 5), 20
# Which rules are asked depends on the times of steps: an entrance that one run in several has is not relied on.
_COUNTED_RUNS, _TRIES = 3, 5


@dataclass
class Outcome:
    """What one fault did."""

    hook: str
    entrance: str
    reached: bool
    said: str
    mode: str
    scraped: str
    finished: bool
    same: bool
    compared: float
    stock_queue: bool
    stock_limits: bool
    conserved: bool
    stopped: bool


@dataclass
class Jump:
    """What a wall clock did that is far from the one by which vLLM notes arrivals."""

    seconds: float
    active: bool
    said: list[str]
    same: bool
    compared: float
    conserved: bool
    late: float


class Notes(logging.Handler):
    """The errors that the plugin tells of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []
        logging.getLogger("vllm.holdfast").addHandler(self)

    def emit(self, entry: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(entry.getMessage())


class ApiServer:
    """Reports as the middleware does when answers were written; of some requests, that their clients have left."""

    def __init__(self, processor: Any) -> None:
        self._writer: Any = None
        self._names: dict[str, bytes] = {}
        self._known: set[str] = set()
        self._add_request = processor.add_request
        processor.add_request = self._follow

    def begin(self) -> None:
        """With a file of its own. Every run reports the same, so that a fault reaches what was counted without one."""
        from holdfast_engine.clients.written_file import WrittenWriter
        from holdfast_engine.stats.stats_fields import written_path

        self._known.clear()
        self._writer = WrittenWriter(written_path())

    def write(self, name: str, ends: bool) -> None:
        """A token of this request was written."""
        first = name not in self._known
        self._known.add(name)
        if first and len(self._known) in _LEAVERS:
            self._report("GONE", name)
        elif first:
            self._report("FIRST", name)
        if ends:
            self._report("LAST", name)

    def close(self) -> None:
        """It has failed."""
        if self._writer is not None:
            self._writer.close()

    def _follow(self, request: Any, *given: Any, **named: Any) -> None:
        from holdfast_engine.clients.written_file import name_of

        self._add_request(request, *given, **named)
        self._names[request.external_req_id] = name_of(request.request_id)
        self._report("STARTED", request.external_req_id)

    def _report(self, kind: str, name: str) -> None:
        from holdfast_engine.clients.written_file import ReportKind

        if self._writer is not None:
            self._writer.write(ReportKind[kind], self._names[name], time.monotonic())


class Engine:
    """vLLM in this process, with too little memory for all requests at once."""

    def __init__(self, model: str) -> None:
        from vllm import EngineArgs, LLMEngine, SamplingParams

        self._params = SamplingParams
        self._round = 0
        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                load_format="dummy",
                enforce_eager=True,
                dtype="float32",
                max_model_len=128,
                max_num_seqs=4,
                # Two prompts take more than one step.
                max_num_batched_tokens=40,
                block_size=32,
                num_gpu_blocks_override=8,
                enable_prefix_caching=False,
                scheduler_cls="holdfast_engine.scheduler.HoldfastScheduler",
                # Answers are compared with those of this engine: with few layers its thousands of steps take less.
                hf_overrides={"num_hidden_layers": 2},
            )
        )
        self.scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._server = ApiServer(self._engine.output_processor)

    def answers(self, requests: int = _REQUESTS) -> list[list[int]]:
        """Greedy answers to the same requests, the first of them empty: those are aborted on the way. Those of batch
        are the last."""
        self._round += 1
        names = [f"{self._round}-{number}" for number in range(requests)]
        night = [f"{self._round}-night-{number}" for number in range(_BATCH)]
        found: dict[str, list[int]] = {}
        for number, name in enumerate(night):
            self._ask(name, requests + number, _BATCH_CLASS)
        self._step(found)
        for number, name in enumerate(names):
            self._ask(name, number, _CLASSES[number % len(_CLASSES)])
        aborted = names[:_ABORTED] if requests == _REQUESTS else []
        steps = 0
        while self._engine.has_unfinished_requests():
            self._step(found)
            steps += 1
            self._use_queue()
            if steps % _ABORT_EVERY == 0 and aborted:
                # The first runs by then, the last still waits.
                self._engine.abort_request([aborted.pop(0), names[-len(aborted) - 1]])
            if not aborted and steps == _STEPS_BEFORE_CLOSING:
                self._server.close()
        gone = {*names[:_ABORTED], *names[-_ABORTED:]} if requests == _REQUESTS else set()
        return [[] if name in gone else found.get(name, []) for name in (*names, *night)]

    def _ask(self, name: str, number: int, of_class: str) -> None:
        prompt = [3 + (31 * number + 7 * position) % 900 for position in range(25 + number)]
        params = self._params(
            temperature=0.0, max_tokens=_OUTPUT_TOKENS, ignore_eos=True, extra_args={"slo_class": of_class}
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def _step(self, found: dict[str, list[int]]) -> None:
        for output in self._engine.step():
            self._server.write(output.request_id, output.finished)
            if output.finished and output.outputs:
                found[output.request_id] = list(output.outputs[0].token_ids)

    def begin(self) -> None:
        """As after a start."""
        self._server.begin()
        scheduler = self.scheduler
        with scheduler._guard:
            scheduler._begin()

    def scrape(self) -> str:
        """The mode on /metrics, as the plugin's stat logger has it told there."""
        from prometheus_client import REGISTRY, generate_latest

        from holdfast_engine.statlogger import HoldfastStatLogger

        teller = HoldfastStatLogger(self._engine.vllm_config, [0])
        try:
            teller.log_engine_initialized()
            teller.record(None, None)
            teller.record_admission_rejection("max_num_queued_reqs")
            page = generate_latest(REGISTRY).decode()
        finally:
            if teller._collector is not None:
                REGISTRY.unregister(teller._collector)
        lines = [line for line in page.splitlines() if line.startswith("holdfast:plugin_info{")]
        assert "python_info" in page, "the rest of the page is gone"
        return lines[0].split('mode="')[1].split('"')[0] if lines else ""

    def _use_queue(self) -> None:
        """Operations that vLLM has for requests that cannot start yet, and for other policies."""
        queue = self.scheduler.waiting
        if not queue:
            return
        first = queue.peek_request()
        assert queue.pop_request() is first
        queue.prepend_requests([first])
        assert first in list(queue)
        queue.remove_request(first)
        queue.prepend_request(first)


def numbers() -> dict[str, float] | None:
    """What the engine has told last."""
    from holdfast_engine.stats.stats_fields import FIELDS, stats_path
    from holdfast_engine.stats.statsfile import read_stats

    found = read_stats(stats_path(0), len(FIELDS))
    return None if found is None else dict(zip(FIELDS, found, strict=True))


def is_conserved(found: dict[str, float] | None) -> bool:
    """Whether nothing was counted twice; after standing down, what was not judged by then never is."""
    if found is None:
        return True
    judged = sum(
        found[name] for name in ("good", "bad_ttft", "bad_tpot", "bad_e2e", "bad_error", "bad_killed", "withdrawn")
    )
    return (
        judged <= found["arrived"] if math.isnan(found["unjudged"]) else judged + found["unjudged"] == found["arrived"]
    )


class Trial:
    """One engine, and what it answers without faults."""

    def __init__(self, model: str) -> None:
        self.engine, self.notes = Engine(model), Notes()
        scheduler = self.engine.scheduler
        assert scheduler._loop is not None, self.notes.lines
        self.ours = self.engine.answers()
        scheduler.stand_down("to know what stock answers")
        self.stock, self.few = self.engine.answers(), self.engine.answers(_FEW)
        # Kernels may round differently for another batch: what depends on that is not compared.
        self.stable = [number for number in range(_REQUESTS) if self.ours[number] == self.stock[number]]
        again = self.engine.answers(_FEW)
        self.stable_few = [number for number in range(_FEW) if self.few[number] == again[number]]

    def calls(self) -> dict[tuple[str, str], int]:
        """How often each hook is called by each entrance when nothing fails: those that every run has, where one is."""
        runs = [self._calls() for _ in range(_COUNTED_RUNS)]
        always = {pair: min(run[pair] for run in runs) for pair in runs[0] if all(pair in run for run in runs)}
        known = {hook for hook, _ in always}
        seldom = {pair: 1 for run in runs for pair in run if pair[0] not in known}
        return {**always, **seldom}

    def _calls(self) -> dict[tuple[str, str], int]:
        faults = [Fault(hook) for hook in hooks()]
        self._run(faults)
        assert self.engine.scheduler._loop is not None, self.notes.lines
        return {(each.hook, entrance): count for each in faults for entrance, count in each.calls.items()}

    def outcome(self, hook: str, entrance: str, calls: int) -> Outcome:
        """With a fault half way through the calls; later at the first, as the times of steps may lead to fewer."""
        self.notes.lines.clear()
        scheduler = self.engine.scheduler
        for fails_at in (math.ceil(calls / 2), *[1] * _TRIES):
            fault = Fault(hook, entrance, fails_at)
            given, scraped = self._run([fault])
            if fault.reached:
                break
        before = numbers()
        again = self.engine.answers(_FEW)
        off = scheduler._loop is None
        return Outcome(
            hook=hook,
            entrance=entrance,
            reached=fault.reached,
            said=next((line for line in self.notes.lines if _SAID.match(line) and fault.text in line), ""),
            mode="off" if off else scheduler._loop.mode.name.lower(),
            scraped=scraped,
            finished=[len(each) for each in given] == [len(each) for each in self.stock],
            same=all(given[each] == self.stock[each] for each in self.stable)
            and all(again[each] == self.few[each] for each in self.stable_few),
            compared=(len(self.stable) + len(self.stable_few)) / (_REQUESTS + _FEW),
            stock_queue=type(scheduler.waiting).__module__.startswith("vllm."),
            stock_limits=(scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens)
            == (scheduler._stock_active, scheduler._stock_tokens),
            conserved=is_conserved(before),
            stopped=not off or _counted(numbers()) == _counted(before),
        )

    def jump(self, seconds: float) -> Jump:
        """With a clock that went so far ahead (behind, if negative) while requests were on their way."""
        self.notes.lines.clear()
        self.engine.begin()
        loop = self.engine.scheduler._loop
        loop._wall_clock = lambda: time.time() + seconds
        # So little is allowed that whoever seems to have been under way for that long is late on arrival.
        loop.look()
        objectives = dataclasses.replace(loop.limits.objectives, ttft_seconds=_SHORT_TTFT_SECONDS)
        loop._take(dataclasses.replace(loop.limits, objectives=objectives))
        given = self.engine.answers()
        told = numbers()
        return Jump(
            seconds=seconds,
            active=self.engine.scheduler._loop is loop and loop.mode.name == "ACTIVE",
            said=list(self.notes.lines),
            same=all(given[each] == self.stock[each] for each in self.stable),
            compared=len(self.stable) / _REQUESTS,
            conserved=is_conserved(told),
            late=math.nan if told is None else told["bad_ttft"],
        )

    def _run(self, faults: list[Fault]) -> tuple[list[list[int]], str]:
        for fault in faults:
            fault.__enter__()
        try:
            self.engine.begin()
            if faults[0].entrance == WATCH:
                _wait_for(lambda: faults[0].reached)
            given = self.engine.answers()
            return given, self.engine.scrape()
        finally:
            for fault in reversed(faults):
                fault.__exit__()


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _WATCH_WAIT_SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def _counted(found: dict[str, float] | None) -> list[float]:
    from holdfast_engine.stats.stats_fields import COUNTS

    return [] if found is None else [found[name] for name in COUNTS]


def main(model: str, result: str) -> None:
    """Break each hook in turn; those that nothing calls have no outcome."""
    import_all()
    # Runs are short, and steps of a busy machine differ by any factor: a law is fitted to whatever they are.
    importlib.import_module("holdfast_engine.fastloop").SEEN_SECONDS = 0.0
    importlib.import_module("holdfast_engine.law.leastsquares").LEAST_STEPS = 1.0
    importlib.import_module("holdfast_engine.law.steplaw").LARGEST_ERROR = math.inf
    trial = Trial(model)
    # The thread that looks at an idle engine has its own pace: it is tried once, and waited for.
    known = {
        found: calls
        for found, calls in trial.calls().items()
        if found[1] not in ("", WATCH) and found[0] not in UNTRIED
    }
    jumps = [trial.jump(seconds) for seconds in _JUMPS_SECONDS]
    faults = [
        trial.outcome(*each, calls) for each, calls in {**chosen(known), ("limits.LimitsFiles.poll", WATCH): 1}.items()
    ]
    told = {"jumps": jumps, "faults": faults}
    Path(result).write_text(json.dumps(told, default=dataclasses.asdict, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
