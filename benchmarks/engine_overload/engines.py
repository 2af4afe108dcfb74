"""What the rig needs of an engine and of the client that loads it: vLLM, or the emulator in a rehearsal."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.engine_overload.cells import LONGEST, FixedLimits, Slo, Window
from benchmarks.engine_overload.trace import Arrival

_NEVER_SECONDS = 3600.0


class RunError(Exception):
    """A run that tells nothing: the client failed, or the plugin is off."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the server runs and where the client does."""

    engine: int
    client: int


def two_cores() -> Cores:
    """The first and the last core this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RunError("two cores are needed: one for the engine, one for its client")
    return Cores(cores[0], cores[-1])


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile stays on the core, as with taskset."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Start:
    """How an engine is started; those that start alike are the same engine. `kind`: plugin, search or stock."""

    kind: str
    limits: FixedLimits
    queued_tokens: int | None = None

    @property
    def arguments(self) -> list[str]:
        """vLLM's flags."""
        found = [f"--max-num-seqs={self.limits.sequences}", f"--max-num-batched-tokens={self.limits.tokens}"]
        found.append(f"--max-model-len={LONGEST}")
        if self.queued_tokens is not None:
            found.append(f"--max-num-queued-tokens={self.queued_tokens}")
        return found


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a run; `number` names their prompts."""

    requests: list[Arrival]
    number: int
    slo: Slo
    window: Window

    @property
    def lets_go_seconds(self) -> float:
        """When the client lets go of what has no first token: with the last arrival of a tail, else never."""
        return self.window.total_seconds if self.window.tail_seconds > 0.0 else _NEVER_SECONDS


@dataclass(frozen=True, slots=True)
class Paced:
    """Of all steps of an engine so far: the seconds that its pace gives them, and those that the host took beyond."""

    paced_seconds: float = 0.0
    beyond_seconds: float = 0.0

    def beyond_share_since(self, before: Paced) -> float:
        """How much longer than by the pace it has taken; NaN where there is none or nothing ran."""
        seconds = self.paced_seconds - before.paced_seconds
        return (self.beyond_seconds - before.beyond_seconds) / seconds if seconds > 0.0 else math.nan


class Engine(Protocol):
    """A server that is ready."""

    @property
    def folder(self) -> Path:
        """Where it works."""

    @property
    def url(self) -> str:
        """Where it listens."""

    @property
    def log(self) -> str:
        """What it has written."""

    def set_limits(self, text: str) -> None:
        """Change its file of limits as the kubelet does."""

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Values of a metric by the values of its labels."""

    def wait_for(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> float:
        """Seconds until the condition holds."""


class Engines(Protocol):
    """Starts engines and offers them load; `live_limits`: stock's fixed limits can change without a restart."""

    live_limits: bool

    def start(self, start: Start, folder: Path, limits: str) -> AbstractContextManager[Engine]:
        """A server with this text as its file of limits, ready once entered."""

    def offer(self, engine: Engine, load: Load) -> dict[str, Any]:
        """The records of all requests, in the columns of `vllm bench serve --save-detailed`."""

    def paced(self, engine: Engine) -> Paced:
        """How an engine at a set pace has kept it so far."""

    def close(self) -> None:
        """End the client."""
