"""Clusters that stay up after the command that started them: start, find, enter, end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from e2e.cluster.cache import cache_folder
from e2e.cluster.layout import Layout
from e2e.cluster.namespaces import BusyError, enter_command, is_running, subprocess_environment
from e2e.cluster.processes import StartError
from e2e.cluster.session import run_command

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0


def start(layout: Layout) -> None:
    """Start a cluster that lives until `stop`; return when it is ready."""
    if is_running(layout):
        raise BusyError(f"a cluster named {layout.name} is running already: make cluster-down ends it")
    log_path = cache_folder() / "runs" / f"{layout.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "e2e.cluster", "run", "--provider", "embedded", "--name", layout.name]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=subprocess_environment(),
        )
    deadline = time.monotonic() + _START_SECONDS
    while not layout.ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StartError(f"the cluster did not come up:\n{log_path.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def running() -> list[Layout]:
    """All clusters of this machine's cache that are running, also those of other commands."""
    locks = sorted((cache_folder() / "runs").glob("*.lock"))
    return [layout for layout in (Layout(lock.stem) for lock in locks) if is_running(layout)]


def describe(layout: Layout) -> str:
    """How a person gets to the cluster."""
    state = "ready" if layout.ready.exists() else "starting or ending"
    way_in = " ".join(enter_command(layout)) if layout.state.exists() else "(not yet)"
    kubectl = f"python -m e2e.cluster exec --name {layout.name} -- kubectl get nodes"
    return "\n".join(
        (
            f"cluster {layout.name}: {state}",
            f"  kubeconfig (valid inside only): {layout.kubeconfig}",
            f"  logs: {layout.logs}",
            f"  way in: {way_in} bash",
            f"  or: {kubectl}",
        )
    )


def execute(layout: Layout, command: list[str], environment: dict[str, str]) -> int:
    """Run a command inside a running cluster, in this working directory; return its exit code."""
    if not is_running(layout) or not layout.ready.exists():
        raise StartError(f"no cluster named {layout.name} is ready: make cluster-up starts one")
    return run_command([*enter_command(layout), "env", f"--chdir={os.getcwd()}", *command], environment)


def stop(layout: Layout) -> None:
    """End a cluster and wait until nothing of it is left; one that is not running is fine."""
    if not is_running(layout):
        return
    with suppress(OSError, ValueError):
        os.kill(json.loads(layout.state.read_text())["supervisor"], signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while is_running(layout):
        if time.monotonic() > deadline:
            raise StartError(f"cluster {layout.name} did not end within {_STOP_SECONDS:.0f} s")
        time.sleep(0.1)
