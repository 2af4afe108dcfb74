"""Two nodes on this machine: network namespaces that a pair of veth interfaces joins. They end with this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = "10.77.0.1", "10.77.0.2"
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of sched.h; os.unshare comes with Python 3.12."""


@contextmanager
def second_node() -> Iterator[list[str]]:
    """Make this process the first node; yields what to put before a command that is to run on the second one."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace of our own: run as root")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        there = ["nsenter", f"--target={holder.pid}", "--net"]
        while os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{holder.pid}/ns/net"):
            time.sleep(0.01)
        _system("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        for prefix, address in zip(([], there), ADDRESSES, strict=True):
            _system(*prefix, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                _system(*prefix, "ip", "link", "set", name, "up")
        yield there
    finally:
        holder.kill()
        holder.wait()


def _system(*command: str) -> None:
    subprocess.run(command, check=True)
