"""An engine as vLLM's EngineCore.step_with_batch_queue runs it, with its launches and its GPU, on a virtual clock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.step_law import GRAPHS, LoggedStep
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.law.arithmetic import Law, linear_seconds
from holdfast_engine.law.captured_graphs import CapturedGraphs
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives

HOST_SECONDS = 0.0005
Load = Callable[[random.Random], tuple[int, int]]
"""Prompt tokens and decodes of the next step."""


@dataclass
class PipelinedEngine:
    """Launches by kind of step (s), `depth` steps in flight, the GPU's law; all may be changed while it runs."""

    law: Law
    launches: tuple[float, float, float]
    folder: Path
    prior: Law | None = None
    depth: int = 2
    edge_tokens: float = 512.0
    graphs: CapturedGraphs = GRAPHS
    kv_per_decode: int = 600
    noise: float = 0.03
    seed: int = 1

    def __post_init__(self) -> None:
        self.now = self._gpu_free = 0.0
        self._draw = random.Random(self.seed)
        self._flying: deque[tuple[float, LoggedStep]] = deque()
        path = self.folder / "engine-limits"
        path.write_text(Limits(1, Objectives(0.5, 0.03), prior=self.prior).to_json())
        start = StartLimits(1024, 8192, graphs=self.graphs)
        self.loop = FastLoop(start, LimitsFiles([path]), lambda: self.now, lambda: self.now)
        self.loop.look()

    def run(self, seconds: float, load: Load) -> Law:
        """Serve a load, and return the law that was found."""
        until = self.now + seconds
        while self.now < until:
            prefill, decodes = load(self._draw)
            self._launch(prefill, decodes)
            if len(self._flying) >= self.depth:
                self._take()
        assert self.loop.fit.law is not None
        return self.loop.fit.law

    def _launch(self, prefill: int, decodes: int) -> None:
        self.loop.before_step(len(self._flying))
        kv, pairs = float(decodes * self.kv_per_decode), 0.5 * prefill * prefill
        step = LoggedStep(self.now, self.now, 0.0, 0.0, prefill, decodes, kv, pairs)
        self.loop.scheduled(step)
        begun = self.now
        self.now += self._launch_seconds(prefill, decodes) * self._draw.gauss(1.0, self.noise)
        gpu = linear_seconds(self.law, prefill, decodes, kv, pairs) * self._draw.gauss(1.0, self.noise)
        # Kernels start while later ones are still being launched.
        self._gpu_free = max(max(self._gpu_free, begun + HOST_SECONDS) + gpu, self.now)
        self._flying.append((self._gpu_free, step))

    def _take(self) -> None:
        ended_at, step = self._flying.popleft()
        self.now = max(self.now, ended_at)
        self.loop.came()
        self.now += HOST_SECONDS
        self.loop.updated(step, ())

    def _launch_seconds(self, prefill: int, decodes: int) -> float:
        if prefill + decodes > self.edge_tokens:
            return self.launches[2]
        return self.launches[1] if prefill else self.launches[0]


def scaled(law: Law, factor: float) -> Law:
    """The law of a GPU that takes so many times as long."""
    return Law(*(factor * value for value in law[:5]))
