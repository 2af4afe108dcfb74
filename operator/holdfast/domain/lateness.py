"""How late samples reach the store: samples that are steadily late are read as of a time at which they were there.

A collector that ships in batches, or a store that several writers share, makes every sample late. Asked about the
present, such a store has too few samples to count anything; asked about a minute ago, it has all.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.value import value

LOOKS = 3
"""Samples in a row that must be late: one that is on time says that the store is not late."""

MOST_SECONDS = 240.0
"""Longest lateness: an instant query finds no sample that is older than five minutes."""


@value
class Lateness:
    """How old the newest sample was whenever a newer one was found, newest last; `newest` is when that was taken."""

    newest: float | None = None
    ages: tuple[float, ...] = ()
    seconds: float = 0.0


def watch(memory: Lateness, newest: float | None, now: float, scrape_seconds: float) -> Lateness:
    """Return the lateness after one look at the newest sample in the store; None where it has none.

    Where no newer sample comes, nothing more is known: metrics that end are no late metrics. Less than a scrape
    interval needs no remedy, because counts are taken over three of them.
    """
    if newest is None or memory.newest is None or newest <= memory.newest:
        return memory if newest is None else replace(memory, newest=max(newest, memory.newest or newest))
    ages = (*memory.ages, max(0.0, now - newest))[-LOOKS:]
    least = min(ages) if len(ages) == LOOKS else 0.0
    late = least if scrape_seconds < least <= MOST_SECONDS else 0.0
    return Lateness(newest, ages, late)
