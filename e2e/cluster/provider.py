"""What every kind of cluster offers, and the choice among them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

PROVIDERS = ("embedded", "kind", "current")


class ProviderError(Exception):
    """No cluster of this kind can be had here; the message says what to do."""


class Provider(Protocol):
    """A Kubernetes cluster that can be built, started, given images and stopped."""

    name: str

    def build(self) -> None:
        """Make everything that needs the network or much time."""
        ...

    def start(self) -> Path:
        """Start the cluster, wait until a node is Ready and return the kubeconfig's path."""
        ...

    def load_image(self, archive: Path) -> None:
        """Make the image of an OCI archive usable by pods."""
        ...

    def stop(self) -> None:
        """Remove the cluster."""
        ...

    def environment(self) -> dict[str, str]:
        """Environment variables for a command that uses the cluster."""
        ...


def choose_provider(named: str | None) -> str:
    """The provider to use: as named, as in HOLDFAST_CLUSTER_PROVIDER, else what this machine allows."""
    choice = named or os.environ.get("HOLDFAST_CLUSTER_PROVIDER")
    if choice:
        if choice not in PROVIDERS:
            raise ProviderError(f"unknown cluster provider {choice!r}: use one of {', '.join(PROVIDERS)}")
        return choice
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("unshare"):
        return "embedded"
    if shutil.which("docker"):
        return "kind"
    raise ProviderError(
        "no cluster can be started here: run as root on Linux (embedded), start Docker (kind), "
        "or name --provider current to use the current kubeconfig context"
    )
