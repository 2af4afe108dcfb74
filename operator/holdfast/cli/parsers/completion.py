"""The parser of `holdfast completion`."""

from __future__ import annotations

import argparse

from holdfast.cli.commands import COMMANDS

SHELLS = ("bash", "zsh", "fish")
EXAMPLE = """examples:
  source <(holdfast completion bash)
  holdfast completion fish | source"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "completion",
        help=COMMANDS["completion"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that sources the script")
