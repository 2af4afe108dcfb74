"""The control group under which a cluster's kubelet keeps its pods (version 1 and version 2)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


def create(group: str) -> None:
    """Make the group in every hierarchy; the kubelet refuses to start without it."""
    if (_ROOT / "cgroup.controllers").exists():
        _delegate(_ROOT)
        folder = _ROOT / group.lstrip("/")
        folder.mkdir(exist_ok=True)
        _delegate(folder)
        return
    for hierarchy in _hierarchies():
        folder = hierarchy / group.lstrip("/")
        folder.mkdir(exist_ok=True)
        # A new version 1 cpuset is empty and nothing can run in it until it is filled.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (folder / setting).exists():
                (folder / setting).write_text((hierarchy / setting).read_text())


def remove(group: str, seconds: float = 20.0) -> bool:
    """Remove the group and what is below it once its processes are gone; False when some folder stayed."""
    deadline = time.monotonic() + seconds
    while not _removed(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _removed(group: str) -> bool:
    roots = [hierarchy / group.lstrip("/") for hierarchy in (_ROOT, *_hierarchies())]
    for root in roots:
        # os.walk, unlike rglob, does not mind folders that the kernel takes away meanwhile.
        for folder, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
    return not any(root.exists() for root in roots)


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"} and folder != str(_ROOT):
            yield Path(folder)


def _delegate(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text().split()
    for controller in _CONTROLLERS:
        if controller in available:
            with suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
