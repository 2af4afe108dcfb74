"""The parser of `holdfast dashboards`."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.commands import COMMANDS

DASHBOARDS = ("fleet", "service")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "dashboards", help=COMMANDS["dashboards"], epilog="example: holdfast dashboards --out ./dashboards"
    )
    parser.add_argument("name", nargs="?", choices=DASHBOARDS, help="name of the dashboard to print")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write one file per dashboard to")
    parser.add_argument("--json", action="store_true", help="accepted for consistency; the output is always JSON")
