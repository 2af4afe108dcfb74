"""What is read once is left alone by the collector, and still let go of when nobody needs it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from holdfast.runtime import memory


class Thing:
    """Something that can be watched."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it was before."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_when_settled_is_no_longer_looked_at_and_still_freed() -> None:
    memory.frugal_allocation()
    thing = Thing()
    memory.settle()
    assert gc.get_freeze_count() > 0
    seen = weakref.ref(thing)
    del thing
    assert seen() is None


def test_from_the_start_on_the_collector_does_not_come_for_what_a_tick_reads_and_lets_go_of() -> None:
    visits: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        visits.append(phase)

    memory.frugal_allocation()
    gc.collect()
    gc.callbacks.append(note)
    rows: list[object] = [([], []) for _ in range(10_000)]
    del rows
    gc.callbacks.remove(note)
    assert visits == []
