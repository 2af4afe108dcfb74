"""The parser of `holdfast crd`."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.commands import COMMANDS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("crd", help=COMMANDS["crd"], epilog="example: holdfast crd | kubectl apply -f -")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write one file per CRD to")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of YAML documents")
