"""Makes one run: the right engine with the right limits, load, figures, and nothing left behind.

Servers stay up, idle ones beside the one under load: one start serves every run of a variant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.engine_overload.cells import CONVERSATION, DEFAULT_LIMITS, Cell, Slo, Variant, Window
from benchmarks.engine_overload.engines import Engine, Engines, Load, RunError, Start
from benchmarks.engine_overload.goodput import Figures, figures
from benchmarks.engine_overload.journal import RunKey
from benchmarks.engine_overload.trace import arrivals
from holdfast_engine.objectives.rules import Limits, Objectives, Overload

_WARM_UP = Window(0.0, 4.0, 0.0)
_WARM_UP_RPS = 4.0
_OVERLOADS = {Variant.QUEUE: Overload.QUEUE, Variant.REJECT: Overload.REJECT}
_APPLIED_SECONDS, _DRAINED_SECONDS = 10.0, 120.0


class Rig:
    """A context manager that makes runs, and ends all its processes."""

    def __init__(self, engines: Engines, folder: Path, cells: dict[int, Cell]) -> None:
        self._engines, self._folder, self._cells = engines, folder, cells
        self._stack = contextlib.ExitStack()
        self._running: dict[Start, Engine] = {}
        self._told: tuple[Slo, Overload] | None = None
        self._version = 1

    def __enter__(self) -> Self:
        self._stack.callback(self._engines.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def prepare(self, key: RunKey) -> None:
        """Have the engine of a run ready and idle, which is no part of the run."""
        _wait_until_idle(self._ready(key, self._cells[key.cell]))

    def run(self, key: RunKey, number: int) -> Figures:
        """Make one run; `number` names its prompts."""
        cell = self._cells[key.cell]
        engine = self._ready(key, cell)
        requests = arrivals(cell.mix, key.rate_rps, key.window, key.seed)
        before = self._engines.paced(engine)
        found = self._offer(engine, Load(requests, number, cell.slo, key.window))
        beyond = self._engines.paced(engine).beyond_share_since(before)
        if key.variant in _OVERLOADS:
            _check_active(engine)
        return dataclasses.replace(figures(found, requests, cell.slo, key.window), beyond_pace_share=beyond)

    def _ready(self, key: RunKey, cell: Cell) -> Engine:
        """The engine of a variant with the limits or objectives of this run."""
        limits = key.limits or DEFAULT_LIMITS
        if key.variant in _OVERLOADS:
            overload = _OVERLOADS[key.variant]
            engine = self._engine(Start("plugin", DEFAULT_LIMITS), self._to_json(cell, overload))
            self._tell(engine, cell, overload)
            return engine
        if key.variant is Variant.SEARCH and self._engines.live_limits:
            text = json.dumps(dataclasses.asdict(limits))
            engine = self._engine(Start("search", DEFAULT_LIMITS), text)
            engine.set_limits(text)
            return engine
        return self._engine(Start("stock", limits, key.queued_tokens), "")

    def _engine(self, start: Start, limits: str) -> Engine:
        found = self._running.get(start)
        if found is not None:
            return found
        folder = self._folder / f"server-{len(self._running)}-{start.kind}"
        folder.mkdir(parents=True, exist_ok=True)
        engine = self._stack.enter_context(self._engines.start(start, folder, limits))
        self._running[start] = engine
        requests = arrivals(CONVERSATION, _WARM_UP_RPS, _WARM_UP, seed=len(self._running))
        slo = next(iter(self._cells.values())).slo
        self._offer(engine, Load(requests, -len(self._running), slo, _WARM_UP))
        return engine

    def _tell(self, engine: Engine, cell: Cell, overload: Overload) -> None:
        if self._told != (cell.slo, overload):
            self._version += 1
            engine.set_limits(self._to_json(cell, overload))
            self._told = (cell.slo, overload)
        engine.wait_for(
            lambda: engine.samples("holdfast:limits").get(("version",)) == self._version,
            _APPLIED_SECONDS,
            "application of the objectives",
        )

    def _to_json(self, cell: Cell, overload: Overload) -> str:
        """The objectives and what overload does, nothing else: every limit is the plugin's own."""
        objectives = Objectives(cell.slo.ttft_seconds, cell.slo.tpot_seconds)
        return Limits(self._version, objectives, overload=overload).to_json()

    def _offer(self, engine: Engine, load: Load) -> dict[str, Any]:
        found = self._engines.offer(engine, load)
        _wait_until_idle(engine)
        return found


def _wait_until_idle(engine: Engine) -> None:
    """What one run has left behind is no load of the next one."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    engine.wait_for(
        lambda: sum(sum(engine.samples(name).values()) for name in names) == 0.0, _DRAINED_SECONDS, "end of the drain"
    )


def _check_active(engine: Engine) -> None:
    modes = [labels[0] for labels in engine.samples("holdfast:plugin_info")]
    if modes != ["active"]:
        raise RunError(f"the plugin is {', '.join(modes) or 'not there'}: {engine.log[-3000:]}")
