"""`holdfast`: a command's parser loads when the command is named, and its work when it is called."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import util
from types import ModuleType
from typing import Any

from holdfast.api.suggestions import did_you_mean
from holdfast.cli.commands import COMMANDS, SIMULATING
from holdfast.cli.terminal import drop_output, open_closed, unwritten
from holdfast.twin.scenarios.inputs import EXTRA

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A full disk."""
CLOSED_PIPE = 128 + signal.SIGPIPE
"""What a shell reports of a program that a closed pipe ended."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the installed version. Only this option reads the installation's files, so all else starts faster."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            said = version("holdfast-operator")
        except PackageNotFoundError:
            said = "of a checkout that is not installed"
        print(f"holdfast {said}")
        parser.exit()


def build_parser(commands: Iterable[str] = COMMANDS, listed: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the given commands; of `listed` ones it knows only the names and what they are for."""
    parser = _Parser(prog="holdfast", description="Keeps the service-level objectives of LLM services on Kubernetes.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in commands:
        importlib.import_module(f"holdfast.cli.parsers.{command}").add_parser(subparsers)
    for command in listed:
        subparsers.add_parser(command, help=COMMANDS[command])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 the answer is no or the run failed, 2 bad usage or input."""
    open_closed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(given)
        finally:
            # Flush while errors can still be reported: when Python ends, a full disk is a traceback.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads has seen enough
        drop_output()
        return CLOSED_PIPE
    except OSError as problem:
        if problem.errno not in UNWRITABLE:
            raise
        print(f"holdfast {given[0]}: {unwritten(problem)}", file=sys.stderr)
        return 1


def _run(given: Sequence[str]) -> int:
    completing = "_ARGCOMPLETE" in os.environ  # the shell asks for completions
    words = os.environ.get("COMP_LINE", "").split()[1:] if completing else given
    command = next((word for word in words if not word.startswith("-")), "")
    # A known command loads alone: an emulated engine must not pay for the Kubernetes client's imports.
    parser = build_parser((command,)) if command in COMMANDS else build_parser((), listed=COMMANDS)
    if completing:
        importlib.import_module("argcomplete").autocomplete(parser)
    if given[:1] == [command] and command not in COMMANDS:
        said = f"there is no command {command!r}; {did_you_mean(command, COMMANDS)}see holdfast --help"
        parser.exit(2, f"holdfast: {said}\n")
    parsed = parser.parse_args(given)
    if command in SIMULATING and util.find_spec("numba") is None:
        print(f"holdfast {command}: it simulates, and the package numba is missing; {EXTRA}", file=sys.stderr)
        return 2
    return int(_loaded(f"holdfast.cli.{command}").run(parsed))


def _loaded(module: str) -> ModuleType:
    """The module, imported without a search for garbage: nearly all that imports make stays."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
