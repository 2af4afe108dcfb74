"""The parser of `holdfast status`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.cli.parsers.connection import add_connection


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help=COMMANDS["status"],
        epilog="example: holdfast status -A",
    )
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="list services of all namespaces")
    add_connection(parser)
