"""What commands show while they do something of unknown length."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A moving bar and the seconds that have passed, on a terminal only, and gone afterwards."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def simulating() -> Iterator[Callable[[str, float], None]]:
    """A bar of the share of a simulation that is done, under the name of what is simulated."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=1.0)
        yield lambda name, share: progress.update(task, description=name, completed=share)
