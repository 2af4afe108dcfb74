"""How limits get into a live engine: a file that its plugin reads, or a command that starts it anew."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from holdfast.tools.bench.figures.engine import metrics_url
from holdfast.tools.bench.generators.endpoint import NoEndpoint, fetch
from holdfast.tools.bench.generators.requests import path_of
from holdfast.tools.bench.load.load_generator import Endpoint, LatencyBounds
from holdfast.tools.tune.engine_port import CannotStart, CannotTry
from holdfast.tools.tune.setting import Setting
from holdfast_engine.objectives.rules import Limits, LimitsError, Objectives, parse_limits

STOP_SECONDS = 5.0
"""How long a command may take to end after SIGTERM."""

TAKEN_SECONDS, LOOK_SECONDS = 10.0, 0.2
"""How long an engine may take to take limits: it looks at its file once a second while it is idle."""

NO_BOUND_SECONDS = 3600.0
"""An objective that nobody asked for."""

_STANDARD_ERROR = 2
_REPORTED = re.compile(r'^holdfast:limits\{[^}\n]*\bname="(\w+)"[^}\n]*\} ([0-9.eE+-]+)$', re.MULTILINE)


class Knobs(Protocol):
    """Sets the limits of one engine."""

    async def most(self) -> Setting:
        """The largest limits that it takes as it runs now. CannotTry."""

    async def apply(self, setting: Setting) -> bool:
        """Have the engine run with these; whether it was restarted for it. CannotTry."""


class LimitsFile:
    """The file of `holdfast_engine` (docs/engine.md): written in one piece, and believed once the engine reports it."""

    def __init__(
        self, path: Path, endpoint: Endpoint, slo: LatencyBounds, taken_seconds: float = TAKEN_SECONDS
    ) -> None:
        self._path, self._endpoint, self._taken_seconds = path, endpoint, taken_seconds
        bounds = slo.ttft_seconds or NO_BOUND_SECONDS, slo.tpot_seconds or NO_BOUND_SECONDS
        self._objectives = Objectives(*bounds, slo.e2e_seconds)
        self._version = 0
        self._before = _text_of(path)

    async def restore(self) -> None:
        """Have the engine do again what the file said before, in a newer version."""
        before = limits_in(self._before or "")
        if before is not None:
            await self._put(replace(before, version=await self._next()))

    async def most(self) -> Setting:
        """What the engine was started with: what it reports without any bound.

        Where it does not, this is not its file: that says again what it did.
        """
        try:
            found = await self._write(None, None)
        except BaseException:
            self.undo()
            raise
        return Setting(int(found["active_sequences"]), int(found["tokens_per_step"]))

    async def apply(self, setting: Setting) -> bool:
        """Never restarts it."""
        wanted = setting.max_num_seqs, setting.max_num_batched_tokens
        found = await self._write(*wanted)
        if (found["active_sequences"], found["tokens_per_step"]) != wanted:
            raise CannotTry(
                f"{self._endpoint.url} runs with {found['active_sequences']:.0f} sequences and "
                f"{found['tokens_per_step']:.0f} tokens per step instead of {setting}: it cannot "
                "change them live (docs/engine.md): give --restart-command instead"
            )
        return False

    async def _write(self, sequences: int | None, tokens: int | None) -> dict[str, float]:
        return await self._put(Limits(await self._next(), self._objectives, sequences, tokens, adapt=False))

    async def _next(self) -> int:
        """A version above all that the engine has seen."""
        reported = await self._reported()
        if not {"active_sequences", "tokens_per_step"} <= reported.keys():
            raise CannotTry(
                f"{self._endpoint.url} has no plugin that takes live limits (no holdfast:limits among its metrics): "
                "start it with --scheduler-cls holdfast_engine.scheduler.HoldfastScheduler, or give --restart-command"
            )
        return int(max(self._version, reported.get("version", 0.0), time.time())) + 1

    async def _put(self, limits: Limits) -> dict[str, float]:
        """Tell the engine, and wait for what it reports then."""
        self._version = limits.version
        self._replace(limits.to_json())
        return await self._taken()

    def undo(self) -> None:
        """Have the file say again what it said before, whether or not an engine is there to take it."""
        with contextlib.suppress(OSError, CannotTry):
            if self._before is None:
                self._path.unlink(missing_ok=True)
            elif self._before != _text_of(self._path):
                self._replace(self._before)

    def _replace(self, text: str) -> None:
        """In one piece: the engine never reads half of it."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._path)
        except OSError as problem:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise CannotTry(f"--limits-file {self._path}: cannot be written: {problem.strerror}") from None

    async def _taken(self) -> dict[str, float]:
        end = asyncio.get_running_loop().time() + self._taken_seconds
        while asyncio.get_running_loop().time() < end:
            reported = await self._reported()
            if reported.get("version") == self._version:
                return reported
            await asyncio.sleep(LOOK_SECONDS)
        raise CannotTry(
            f"{self._endpoint.url} did not take the limits of {self._path} within {self._taken_seconds:g} s: "
            "name the file that this engine reads (its HOLDFAST_ENGINE_LIMITS, or --engine-limits of holdfast emulate)"
        )

    async def _reported(self) -> dict[str, float]:
        _, text = await fetch(metrics_url(self._endpoint), self._endpoint)
        return reported_limits(text)


def holds_something_else(path: Path) -> bool:
    """Whether a file says something that is no limits: it is somebody's, and not to be overwritten."""
    text = _text_of(path)
    return path.exists() and (text is None or (bool(text.strip()) and limits_in(text) is None))


def limits_in(text: str) -> Limits | None:
    """Limits that an engine would believe; None for anything else."""
    try:
        return parse_limits(text)
    except LimitsError:
        return None


def _text_of(path: Path) -> str | None:
    """None where there is none, or none that can be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def reported_limits(text: str) -> dict[str, float]:
    """Limits in force by name, as /metrics tells them; of several engines in one process the lowest."""
    found: dict[str, float] = {}
    for name, value in _REPORTED.findall(text):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                found[name] = min(float(value), found.get(name, float("inf")))
    return found


@dataclass(frozen=True, slots=True)
class Restart:
    """A command, as arguments without a shell; {max_num_seqs} and so on stand for the limits in each of them."""

    command: Sequence[str]
    endpoint: Endpoint
    most_seconds: float

    async def start(self, setting: Setting) -> None:
        """Run it, and wait until the endpoint serves. CannotTry, CannotStart where another setting may do."""
        try:
            async with asyncio.timeout(self.most_seconds):
                await self._run(arguments(self.command, setting))
                while not await self._serves():  # noqa: ASYNC110 - another process is waited for
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise CannotStart(
                f"{self.endpoint.url} does not serve {self.most_seconds:g} s after --restart-command: raise "
                "--restart-timeout, or have the command end once the engine was started"
            ) from None

    async def _run(self, command: Sequence[str]) -> None:
        try:
            # What it says goes to standard error: standard output may be our JSON.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=_STANDARD_ERROR
            )
        except (OSError, ValueError) as problem:
            raise CannotTry(f"--restart-command {command[0]}: cannot be run: {problem}") from None
        try:
            code = await process.wait()
        except BaseException:
            await _stop(process)
            raise
        if code:
            raise CannotStart(f"--restart-command {command[0]}: ended with {code}")

    async def _serves(self) -> bool:
        try:
            status, _ = await fetch(path_of(self.endpoint.url, "models"), self.endpoint)
        except NoEndpoint:
            return False
        return status == 200


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End it for certain: a command that goes on would start a second engine next to the new one."""
    for end, seconds in ((process.terminate, STOP_SECONDS), (process.kill, None)):
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
            return


def arguments(command: Sequence[str], setting: Setting) -> list[str]:
    """The command for a setting; what stands for the memory is empty where it is left as it is."""
    memory = setting.gpu_memory_utilization
    values = {
        "{max_num_seqs}": str(setting.max_num_seqs),
        "{max_num_batched_tokens}": str(setting.max_num_batched_tokens),
        "{gpu_memory_utilization}": "" if memory is None else f"{memory:g}",
    }
    found = []
    for argument in command:
        for name, value in values.items():
            argument = argument.replace(name, value)
        found.append(argument)
    return found


Largest = Callable[[Setting | None], Setting]
"""The largest limits to look for, from the limits that the engine was started with: None if no plugin reports them."""


class LiveOrRestarted:
    """Live where the engine can, by a restart where it must: with more than it was started with, or other memory."""

    def __init__(self, file: LimitsFile | None, restart: Restart | None, wanted: Largest) -> None:
        self._file, self._restart, self._wanted = file, restart, wanted
        self._most: Setting | None = None
        self._started: Setting | None = None
        self._found: Setting | None = None
        self._runs: Setting | None = None

    async def most(self) -> Setting:
        """The largest limits to look for. CannotTry where the engine can never have them."""
        if self._file is not None:
            self._found = self._started = await self._file.most()
        self._most = most = self._wanted(self._started)
        if self._started is not None and self._restart is None and not most.within(self._started):
            raise CannotTry(
                f"{most}: more than the {self._started} that the engine was started with: lower --max-num-seqs and "
                "--max-num-batched-tokens, or give --restart-command"
            )
        return most

    async def restore(self) -> None:
        """Leave it as it was found: with all that it takes, and what its file said before. CannotTry.

        Where it takes nothing any more, the file at least: an engine that starts again must not take a trial's limits.
        """
        if self._found is None:
            return
        try:
            await self.apply(self._found)
            if self._file is not None:
                await self._file.restore()
                self._runs = None
        except BaseException:
            if self._file is not None:
                self._file.undo()
            raise

    async def apply(self, setting: Setting) -> bool:
        """Set them the cheaper way; nothing where the engine runs with them already."""
        if setting == self._runs:
            return False
        live = self._file is not None and self._started is not None and setting.within(self._started)
        self._runs = None  # should one of these fail, nobody knows with what it runs
        if not live:
            await self._anew(setting)
        if self._file is not None:
            await self._file.apply(setting)
        self._runs = setting
        return not live

    async def _anew(self, setting: Setting) -> None:
        if self._restart is None:
            raise CannotTry(f"{setting}: more than the engine was started with: give --restart-command")
        self._started, self._found = None, self._most
        await self._restart.start(setting)
        if self._file is not None:
            self._started = replace(await self._file.most(), gpu_memory_utilization=setting.gpu_memory_utilization)
