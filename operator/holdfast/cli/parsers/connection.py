"""What the commands that read a cluster take."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every reading command takes."""
    parser.add_argument(
        "-n", "--namespace", help="namespace of the service (default: that of the kubeconfig's context)"
    )
    parser.add_argument("--kubeconfig", type=Path, default=None, help="kubeconfig file (default: KUBECONFIG)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_operator(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the operator runs."""
    place = parser.add_argument_group("operator")
    place.add_argument(
        "--operator-namespace", default="holdfast-system", help="namespace of the operator (default: holdfast-system)"
    )
    place.add_argument("--lease-name", default="holdfast", help="name of the leader Lease (default: holdfast)")
    place.add_argument("--operator-port", type=int, default=8080, help="--http-port of the operator (default: 8080)")
