"""How commands that measure say that there is no result."""

from __future__ import annotations

import argparse
import contextlib
import sys

from holdfast.api.benchmark_summary import Failed, Summary
from holdfast.cli.terminal import printable
from holdfast.tools.bench import summary


def no_result(command: str, arguments: argparse.Namespace, why: Failed, message: str, code: int = 1) -> int:
    """Say why in one line, and where it is asked for (`--summary`); returns the exit status."""
    print(printable(f"holdfast {command}: {message}"), file=sys.stderr)
    if arguments.summary is not None:
        with contextlib.suppress(OSError):
            summary.write(arguments.summary, Summary.failed(why, message))
    return code
