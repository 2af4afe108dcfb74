"""The probe: a fixed piece of work on the engine's core, in CPU time, also while the engine works there."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.engine_overload.speed import Reference, Speed, differs, speed

# About 2 ms, four times a second: less than a hundredth of the core, the same for every variant.
_MULTIPLICATIONS, _PRODUCTS, _SIDE = 12_000, 60, 48
_EVERY_SECONDS = 0.25
_IDLE_SAMPLES, _IDLE_EVERY_SECONDS = 10, 0.05
_STEAL = 7


@dataclass
class Sampled:
    """What a run was like, once it has ended."""

    speed: Speed = field(default_factory=lambda: Speed(math.nan, (), math.nan))


class Meter:
    """Measures one core."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._matrix = np.full((_SIDE, _SIDE), 1.0 / _SIDE, dtype=np.float32)

    def wait_until_steady(self, against: Reference | None, tolerance: float, most_seconds: float) -> float:
        """Seconds until the idle core is as fast as the reference, at most so many."""
        began = time.monotonic()
        while against is not None and differs(self._idle_ms(), against.before_ms, tolerance):
            if time.monotonic() - began >= most_seconds:
                break
        return time.monotonic() - began

    @contextlib.contextmanager
    def during(self) -> Iterator[Sampled]:
        """Sample before, while and after the body runs."""
        found, over = Sampled(), threading.Event()
        samples: list[float] = []
        before = self._idle_ms()
        stolen, total = self._ticks()
        thread = threading.Thread(target=self._sample, args=(samples, over))
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
        stolen_after, total_after = self._ticks()
        share = (stolen_after - stolen) / max(total_after - total, 1)
        found.speed = speed(before, samples, self._idle_ms(), share)

    def _sample(self, samples: list[float], over: threading.Event) -> None:
        """Runs in a thread of its own; affinity and CPU time are a thread's."""
        os.sched_setaffinity(0, {self._core})
        while not over.wait(_EVERY_SECONDS):
            samples.append(self._work_ms())

    def _idle_ms(self) -> float:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._core})
        try:
            found = []
            for _ in range(_IDLE_SAMPLES):
                time.sleep(_IDLE_EVERY_SECONDS)
                found.append(self._work_ms())
        finally:
            os.sched_setaffinity(0, before)
        return median(found)

    def _work_ms(self) -> float:
        """Half of it interpreted, half products of matrices, as an engine's work is; caches are warm at its start."""
        self._work(_MULTIPLICATIONS // 8, _PRODUCTS // 8)
        began = time.thread_time()
        self._work(_MULTIPLICATIONS, _PRODUCTS)
        return 1e3 * (time.thread_time() - began)

    def _work(self, multiplications: int, products: int) -> None:
        total, product = 0, self._matrix
        for number in range(multiplications):
            total += number * number
        for _ in range(products):
            product = product @ self._matrix

    def _ticks(self) -> tuple[int, int]:
        """What the host has taken from the core so far, of all time."""
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name == f"cpu{self._core}":
                return int(ticks[_STEAL]), sum(map(int, ticks[: _STEAL + 1]))
        return 0, 0
