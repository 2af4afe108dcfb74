"""`holdfast`: one module per command, each adding its own parser."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from holdfast.cli.terminal import open_closed, unwritten

COMMANDS = (
    "run",
    "activate",
    "emulate",
    "simulate",
    "plan",
    "catalog",
    "bench",
    "tune",
    "adopt",
    "explain",
    "status",
    "rules",
    "dashboards",
    "crd",
    "completion",
)
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""A full disk, or a reader that went away."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _version() -> str:
    try:
        return version("holdfast-operator")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def build_parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the given commands."""
    parser = _Parser(prog="holdfast", description="Keeps the service-level objectives of LLM services on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"holdfast {_version()}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in commands:
        importlib.import_module(f"holdfast.cli.{command}").add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 the answer is no or the run failed, 2 bad usage or input."""
    open_closed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A known command loads alone: an emulated engine must not pay for the Kubernetes client's imports.
    commands = (given[0],) if given and given[0] in COMMANDS else COMMANDS
    parser = build_parser(commands)
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        importlib.import_module("argcomplete").autocomplete(parser)
    parsed = parser.parse_args(given)
    try:
        code = int(parsed.run(parsed))
        # While it can be told: when Python ends, a full disk is a traceback.
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        if problem.errno not in UNWRITABLE:
            raise
        print(f"holdfast {given[0]}: {unwritten(problem)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
