"""Real vLLM on one core, `vllm bench serve` on another; at the pace of an accelerator, where one is named."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_overload.cells import LONGEST
from benchmarks.engine_overload.engines import Cores, Engine, Load, Paced, RunError, Start, on_core
from benchmarks.engine_overload.trace import to_jsonl
from e2e.engine.mount import mount
from e2e.engine.server import ADMISSION, MODEL, Server, Settings
from e2e.vllm.environment import Environment
from e2e.vllm.model import write_model
from holdfast.enginemodel.steplaw import StepLaw

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
# Of a paced engine the model is as small as vLLM's attention for CPUs takes it: computing it is a small part of a step.
PACED_CONFIG = MODEL_CONFIG | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_INSIDE = Path(__file__).with_name("inside")
_HUNG_SECONDS = 300.0


class VllmEngines:
    """Servers of this machine's vLLM, and the one client of all."""

    live_limits = True

    def __init__(self, environment: Environment, folder: Path, cores: Cores, pace: StepLaw | None = None) -> None:
        self._pace = pace
        model = folder / "model"
        write_model(model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | (PACED_CONFIG if pace else MODEL_CONFIG), indent=1))
        self._environment = _WithModel(environment.folder, model)
        self._folder, self._cores = folder, cores
        self._plugin = mount(folder / "plugin")
        self._client: _Client | None = None

    @contextlib.contextmanager
    def start(self, start: Start, folder: Path, limits: str) -> Iterator[Engine]:
        """A server with this text as its file of limits, ready once entered."""
        (folder / "engine-limits").write_text(limits)
        with contextlib.ExitStack() as stack:
            with on_core(self._cores.engine):
                server = stack.enter_context(Server(self._settings(start, folder)))
            yield server

    def offer(self, engine: Engine, load: Load) -> dict[str, Any]:
        """Run the client once."""
        trace, result = self._folder / "trace.jsonl", self._folder / "result.json"
        trace.write_text(to_jsonl(load.requests, load.number))
        result.unlink(missing_ok=True)
        if self._client is None:
            self._client = _Client(self._environment, self._folder, self._cores.client)
        self._client.bench(self._arguments(engine, load, trace, result), load)
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def paced(self, engine: Engine) -> Paced:
        """What its worker has told so far."""
        told = engine.folder / "pace.json"
        return Paced(**json.loads(told.read_text())) if self._pace and told.exists() else Paced()

    def close(self) -> None:
        """End the client."""
        if self._client is not None:
            self._client.end()

    def _settings(self, start: Start, folder: Path) -> Settings:
        plugin, scheduler = {
            "plugin": (self._plugin, "holdfast_engine.scheduler.HoldfastScheduler"),
            "search": (_INSIDE, "fixed_limits.FixedLimitsScheduler"),
            "stock": (None, ""),
        }[start.kind]
        # As in a pod: the middleware is there whatever overload does.
        arguments = [*start.arguments, ADMISSION] if start.kind == "plugin" else start.arguments
        if self._pace is None:
            return Settings(self._environment, folder, plugin, scheduler, arguments, _VARIABLES)
        arguments = [*arguments, "--worker-cls=paced_worker.PacedWorker"]
        variables = _VARIABLES | {
            "HOLDFAST_PACE": json.dumps(astuple(self._pace)),
            "PYTHONPATH": os.pathsep.join((str(self._environment.packages), str(_INSIDE))),
        }
        return Settings(self._environment, folder, plugin, scheduler, arguments, variables)

    def _arguments(self, engine: Engine, load: Load, trace: Path, result: Path) -> list[str]:
        slo = load.slo
        return [
            *("--backend=openai", f"--base-url={engine.url}", "--endpoint=/v1/completions", "--temperature=0"),
            *(f"--model={self._environment.model}", f"--served-model-name={MODEL}", "--disable-tqdm"),
            *("--dataset-name=timed_trace", f"--dataset-path={trace}", f"--num-prompts={len(load.requests)}"),
            *(f"--timed-trace-chunk-hash-size={LONGEST}", "--ready-check-timeout-sec=0"),
            *("--goodput", f"ttft:{1000 * slo.ttft_seconds:g}", f"tpot:{1000 * slo.tpot_seconds:g}"),
            *("--save-result", "--save-detailed", f"--result-dir={result.parent}", f"--result-filename={result.name}"),
        ]


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
        with on_core(core), (folder / "client.log").open("wb") as log:
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
            self.end()
            raise RunError(f"the client does not start: {(folder / 'client.log').read_text()[-3000:]}")

    def bench(self, arguments: list[str], load: Load) -> None:
        """Run it once; its output is in the log."""
        order = {
            "arguments": arguments,
            "log": str(self._log),
            "window_ends_seconds": load.window.end_seconds,
            "arrivals_end_seconds": load.lets_go_seconds,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(load.window.total_seconds + _HUNG_SECONDS)
        if answer != "0":
            raise RunError(f"vllm bench serve: {answer or 'no answer'}: {self._log.read_text()[-3000:]}")

    def end(self) -> None:
        """Kill it; a run under way is a process of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def _answer(self, timeout_seconds: float) -> str:
        """The next line; they come one by one, so that none is hidden in a buffer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_seconds)[0]:
            return ""
        return self._process.stdout.readline().decode().strip()
