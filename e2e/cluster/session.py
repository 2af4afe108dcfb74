"""What happens inside the namespaces: start the cluster, run the command, end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from e2e.cluster.cache import cache_folder
from e2e.cluster.embedded import EmbeddedProvider, without_proxies
from e2e.cluster.layout import Layout
from e2e.cluster.processes import StartError

_TERMINATE_SECONDS = 20.0


def first_process(layout: Layout, command: list[str]) -> int:
    """Be process 1: reap what is orphaned, pass on SIGTERM, and end with the session's exit code."""
    for name in os.environ.keys() - without_proxies(os.environ).keys():
        del os.environ[name]
    session = os.fork()
    if session == 0:
        os._exit(_session(layout, command))

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(session, number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGHUP, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        process, status = os.wait()
        if process == session:
            return os.waitstatus_to_exitcode(status) % 256


def _session(layout: Layout, command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_signals()
    try:
        started = time.monotonic()
        provider = EmbeddedProvider(layout)
        provider.start()
        print(f"Cluster {layout.name} is ready after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        layout.ready.touch()
        code = run_command(command, provider.environment())
        if "HOLDFAST_CLUSTER_LOGS" in os.environ:
            _keep_logs(layout, Path(os.environ["HOLDFAST_CLUSTER_LOGS"]))
        return code
    except (StartError, OSError) as error:
        print(f"The cluster did not start: {error}", file=sys.stderr, flush=True)
        _keep_logs(layout, cache_folder() / "failed" / layout.name)
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:
        return int(ended.code or 0)


def run_command(command: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end and return its exit code; Ctrl-C is the command's own affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The command must see Ctrl-C although its parent does not want to.
        process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        code = process.wait()
    except SystemExit as ended:
        process.terminate()
        try:
            process.wait(_TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return int(ended.code or 0)
    return 128 - code if code < 0 else code


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process in order, so that what was started is ended too."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGHUP, _exit_on_signal)


def _keep_logs(layout: Layout, target: Path) -> None:
    for folder in (layout.logs, layout.pod_logs):
        if folder.exists():
            shutil.copytree(folder, target / folder.name, dirs_exist_ok=True, symlinks=True)
    print(f"Logs of the cluster's parts and pods: {target}", file=sys.stderr, flush=True)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
