from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from holdfast_engine.stats.statsfile import _SEQUENCE, _SEQUENCE_AT, StatsWriter, read_stats


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = StatsWriter(tmp_path / "deep" / "engine-0.stats", 3)
    assert read_stats(tmp_path / "deep" / "engine-0.stats", 3) == [0.0, 0.0, 0.0]
    writer.write([1.5, -2.0, math.inf])
    assert read_stats(tmp_path / "deep" / "engine-0.stats", 3) == [1.5, -2.0, math.inf]
    writer.close()


def test_nothing_is_read_where_there_is_no_record_of_this_size(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    assert read_stats(path, 3) is None
    path.write_bytes(b"short")
    assert read_stats(path, 3) is None
    path.write_bytes(b"x" * (24 + 2 * 8 * 3))
    assert read_stats(path, 3) is None
    StatsWriter(path, 4)
    assert read_stats(path, 3) is None


def test_a_record_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 numbers for a file of 3"):
        StatsWriter(tmp_path / "stats", 3).write([1.0, 2.0])


def test_a_new_writer_starts_anew(tmp_path: Path) -> None:
    StatsWriter(tmp_path / "stats", 1).write([7.0])
    StatsWriter(tmp_path / "stats", 1)
    assert read_stats(tmp_path / "stats", 1) == [0.0]


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_writer_that_was_held_up_in_the_middle_leaves_the_record_before_it(tmp_path: Path, records: int) -> None:
    path = tmp_path / "stats"
    writer = StatsWriter(path, 4)
    for number in range(records):
        writer.write([float(number)] * 4)
    writer._map = HeldUp(writer._map)
    with pytest.raises(InterruptedError):
        writer.write([7.0] * 4)
    assert read_stats(path, 4) == [float(records - 1)] * 4


class HeldUp:
    """A map that takes half of what is written to it."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __setitem__(self, place: slice, record: bytes) -> None:
        self._whole[place.start : place.start + len(record) // 2] = record[: len(record) // 2]
        raise InterruptedError


def write_for_ever(path: Path, started: Event, stop: Event) -> None:
    writer, number = StatsWriter(path, 64), 0.0
    started.set()
    while not stop.is_set():
        number += 1.0
        writer.write([number] * 64)


@pytest.fixture
def written_for_ever(tmp_path: Path) -> Iterator[Path]:
    """A file of 64 numbers to which another process writes."""
    path, context = tmp_path / "stats", multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    process = context.Process(target=write_for_ever, args=(path, started, stop))
    process.start()
    try:
        assert started.wait(60)
        yield path
    finally:
        stop.set()
        process.join(10)


@pytest.mark.slow
def test_another_process_never_sees_half_a_record(written_for_ever: Path) -> None:
    seen: set[float] = set()
    while len(seen) < 300:
        found = read_stats(written_for_ever, 64)
        if found is not None:
            assert len(set(found)) == 1
            seen.add(found[0])


@pytest.mark.slow
def test_another_process_never_sees_the_number_of_a_record_go_back(written_for_ever: Path) -> None:
    numbers = [0]
    with written_for_ever.open("rb", buffering=0) as file:
        while numbers[-1] < 100_000:
            numbers += _SEQUENCE.unpack(os.pread(file.fileno(), _SEQUENCE.size, _SEQUENCE_AT))
    assert numbers == sorted(numbers)
