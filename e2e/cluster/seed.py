"""Containerd's store with the slow-changing images already in it, made once and linked into every run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.cache import cache_folder, digest_of, exclusive
from e2e.cluster.images import Image
from e2e.cluster.processes import StartError
from e2e.cluster.toolset import CONTAINERD

_START_SECONDS = 60.0
_SETTINGS = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]

[grpc]
address = "{folder}/socket"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


def make_seed(images: list[Image]) -> None:
    """Make the store that holds these images if it is not there yet."""
    with exclusive("seed"):
        _made(images)


def plant(images: list[Image], root: Path) -> None:
    """Give a run its own store: files are linked, for images never change; databases are copied."""
    with exclusive("seed"):
        subprocess.run(["cp", "--archive", "--link", str(_made(images)), str(root)], check=True)
    for database in root.rglob("*.db"):
        if "snapshots" not in database.relative_to(root).parts:
            copy = database.with_suffix(".copy")
            shutil.copy2(database, copy)
            copy.rename(database)


def _made(images: list[Image]) -> Path:
    names = sorted(image.archive.name for image in images)
    seed = cache_folder() / "seed" / digest_of([], CONTAINERD.folder.name, *names)
    if not seed.exists():
        started = time.monotonic()
        seed.parent.mkdir(parents=True, exist_ok=True)
        _fill(seed, images)
        for old in seed.parent.iterdir():
            if old != seed:
                shutil.rmtree(old, ignore_errors=True)
        print(f"  unpacked {len(images)} images in {time.monotonic() - started:.0f} s", flush=True)
    return seed


def import_archive(archive: Path, socket: str | None = None) -> None:
    """Import an image archive into containerd where the kubelet finds it."""
    address = ["--address", socket] if socket else []
    command = [str(CONTAINERD.program("ctr")), *address, "--namespace", "k8s.io", "images", "import"]
    done = subprocess.run([*command, "--local", str(archive)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartError(f"importing {archive.name}: {(done.stdout + done.stderr).strip()[-1000:]}")


def _fill(seed: Path, images: list[Image]) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=seed.parent) as temporary:
        folder = Path(temporary)
        settings, socket = folder / "settings.toml", folder / "socket"
        settings.write_text(_SETTINGS.format(folder=folder))
        # An own mount namespace, so that an interrupted unpacking leaves no mount behind.
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command += [str(CONTAINERD.program("containerd")), "--config", str(settings)]
        environment = {**os.environ, "PATH": packages.system_path()}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _wait_for(socket, process, folder / "log")
            for image in images:
                import_archive(image.archive, str(socket))
        finally:
            _stop(process)
        (folder / "root").rename(seed)


def _wait_for(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StartError(f"containerd did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    # unshare itself does not pass signals on; its child is containerd.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), 15)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
