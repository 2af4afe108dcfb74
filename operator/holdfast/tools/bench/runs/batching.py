"""Static batches, whose requests wait for the longest of them, against continuous batching, with the same lengths.

The engine batches continuously in both. In static batches the client sends the next ones together when all have ended,
as a server without continuous batching does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.results import Spread, without_nan
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import Load, Planned
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.runs import loads

BATCHES = 10
"""By default."""

LENGTH_CV = 0.5
"""Of variable lengths by default: that of lengths spread evenly from 10 to 200 tokens is 0.52."""

HEADS = ("", "req/s", "tokens/s", "E2E p50, ms", "E2E p99, ms", "slot time lost", "a request, ms")


@dataclass(frozen=True, slots=True)
class Cell:
    """One of the four: how requests are sent, and whether their lengths vary around the same mean."""

    static: bool
    variable: bool

    @property
    def name(self) -> str:
        """In words."""
        return f"{'static' if self.static else 'continuous'}, {'variable' if self.variable else 'uniform'} lengths"


CELLS = tuple(Cell(static, variable) for variable in (False, True) for static in (True, False))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a cell gave: rates per second of the run, E2E in seconds.

    `waiting_share` is the share of the slots' time in which a request had ended and its slot stood empty.
    `waiting_seconds` is how long that was for a request, on average: its longer neighbours' time, in static batches.
    """

    cell: Cell
    finished: int
    request_rps: float
    output_tokens_per_second: float
    e2e: Spread
    waiting_share: float
    waiting_seconds: float


def planned(arguments: argparse.Namespace) -> dict[bool, list[Planned]]:
    """The requests by whether lengths vary; uniform ones have the rounded mean of those. BadInput as `lengths_of`."""
    size = arguments.compare_batching
    count = arguments.requests or size * BATCHES
    if not arguments.length_cv and arguments.lengths is None:
        arguments = argparse.Namespace(**{**vars(arguments), "length_cv": LENGTH_CV})
    varied = list(workload.endless(loads.lengths_of(arguments), arguments.seed, count))
    means = (round(float(np.mean([getattr(each, name) for each in varied]))) for name in _LENGTHS)
    alike = Planned(0.0, *means)
    return {False: [alike] * count, True: varied}


def load_of(arguments: argparse.Namespace, cell: Cell, requests: Sequence[Planned]) -> Load:
    """All requests, so many at a time."""
    size = arguments.compare_batching
    return Load(requests, len(requests), size, cell.static, drain_seconds=arguments.drain, seed=arguments.seed)


def measured(cell: Cell, records: Sequence[RequestRecord], size: int) -> Measured:
    """Of all requests, from the first that was sent to the last that ended."""
    ended = [each for each in records if math.isfinite(each.sent_at) and math.isfinite(each.ended_at)]
    finished = [each for each in ended if each.outcome is RequestOutcome.FINISHED]
    span = max((each.ended_at for each in ended), default=0.0) - min((each.sent_at for each in ended), default=0.0)
    waits = [wait for batch in _batches(ended, size if cell.static else 1) for wait in _waits(batch)]
    return Measured(
        cell=cell,
        finished=len(finished),
        request_rps=_share(len(finished), span),
        output_tokens_per_second=_share(sum(each.output_tokens for each in finished), span),
        e2e=Spread.of(np.array([definitions.e2e_seconds(each) for each in finished], np.float64)),
        waiting_share=_share(sum(waits), sum(waits) + sum(each.ended_at - each.sent_at for each in ended)),
        waiting_seconds=_share(sum(waits), len(waits)),
    )


def row(found: Measured) -> tuple[str, ...]:
    """A line under `HEADS`."""
    return (
        found.cell.name,
        f"{found.request_rps:.3g}",
        f"{found.output_tokens_per_second:,.0f}",
        f"{1000 * found.e2e.p50:,.0f}",
        f"{1000 * found.e2e.p99:,.0f}",
        f"{100 * found.waiting_share:.1f} %",
        f"{1000 * found.waiting_seconds:,.0f}",
    )


def told(found: Sequence[Measured]) -> list[str]:
    """What the four say."""
    by_cell = {each.cell: each.request_rps for each in found}
    lines = []
    for variable, name in ((False, "uniform"), (True, "variable")):
        static, continuous = by_cell[Cell(True, variable)], by_cell[Cell(False, variable)]
        if static > 0.0:
            lines.append(f"{name} lengths: continuous batching finishes {continuous / static:.2f} times the requests")
    waiting = next(each for each in found if each.cell == Cell(True, True))
    lines.append(
        f"head-of-line blocking: in static batches {100 * waiting.waiting_share:.0f} % of the slots' time passes after "
        f"a request ended, until its longest neighbour ends ({1000 * waiting.waiting_seconds:,.0f} ms a request)"
    )
    if by_cell[Cell(True, True)] > 0.0:
        factor = by_cell[Cell(True, False)] / by_cell[Cell(True, True)]
        lines.append(f"uniform test data would promise {factor:.2f} times what static batches carry of these lengths")
    return lines


def as_json(found: Sequence[Measured], title: str) -> dict[str, Any]:
    """All figures; null for what is not known."""
    return {"title": title, "cells": [without_nan(asdict(each)) for each in found]}


_LENGTHS = ("prompt_tokens", "output_tokens")


def _batches(records: Sequence[RequestRecord], size: int) -> Iterator[Sequence[RequestRecord]]:
    """Requests that were sent together."""
    by_index = sorted(records, key=lambda record: record.index)
    return (list(batch) for _, batch in groupby(by_index, key=lambda record: record.index // size))


def _waits(batch: Sequence[RequestRecord]) -> list[float]:
    """From the end of each to the end of the last of them."""
    last = max(record.ended_at for record in batch)
    return [last - record.ended_at for record in batch]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else math.nan
