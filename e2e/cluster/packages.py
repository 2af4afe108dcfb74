"""The few programs that come from the distribution: runc, the CNI plugins, iptables, conntrack."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from e2e.cluster.binaries import BuildError
from e2e.cluster.cache import exclusive

_PROGRAM_PACKAGES = {"runc": "runc", "iptables": "iptables", "conntrack": "conntrack", "ip": "iproute2"}
_CNI_PACKAGE = "containernetworking-plugins"
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_CNI_PLUGINS = ("bridge", "host-local", "portmap", "loopback")
_ATTEMPTS = 3


def system_path() -> str:
    """PATH with the administrator's folders, where these programs usually are."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def cni_folder() -> Path | None:
    """The first folder that holds all the network plugins used here."""
    folders = (Path(folder) for folder in _CNI_FOLDERS)
    return next((folder for folder in folders if all((folder / name).exists() for name in _CNI_PLUGINS)), None)


def missing_packages() -> list[str]:
    """Distribution packages whose programs are not on this machine."""
    wanted = [
        package for program, package in _PROGRAM_PACKAGES.items() if shutil.which(program, path=system_path()) is None
    ]
    return wanted if cni_folder() else [*wanted, _CNI_PACKAGE]


def install_packages() -> None:
    """Install the missing packages with apt; elsewhere say what a person must install."""
    if wanted := missing_packages():
        install(wanted)


def install(wanted: list[str]) -> None:
    """Install packages of the distribution; waits for other calls, since apt fails while another process runs it."""
    if shutil.which("apt-get") is None:
        raise BuildError(f"please install {', '.join(wanted)} with this distribution's package manager and try again")
    started = time.monotonic()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with exclusive("apt"):
        _apt(["update"], environment)
        _apt(["install", "--yes", "--no-install-recommends", *wanted], environment)
    print(f"  installed {', '.join(wanted)} in {time.monotonic() - started:.0f} s", flush=True)


def _apt(arguments: list[str], environment: dict[str, str]) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        command = ["apt-get", "--quiet", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if attempt < _ATTEMPTS:
            time.sleep(5 * attempt)
    raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
