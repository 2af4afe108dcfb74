"""The parser of `holdfast run`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS
from holdfast.runtime import settings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and one flag per setting."""
    parser = subparsers.add_parser(
        "run",
        help=COMMANDS["run"],
        epilog="example: holdfast run --prometheus-url http://prometheus.monitoring:9090",
    )
    settings.add_arguments(parser)
