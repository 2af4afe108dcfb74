"""`vllm bench serve` against a service: the load generator and the judge of answers that nobody here wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from e2e.patience import patient
from e2e.vllm.environment import Environment

_TIMEOUT_SECONDS = patient(300.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of fixed lengths with Poisson arrivals, and the bounds of a good one in milliseconds."""

    requests: int
    rate_rps: float
    prompt_tokens: int = 64
    output_tokens: int = 32
    ttft_ms: int = 1000
    tpot_ms: int = 50


class Bench:
    """One run of the benchmark in the background; a context manager that ends it when the test fails."""

    def __init__(self, environment: Environment, url: str, model: str, load: Load, folder: Path) -> None:
        self._result = folder / f"{load.requests}-{load.rate_rps:g}.json"
        self._log = self._result.with_suffix(".log")
        self._command = [*_command(environment, url, model, load), f"--result-dir={folder}"]
        self._command.append(f"--result-filename={self._result.name}")
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment.variables(), cwd=self._log.parent
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether requests may still be under way."""
        return self._process is not None and self._process.poll() is None

    def result(self) -> dict[str, Any]:
        """Wait for the end; return the figures that the benchmark saved."""
        assert self._process is not None
        code = self._process.wait(_TIMEOUT_SECONDS)
        text = self._log.read_text(errors="replace")
        assert code == 0, text[-3000:]
        print(text[text.find("============ ") :])
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found


def _command(environment: Environment, url: str, model: str, load: Load) -> list[str]:
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend=openai", f"--base-url={url}", "--endpoint=/v1/completions"),
        *(f"--model={environment.model}", f"--served-model-name={model}"),
        *("--dataset-name=random", f"--random-input-len={load.prompt_tokens}"),
        *(f"--random-output-len={load.output_tokens}", "--ignore-eos"),
        *(f"--num-prompts={load.requests}", f"--request-rate={load.rate_rps:g}"),
        *("--goodput", f"ttft:{load.ttft_ms}", f"tpot:{load.tpot_ms}"),
        *("--save-result", "--disable-tqdm"),
    ]
