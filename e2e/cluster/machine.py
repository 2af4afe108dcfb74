"""Prepares the private namespaces from inside: mounts, kernel settings and the bridge."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from e2e.cluster.layout import BRIDGE, CLUSTER_DOMAIN, NODE_ADDRESS, SERVICE_NETWORK, Layout
from e2e.cluster.packages import system_path

# The kubelet sets these for the whole machine. In here it finds them set, and the machine keeps its own.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_STATE_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")


def prepare(layout: Layout) -> None:
    """Give the cluster its own /run, state folders, kernel settings, network and name service."""
    resolver = Path("/etc/resolv.conf").resolve()
    _mount_memory("/run")
    for folder in _STATE_FOLDERS:
        _mount_own(folder, layout.work / "state" / folder.strip("/"))
    for setting, value in _KERNEL_SETTINGS.items():
        _cover_file(Path("/proc/sys") / setting, f"{value}\n", layout.work / "kernel" / setting)
    _make_network()
    search = f"search default.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\n"
    if resolver.is_relative_to("/run"):
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.touch()
    _cover_file(resolver, f"nameserver {NODE_ADDRESS}\n{search}options ndots:5\n", layout.work / "resolv.conf")


def _make_network() -> None:
    _system("ip", "link", "set", "lo", "up")
    _system("ip", "link", "add", BRIDGE, "type", "bridge")
    _system("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE)
    _system("ip", "link", "set", BRIDGE, "up")
    # Without a route the node itself would drop what it sends to a service before iptables sees it.
    _system("ip", "route", "add", SERVICE_NETWORK, "dev", BRIDGE)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _mount_memory(folder: str) -> None:
    _system("mount", "-t", "tmpfs", "-o", "mode=755", "holdfast", folder)


def _mount_own(folder: str, own: Path) -> None:
    own.mkdir(parents=True, exist_ok=True)
    Path(folder).mkdir(parents=True, exist_ok=True)
    _system("mount", "--bind", str(own), folder)


def _cover_file(path: Path, content: str, own: Path) -> None:
    if not path.exists():
        return
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(content)
    _system("mount", "--bind", str(own), str(path))


def _system(*command: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, "PATH": system_path()}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
