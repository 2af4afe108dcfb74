"""A cluster in Docker containers, for machines that have Docker but no root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.cache import cache_folder
from e2e.cluster.images import fast_images, slow_images
from e2e.cluster.provider import ProviderError
from e2e.cluster.toolset import HELM, KIND, KUBERNETES, PAUSE, PROMETHEUS, Tool


class KindProvider:
    """Creates and deletes a kind cluster of the given name; the images are loaded as archives."""

    name = "kind"

    def __init__(self, name: str) -> None:
        self._cluster = f"holdfast-{name}"
        self._kubeconfig = cache_folder() / "kind" / f"{name}.kubeconfig"

    def build(self) -> None:
        """Build the programs and the images."""
        docker = shutil.which("docker")
        if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
            raise ProviderError("the Docker daemon does not answer: start it, or run as root without --provider kind")
        binaries.build(tools())
        slow_images()
        fast_images()

    def start(self) -> Path:
        """Create the cluster, with a node image that is already here if there is one, and load the images."""
        self._kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        present = self._run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "kindest/node").split()
        image = ["--image", present[0]] if present else []
        self._kind("create", "cluster", "--wait", "180s", *image)
        for loaded in (*slow_images(), *fast_images()):
            self.load_image(loaded.archive)
        return self._kubeconfig

    def load_image(self, archive: Path) -> None:
        """Import an archive into the cluster's node."""
        self._kind("load", "image-archive", str(archive))

    def stop(self) -> None:
        """Delete the cluster."""
        self._kind("delete", "cluster")

    def environment(self) -> dict[str, str]:
        """KUBECONFIG and the clients' folders."""
        folders = ":".join(str(tool.folder) for tool in client_tools())
        path = f"{folders}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self._kubeconfig), "PATH": path, "HOLDFAST_CLUSTER": self.name}

    def _kind(self, *arguments: str) -> None:
        command = [str(KIND.program("kind")), *arguments, "--name", self._cluster]
        self._run(*command, KUBECONFIG=str(self._kubeconfig))

    def _run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProviderError(f"{' '.join(command)}:\n{done.stderr.strip()[-2000:]}")
        return done.stdout


def tools() -> tuple[Tool, ...]:
    """The programs that are built: kind, the clients, and what the images hold."""
    return (KIND, PAUSE, *client_tools())


def client_tools() -> tuple[Tool, ...]:
    """The programs a command needs beside a cluster made elsewhere; a kubectl on PATH spares a long build."""
    return (PROMETHEUS, HELM) if shutil.which("kubectl") else (PROMETHEUS, HELM, KUBERNETES)
