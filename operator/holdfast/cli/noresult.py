"""How commands that measure say that there is no result."""

from __future__ import annotations

import argparse
import contextlib

from holdfast.api.benchmark_summary import Failed, Summary
from holdfast.cli.terminal import said
from holdfast.tools.bench.figures import summary


def no_result(command: str, arguments: argparse.Namespace, why: Failed, message: str, code: int = 1) -> int:
    """Say why in one line, and where it is asked for (`--summary`); returns the exit status."""
    said(command, code, message)
    if arguments.summary is not None:
        with contextlib.suppress(OSError):
            summary.write(arguments.summary, Summary.failed(why, message))
    return code
