"""Starts the cluster's processes and says, with their own last words, why one did not come up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.05


class StartError(Exception):
    """A part of the cluster did not come up; the message ends with the end of its log."""


class Processes:
    """Children with one log file each; the PID namespace ends them, so nothing here needs to."""

    def __init__(self, log_folder: Path, environment: dict[str, str]) -> None:
        self._logs = log_folder
        self._environment = environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str]) -> None:
        """Start a program whose output goes to ``<name>.log``."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log:
            # An own session: a Ctrl-C meant for the command must not end the cluster under it.
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait_until(self, what: str, ready: Callable[[], bool], seconds: float) -> None:
        """Return once ready() is true; fail at once when a process has ended meanwhile."""
        deadline = time.monotonic() + seconds
        while not ready():
            self._check_running()
            if time.monotonic() > deadline:
                raise StartError(f"{what}: not within {seconds:.0f} s; see the logs in {self._logs}")
            time.sleep(_POLL_SECONDS)

    def _check_running(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise StartError(f"{name} ended with code {process.returncode}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a process's log."""
        return "\n".join((self._logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
