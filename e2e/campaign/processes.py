"""Processes of the cluster as this machine sees them: killed, stopped, started again, cut off the network."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

PROC = pathlib.Path("/proc")


def of_program(name: str) -> list[int]:
    """The processes whose program has this name."""
    return [pid for pid in _all() if _command(pid)[:1] and pathlib.Path(_command(pid)[0]).name == name]


def of_pod(pod: str) -> list[int]:
    """The processes of a pod's containers, oldest first; all pods share the cluster's PID space."""
    wanted = f"HOSTNAME={pod}"
    return [pid for pid in _all() if wanted in _environment(pid) and "pause" not in _command(pid)[0]]


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Signal processes; those that have ended meanwhile are gone anyway."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def restarter(pid: int) -> Callable[[], None]:
    """What starts a process of the control plane again as it was started, with the same log."""
    command, log = _command(pid), os.readlink(PROC / str(pid) / "fd" / "1")
    environment = dict(each.partition("=")[::2] for each in _environment(pid))

    def start() -> None:
        with open(log, "ab") as output:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    return start


def link_of(pid: int) -> str:
    """The end of a pod's network cable at the node."""
    index = int((PROC / str(pid) / "root/sys/class/net/eth0/iflink").read_text())
    done = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True)
    return next(str(link["ifname"]) for link in json.loads(done.stdout) if link["ifindex"] == index)


def plug(link: str, state: str) -> None:
    """Set the link `up` or `down`; that of a pod that is gone is gone, too."""
    subprocess.run(["ip", "link", "set", "dev", link, state], check=False, capture_output=True)


def _all() -> Iterator[int]:
    yield from sorted(int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit())


def _command(pid: int) -> list[str]:
    return _words(pid, "cmdline") or [""]


def _environment(pid: int) -> list[str]:
    return _words(pid, "environ")


def _words(pid: int, name: str) -> list[str]:
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []  # it ended meanwhile
