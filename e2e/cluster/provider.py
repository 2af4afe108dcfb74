"""What every kind of cluster offers, and the choice among them.

`python -m e2e.cluster.provider` says whether demo and tests can run here; the standard library is enough for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Protocol

OWN = "embedded"
PROVIDERS = (OWN, "kind", "current")
# They change its one node by name, call Services from outside, and read its processes and its audit log.
NEEDS_OWN = (
    "demo and tests need the cluster that they start themselves (embedded): run `make demo` or `make test` as root on "
    "Linux, without HOLDFAST_CLUSTER_PROVIDER; `make cluster-up` takes kind and current too"
)


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
        return OWN
    if shutil.which("docker"):
        return "kind"
    raise ProviderError(
        "no cluster can be started here: run as root on Linux (embedded), start Docker (kind), "
        "or name --provider current to use the current kubeconfig context"
    )


def main() -> int:
    """Refuse in one line what could not work."""
    try:
        provider = choose_provider(None)
    except ProviderError:
        provider = "none"
    if provider != OWN:
        print(f"error: {NEEDS_OWN}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
