"""Servers and client of one run: vLLM on one core, `vllm bench serve` on another.

Servers stay up, idle ones beside the one under load: one start serves every run of a variant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.engine_overload.cells import (
    CONVERSATION,
    DEFAULT_LIMITS,
    LONGEST,
    Cell,
    FixedLimits,
    Slo,
    Variant,
    Window,
)
from benchmarks.engine_overload.goodput import Figures, figures
from benchmarks.engine_overload.journal import RunKey
from benchmarks.engine_overload.trace import Arrival, arrivals, to_jsonl
from e2e.engine.mount import mount
from e2e.engine.server import ADMISSION, MODEL, Server, Settings
from e2e.vllm.environment import Environment
from e2e.vllm.model import write_model
from holdfast_engine.rules import Limits, Objectives, Overload

# Four wide layers: computing them, not Python, is what a step takes on one core.
MODEL_CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LONGEST,
}
# The engine has one core, which it knows; scheduler and model share a process, because two would wait for each other
# by spinning on it: that took a sixth of the throughput (11.9 to 10.0 req/s).
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_INSIDE = Path(__file__).with_name("inside")
_WARM_UP = Window(0.0, 5.0, 0.0)
_WARM_UP_RPS = 4.0
_OVERLOADS = {Variant.QUEUE: Overload.QUEUE, Variant.REJECT: Overload.REJECT}
_HUNG_SECONDS = 300.0
_APPLIED_SECONDS = 10.0


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


class Rig:
    """A context manager that makes runs, and ends all its processes."""

    def __init__(self, environment: Environment, folder: Path, cells: dict[int, Cell], cores: Cores) -> None:
        model = folder / "model"
        write_model(model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | MODEL_CONFIG, indent=1))
        self._environment = _WithModel(environment.folder, model)
        self._folder, self._cells, self._cores = folder, cells, cores
        self._stack = contextlib.ExitStack()
        self._servers: dict[_Start, Server] = {}
        self._told: tuple[Slo, Overload] | None = None
        self._version = 1
        self._plugin = mount(folder / "plugin")
        self._client: _Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, key: RunKey, number: int) -> Figures:
        """Make one run; `number` names its prompts."""
        cell = self._cells[key.cell]
        server = self._ready(key, cell)
        requests = arrivals(cell.mix, key.rate_rps, key.window, key.seed)
        found = self._offer(server, requests, number, cell)
        if key.variant in _OVERLOADS:
            _check_active(server)
        return figures(found, requests, cell.slo, key.window)

    def _ready(self, key: RunKey, cell: Cell) -> Server:
        """The server of a variant with the limits or objectives of this run."""
        limits = key.limits or DEFAULT_LIMITS
        if key.variant in _OVERLOADS:
            overload = _OVERLOADS[key.variant]
            server = self._server(_Start("plugin", DEFAULT_LIMITS), self._to_json(cell, overload))
            self._tell(server, cell, overload)
            return server
        if key.variant is Variant.SEARCH:
            text = json.dumps(dataclasses.asdict(limits))
            server = self._server(_Start("search", DEFAULT_LIMITS), text)
            server.set_limits(text)
            return server
        return self._server(_Start("stock", limits, key.queued_tokens), "")

    def _server(self, start: _Start, limits: str) -> Server:
        found = self._servers.get(start)
        if found is not None:
            return found
        settings = self._settings(start)
        settings.folder.mkdir(parents=True, exist_ok=True)
        (settings.folder / "engine-limits").write_text(limits)
        with _on_core(self._cores.engine):
            server = self._stack.enter_context(Server(settings))
        self._servers[start] = server
        requests = arrivals(CONVERSATION, _WARM_UP_RPS, _WARM_UP, seed=len(self._servers))
        self._offer(server, requests, -len(self._servers), next(iter(self._cells.values())))
        return server

    def _settings(self, start: _Start) -> Settings:
        plugin, scheduler = {
            "plugin": (self._plugin, "holdfast_engine.scheduler.HoldfastScheduler"),
            "search": (_INSIDE, "fixed_limits.FixedLimitsScheduler"),
            "stock": (None, ""),
        }[start.kind]
        folder = self._folder / f"server-{len(self._servers)}-{start.kind}"
        # As in a pod: the middleware is there whatever overload does.
        arguments = [*start.arguments, ADMISSION] if start.kind == "plugin" else start.arguments
        return Settings(self._environment, folder, plugin, scheduler, arguments, _VARIABLES)

    def _tell(self, server: Server, cell: Cell, overload: Overload) -> None:
        if self._told != (cell.slo, overload):
            self._version += 1
            server.set_limits(self._to_json(cell, overload))
            self._told = (cell.slo, overload)
        server.wait_for(
            lambda: server.samples("holdfast:limits").get(("version",)) == self._version,
            _APPLIED_SECONDS,
            "application of the objectives",
        )

    def _to_json(self, cell: Cell, overload: Overload) -> str:
        """The objectives and what overload does, nothing else: every limit is the plugin's own."""
        objectives = Objectives(cell.slo.ttft_seconds, cell.slo.tpot_seconds)
        return Limits(self._version, objectives, overload=overload).to_json()

    def _offer(self, server: Server, requests: list[Arrival], number: int, cell: Cell) -> dict[str, Any]:
        trace, result = self._folder / "trace.jsonl", self._folder / "result.json"
        trace.write_text(to_jsonl(requests, number))
        result.unlink(missing_ok=True)
        if self._client is None:
            self._client = self._stack.enter_context(_Client(self._environment, self._folder, self._cores.client))
        allowed = requests[-1].at_seconds + _HUNG_SECONDS
        self._client.bench(self._arguments(server, len(requests), cell, trace, result), allowed)
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def _arguments(self, server: Server, count: int, cell: Cell, trace: Path, result: Path) -> list[str]:
        slo = cell.slo
        return [
            *("--backend=openai", f"--base-url={server.url}", "--endpoint=/v1/completions", "--temperature=0"),
            *(f"--model={self._environment.model}", f"--served-model-name={MODEL}", "--disable-tqdm"),
            *("--dataset-name=timed_trace", f"--dataset-path={trace}", f"--num-prompts={count}"),
            f"--timed-trace-chunk-hash-size={LONGEST}",
            *("--goodput", f"ttft:{1000 * slo.ttft_seconds:g}", f"tpot:{1000 * slo.tpot_seconds:g}"),
            *("--save-result", "--save-detailed", f"--result-dir={result.parent}", f"--result-filename={result.name}"),
        ]


@dataclass(frozen=True, slots=True)
class _Start:
    """Servers that start alike are the same server."""

    kind: str
    limits: FixedLimits
    queued_tokens: int | None = None

    @property
    def arguments(self) -> list[str]:
        found = [f"--max-num-seqs={self.limits.sequences}", f"--max-num-batched-tokens={self.limits.tokens}"]
        found.append(f"--max-model-len={LONGEST}")
        if self.queued_tokens is not None:
            found.append(f"--max-num-queued-tokens={self.queued_tokens}")
        return found


@dataclass(frozen=True, slots=True)
class _WithModel(Environment):
    """The installed vLLM with a model of our own."""

    model_folder: Path

    @property
    def model(self) -> Path:
        return self.model_folder


class _Client:
    """A process that has imported `vllm bench serve` and runs it as often as it is asked to."""

    def __init__(self, environment: Environment, folder: Path, core: int) -> None:
        self._log = folder / "bench.log"
        # Prompts are made from hashes of text, which must not differ from one campaign to the next.
        variables = {**environment.variables(), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        with _on_core(core), (folder / "client.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_INSIDE / "bench_worker.py")],
                env=variables,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if self._answer(_HUNG_SECONDS) != "ready":
            raise RunError(f"the client does not start: {(folder / 'client.log').read_text()[-3000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A run under way is a process of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def bench(self, arguments: list[str], timeout_seconds: float) -> None:
        """Run it once; its output is in the log."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"arguments": arguments, "log": str(self._log)}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(timeout_seconds)
        if answer != "0":
            raise RunError(f"vllm bench serve: {answer or 'no answer'}: {self._log.read_text()[-3000:]}")

    def _answer(self, timeout_seconds: float) -> str:
        """The next line; they come one by one, so that none is hidden in a buffer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_seconds)[0]:
            return ""
        return self._process.stdout.readline().decode().strip()


@contextlib.contextmanager
def _on_core(core: int) -> Iterator[None]:
    """What is started meanwhile stays on the core, as with taskset."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _check_active(server: Server) -> None:
    modes = [labels[0] for labels in server.samples("holdfast:plugin_info")]
    if modes != ["active"]:
        raise RunError(f"the plugin is {', '.join(modes) or 'not there'}: {server.log[-3000:]}")
