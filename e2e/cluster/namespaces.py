"""Runs a cluster and a command in private namespaces and leaves nothing behind, whatever ends it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from e2e.cluster import cgroups
from e2e.cluster.layout import Layout

_PR_SET_PDEATHSIG = 1
_REPOSITORY = Path(__file__).resolve().parents[2]


class BusyError(Exception):
    """A cluster of this name is already running."""


def run_inside(layout: Layout, arguments: list[str]) -> int:
    """Run ``python -m e2e.cluster ARGUMENTS`` as the first process of new namespaces; return its exit code."""
    with _held(layout) as lock:
        shutil.rmtree(layout.work, ignore_errors=True)
        layout.work.mkdir(parents=True)
        janitor, lifeline = _start_janitor(layout, lock)
        try:
            return _supervise(layout, arguments)
        finally:
            os.close(lifeline)
            janitor.wait()


def is_running(layout: Layout) -> bool:
    """Whether a run of this name, or the clean-up after it, is under way."""
    if not layout.lock.exists():
        return False
    with layout.lock.open("r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def enter_command(layout: Layout) -> list[str]:
    """The command line prefix that puts a command into a running cluster's namespaces."""
    process = json.loads(layout.state.read_text())["first_process"]
    return ["nsenter", f"--target={process}", "--net", "--mount", "--pid", "--"]


def clean_up(layout: Layout, lifeline: int) -> None:
    """Wait until nobody holds the other end of `lifeline`, then remove what namespaces do not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.read(lifeline, 1)
    cgroups.remove(layout.control_group)
    for _ in range(100):
        shutil.rmtree(layout.work, ignore_errors=True)
        if not layout.work.exists():
            break
        time.sleep(0.1)
    layout.lock.unlink(missing_ok=True)


@contextmanager
def _held(layout: Layout) -> Iterator[int]:
    layout.lock.parent.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w") as handle:
        busy = BusyError(f"a cluster named {layout.name} is running already")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        # The clean-up after another run may have removed the file between its opening and its locking.
        if not layout.lock.exists() or layout.lock.stat().st_ino != os.fstat(handle.fileno()).st_ino:
            raise busy
        yield handle.fileno()


def _start_janitor(layout: Layout, lock: int) -> tuple[subprocess.Popen[bytes], int]:
    """A process outside that outlives this one, even a SIGKILL, for as long as cleaning takes."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "e2e.cluster", "clean-up", "--name", layout.name, "--lifeline", str(read_end)]
    janitor = subprocess.Popen(
        command,
        pass_fds=(read_end, lock),
        start_new_session=True,
        env=subprocess_environment(),
        stdin=subprocess.DEVNULL,
    )
    os.close(read_end)
    return janitor, write_end


def _supervise(layout: Layout, arguments: list[str]) -> int:
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command += [sys.executable, "-m", "e2e.cluster", *arguments]
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if process is not None:
            _pass_on(number, layout, process)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    process = subprocess.Popen(command, env=subprocess_environment(), preexec_fn=die_with_parent)
    for early in received:
        _pass_on(early, layout, process)
    state = {"supervisor": parent, "first_process": _first_process(process)}
    layout.state.write_text(json.dumps(state))
    code = process.wait()
    return 128 + received[0] if code < 0 and received else code % 256


def _pass_on(number: int, layout: Layout, unshare: subprocess.Popen[bytes]) -> None:
    if not layout.ready.exists():
        # Nothing inside is worth an orderly end yet, and perhaps nothing there listens to signals yet.
        unshare.kill()
    elif number != signal.SIGINT:
        # A Ctrl-C has reached the command from the terminal; what it does then decides when this ends.
        first = _first_process(unshare)
        if first is not None:
            with suppress(ProcessLookupError):
                os.kill(first, number)


def _first_process(unshare: subprocess.Popen[bytes]) -> int | None:
    """The PID, seen from here, of the process that is number 1 inside."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    while unshare.poll() is None:
        with suppress(OSError):
            found = children.read_text().split()
            if found:
                return int(found[0])
        time.sleep(0.01)
    return None


def subprocess_environment() -> dict[str, str]:
    """The environment in which ``python -m e2e.cluster`` finds itself from any folder."""
    return {**os.environ, "PYTHONPATH": f"{_REPOSITORY}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
