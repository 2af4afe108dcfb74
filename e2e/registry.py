"""A registry and a program that pushes to it, both Debian's; `python -m e2e.registry` fetches them.

Clusters of tests have no way out, so that they are fetched before.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from e2e.patience import patient
from release.interpreter import own_architecture, unpacked
from release.pins import REGISTRY_PACKAGES, available


def programs() -> Path:
    """The folder with the unpacked packages."""
    return unpacked(available(own_architecture(), REGISTRY_PACKAGES))


def skopeo() -> list[str]:
    """The command that pushes, with the libraries beside it."""
    root = programs()
    libraries = ":".join(str(folder) for folder in (*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(root / "usr/bin/skopeo")]


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps its content in `folder`; yields host and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    command = [programs() / "usr/bin/docker-registry", "serve", folder / "settings.yaml"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_until_it_answers(f"http://{address}/v2/", process, folder / "log")
        yield address
    finally:
        process.terminate()
        process.wait(patient(10.0))


def _wait_until_it_answers(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + patient(20.0)
    while True:
        try:
            with urllib.request.urlopen(address, timeout=patient(5.0)):
                return
        except OSError:
            assert process.poll() is None, f"the registry ended: see {log}"
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.1)


if __name__ == "__main__":
    programs()
