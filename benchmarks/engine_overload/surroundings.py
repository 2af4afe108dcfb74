"""What stands above the tables: the command, the machine, and the runs that were thrown away."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.engine_overload.cells import QUEUED_SHARE_OF_TTFT
from benchmarks.engine_overload.journal import Attempt, Journal


def surroundings(journal: Journal, command: Sequence[str], engine: str) -> Iterator[str]:
    """The machine, what was measured, and how to do it again."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"`{' '.join(command)}`"
    yield f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, {engine}"
    runs = journal.attempts
    if runs:
        began = [each.circumstances for each in runs]
        loads = [each.load_average for each in began]
        commits = ", ".join(dict.fromkeys(each.commit for each in began))
        yield (
            f"{len(runs)} runs from {began[0].began} to {began[-1].began}, commit {commits}; load average when a run "
            f"began {median(loads):.1f} (at most {max(loads):.1f})"
        )
        lag = max(each.figures.lag_seconds for each in runs)
        yield f"No request left the client more than {1000 * lag:.0f} ms late"
        yield from _beyond_pace(runs)
        yield _thrown_away(runs)
        yield from (_speeds(journal, cell) for cell in sorted({each.key.cell for each in runs}))
    yield (
        "Seeds: block n has the trace of seed n for every variant and load, the search 1000 and above. `stock "
        f"tuned`: C's limits and --max-num-queued-tokens = {QUEUED_SHARE_OF_TTFT:g} x TTFT x prompt tokens per second "
        "at C. vLLM's own figure divides by a time that contains what was left of the drain: requests that were late "
        "for good when the tail ended were let go."
    )


def _beyond_pace(runs: Sequence[Attempt]) -> Iterator[str]:
    """What the host took beyond the pace, by variant: who needs more of it is at a disadvantage."""
    by_variant: dict[str, list[float]] = {}
    for each in runs:
        if each.figures.beyond_pace_share >= 0.0:
            by_variant.setdefault(each.key.variant, []).append(each.figures.beyond_pace_share)
    if by_variant:
        told = "; ".join(f"{name} {median(found):.1%} (at most {max(found):.1%})" for name, found in by_variant.items())
        yield f"The host took longer than the pace by, median of runs: {told}"


def _thrown_away(runs: Sequence[Attempt]) -> str:
    thrown = [each for each in runs if each.unsteady]
    share = sum(each.seconds for each in thrown) / max(sum(each.seconds for each in runs), 1e-9)
    attempts = Counter(each.key for each in runs)
    steady = {each.key for each in runs if not each.unsteady}
    return (
        f"Thrown away because the machine was unsteady, whatever they gave: {len(thrown)} of {len(runs)} runs, "
        f"{share:.0%} of the time; {len(attempts.keys() - steady)} points were never steady, at most "
        f"{max(attempts.values())} attempts at one"
    )


def _speeds(journal: Journal, cell: int) -> str:
    reference = journal.reference(cell)
    if reference is None:
        return f"Cell {cell}: too few runs for a reference of the machine's speed"
    during = sorted(each.speed.during_ms for each in journal.attempts if each.key.cell == cell and each.speed.parts_ms)
    fastest, slowest = (each / reference.during_ms for each in (during[0], during[-1]))
    return (
        f"Cell {cell}: the probe took {reference.during_ms:.2f} ms in the search (median), {fastest:.2f} to "
        f"{slowest:.2f} of that in all runs"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
