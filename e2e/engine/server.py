"""A real vLLM server on this machine, with or without the plugin."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from e2e.patience import patient
from e2e.ports import free_port
from e2e.vllm.environment import REPOSITORY, Environment

MODEL = "tiny"
ADMISSION = "--middleware=holdfast_engine.middleware.AdmissionMiddleware"
_PAGE_READ = '"GET /metrics HTTP/1.1" 200'
_READY_SECONDS, _ANSWER_SECONDS, _PAGE_SECONDS = patient(200.0), patient(100.0), patient(10.0)
_ARGUMENTS = (
    *("--load-format=dummy", "--enforce-eager", "--dtype=float32", "--seed=0", "--max-model-len=1024"),
    *("--max-num-seqs=32", "--max-num-batched-tokens=1024"),
)
# Two threads that wait for each other at every layer take many times as long on cores that others use too.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# One process imports vLLM instead of three: a start takes 17 s of CPU instead of 35.
_FORKS = {"HOLDFAST_TEST_FORKS": "1"}
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Prompt:
    """A completion to ask for."""

    tokens: Sequence[int]
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; headers in lower case, only of those that are no 200."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Settings:
    """How to start the server: the folder with the plugin, if any, and further arguments and variables.

    Where it `spawns`, each of its processes imports vLLM for itself, as in production.
    """

    environment: Environment
    folder: Path
    plugin: Path | None = None
    scheduler: str = "holdfast_engine.scheduler.HoldfastScheduler"
    arguments: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    spawns: bool = False


class Server:
    """A context manager that has the server ready, and ends it with all its processes.

    A further rank (`--headless`) is only started: it is ready when the first one is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.limits = settings.folder / "engine-limits"
        self.log_file = settings.folder / "server.log"

    def __enter__(self) -> Self:
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                env=self._variables(),
                cwd=self._settings.folder,
                start_new_session=True,
            )
        try:
            if "--headless" not in self._settings.arguments:
                self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def session(self) -> int:
        """The session of all its processes; raises AssertionError before the start."""
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Where it works."""
        return self._settings.folder

    @property
    def log(self) -> str:
        """What the server has written so far."""
        return self.log_file.read_text(errors="replace")

    def complete(self, prompt: Prompt) -> list[int]:
        """The tokens of a greedy completion."""
        answer = self._open("/v1/completions", _greedy(prompt), _ANSWER_SECONDS)
        found: list[int] = json.loads(answer)["choices"][0]["token_ids"]
        return found

    def complete_all(self, prompts: Sequence[Prompt], at_once: int = 16) -> list[list[int]]:
        """The completions of all prompts, asked for by `at_once` clients."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.complete, prompts))

    def set_limits(self, text: str) -> None:
        """Change the file as the kubelet does: the path leads to another one from one moment to the next."""
        fresh = self.limits.with_name(self.limits.name + ".new")
        fresh.write_text(text)
        fresh.replace(self.limits)

    def ask(
        self, prompt: Prompt, path: str = "/v1/completions", headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        """What the server answers, whatever it is."""
        body: dict[str, Any] = {"model": MODEL, "max_tokens": prompt.output_tokens, "ignore_eos": True, **fields}
        if path == "/v1/completions":
            body["prompt"] = list(prompt.tokens)
        else:
            body["messages"] = [{"role": "user", "content": "hello " * len(prompt.tokens)}]
        try:
            return Answer(200, {}, self._open(path, body, _ANSWER_SECONDS, headers).decode())
        except urllib.error.HTTPError as problem:
            found = {name.lower(): value for name, value in problem.headers.items()}
            return Answer(problem.code, found, problem.read().decode())

    def ask_all(self, prompts: Sequence[Prompt], **fields: Any) -> list[Answer]:
        """What the server answers when all ask at once."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.ask(prompt, **fields), prompts))

    def connection_after(self, prompt: Prompt) -> str | None:
        """What the start of a stream says of its connection to a client that would keep it; None: nothing."""
        body = {"model": MODEL, "prompt": list(prompt.tokens), "max_tokens": prompt.output_tokens, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            return connection.getresponse().getheader("Connection")
        finally:
            connection.close()

    def abandon(self, prompt: Prompt, once: Callable[[], bool]) -> bool:
        """Ask for a completion and hang up once something holds; whether that was before the answer was there."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(_greedy(prompt)), headers)
            self.wait_for(once, 20.0, "moment to hang up")
            return not select.select([connection.sock], [], [], 0.0)[0]
        finally:
            connection.close()

    def get(self, path: str) -> str:
        """What stands at this path."""
        return self._open(path, None, _PAGE_SECONDS, port=self._port_of(path)).decode()

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Values of a metric by the values of its labels, less model_name and engine."""
        return samples_of(self.get("/metrics"), name)

    def signal_core(self, number: signal.Signals) -> None:
        """Send a signal to the process with the engine in it, and not to the API server."""
        cores = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                named = b"EngineCore" in (folder / "cmdline").read_bytes()
                if named and os.getsid(int(folder.name)) == self.session:
                    cores.append(int(folder.name))
        assert len(cores) == 1, f"processes of the engine: {cores}"
        os.kill(cores[0], number)

    def wait_for(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> float:
        """Seconds until the condition holds."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > patient(timeout_seconds):
                said = "\n".join(line for line in self.log.splitlines() if _PAGE_READ not in line)
                raise AssertionError(f"no {what} within {patient(timeout_seconds):g} s; the log ends: {said[-3000:]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def _port_of(self, path: str) -> int:
        """Where this path is answered."""
        return self._port

    def _program(self) -> tuple[str, ...]:
        return sys.executable, "-m", "vllm.entrypoints.cli.main"

    def _command(self) -> list[str]:
        settings = self._settings
        plugin = () if settings.plugin is None else (f"--scheduler-cls={settings.scheduler}",)
        return [
            *(*self._program(), "serve", str(settings.environment.model)),
            *(f"--served-model-name={MODEL}", "--host=127.0.0.1", f"--port={self._port}"),
            *(*_ARGUMENTS, *plugin, *settings.arguments),
        ]

    def _variables(self) -> dict[str, str]:
        settings = self._settings
        variables = {
            **settings.environment.variables(),
            **ONE_THREAD,
            **({} if settings.spawns else _FORKS),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HOLDFAST_ENGINE_FOLDER": str(settings.folder),
            "HOLDFAST_ENGINE_LIMITS": str(self.limits),
            **settings.variables,
        }
        if settings.plugin is not None:
            path = [str(settings.plugin), variables["PYTHONPATH"], str(REPOSITORY)]
            variables["PYTHONPATH"] = os.pathsep.join(path)
        return variables

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log[-4000:]}")
            try:
                self._open("/health", None, 5.0)
            except OSError:
                if time.monotonic() - began > _READY_SECONDS:
                    raise AssertionError(f"not ready within {_READY_SECONDS} s: {self.log[-4000:]}") from None
                time.sleep(0.2)
            else:
                print(f"ready after {time.monotonic() - began:.0f} s")
                return

    def _open(
        self,
        path: str,
        body: dict[str, Any] | None,
        timeout_seconds: float,
        headers: dict[str, str] | None = None,
        port: int | None = None,
    ) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            content: bytes = answer.read()
            return content

    def _end(self) -> None:
        if self._process is None:
            return
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, ending)
                self._process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def samples_of(page: str, name: str) -> dict[tuple[str, ...], float]:
    """The same of one page of metrics: what is compared must be of one moment."""
    found = {}
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match and match[1] == name:
            # As Prometheus does: a label without a value is none.
            labels = {label: value for label, value in _LABEL.findall(match[2] or "") if value}
            found[tuple(labels[key] for key in sorted(labels) if key not in ("model_name", "engine"))] = float(match[3])
    return found


def _greedy(prompt: Prompt) -> dict[str, Any]:
    """What is asked for: as many tokens as the prompt wants, told by their ids."""
    return {
        "model": MODEL,
        "prompt": list(prompt.tokens),
        "max_tokens": prompt.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
