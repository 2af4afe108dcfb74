"""Text that others wrote, on a terminal; and output that nobody can take."""

from __future__ import annotations

import contextlib
import os
import sys


def printable(line: str) -> str:
    """A line for a terminal: what others wrote must move no cursor, and look like no further line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)


def said(command: str, code: int, sentence: str) -> int:
    """Say why a command ends, in one line on standard error; returns its exit status."""
    print(printable(f"holdfast {command}: {sentence}"), file=sys.stderr)
    return code


def unwritten(problem: OSError) -> str:
    """What could not be written, and why."""
    if problem.filename is None:
        drop_output()
    return f"cannot write {problem.filename or 'the result'}: {problem.strerror}"


def open_closed() -> None:
    """Let words go nowhere whose stream was closed before the start: to Python it is None, and has no methods."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def drop_output() -> None:
    """Python writes what standard output still holds when it ends: it would fail once more, with a traceback."""
    with contextlib.suppress(OSError):  # a test's standard output has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
