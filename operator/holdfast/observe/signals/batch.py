"""Rows about batch requests -> their counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from holdfast.domain.batch import BatchCounts
from holdfast.domain.signals import BatchClassTraffic, BatchTraffic
from holdfast.observe.series.queries import BATCH_ENDED, BATCH_UNFINISHED
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.counts import Counts

_SUMS = ("done", "prompt_tokens", "output_tokens", "started_prompt_tokens", "cached_prompt_tokens")
"""Terms of the plugin's sums over batch requests, in the order of BatchTraffic."""


def name_of(sample: Sample) -> str:
    """Return the name under which a number of batch requests is counted."""
    if name := sample.label("class"):
        return f"{sample.label('metric')} {name}"
    return f"batch {sample.label('state') or sample.label('term')}"


def batch_traffic(cells: Iterable[Counts]) -> BatchTraffic:
    """Return the batch requests on all accelerators; a class is missing where no engine tells of it."""
    found = [(values.counts, values.mean_copies()) for values in cells]

    def count(name: str) -> float:
        return max(0.0, sum(counts.get(name, 0.0) / copies for counts, copies in found))

    rows = {name for counts, _ in found for name in counts if name.startswith(f"{BATCH_UNFINISHED} ")}
    names = sorted(row.removeprefix(f"{BATCH_UNFINISHED} ") for row in rows)
    return BatchTraffic(
        tuple(
            BatchClassTraffic(name, count(f"{BATCH_UNFINISHED} {name}"), count(f"{BATCH_ENDED} {name}"))
            for name in names
        ),
        *map(count, map("batch {}".format, _SUMS)),
    )


def counts_of(values: Counts, copies: float) -> BatchCounts:
    """Return the counts of engines that were scraped `copies` times on average."""
    names = (each.name for each in fields(BatchCounts))
    return BatchCounts(**{name: max(0.0, values.get(f"batch {name}")) / copies for name in names})
