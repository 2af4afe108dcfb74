"""The cluster of the current kubeconfig context, used only when a person names this provider."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.kind import client_tools
from e2e.cluster.provider import ProviderError


class CurrentProvider:
    """Uses what is there: nothing is created and nothing is deleted."""

    name = "current"

    def build(self) -> None:
        """Build the clients."""
        binaries.build(client_tools())

    def start(self) -> Path:
        """The kubeconfig in use."""
        path = Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
        if not path.exists():
            raise ProviderError(f"there is no kubeconfig at {path}: set KUBECONFIG")
        return path

    def load_image(self, archive: Path) -> None:
        """Refused: only the owner of a cluster knows how images get into it."""
        raise ProviderError(f"push {archive.name} to a registry that the cluster pulls from, and name it in the chart")

    def stop(self) -> None:
        """Nothing was started."""

    def environment(self) -> dict[str, str]:
        """The environment with the clients' folders and the kubeconfig's path."""
        folders = ":".join(str(tool.folder) for tool in client_tools())
        path = f"{folders}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(self.start()), "PATH": path, "HOLDFAST_CLUSTER": self.name}
