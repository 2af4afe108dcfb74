"""The file between the API server and the scheduler: whatever lies in it, reports come once and whole or not at all."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_engine.clients.written_file import Report, ReportKind, WrittenReader, WrittenWriter, name_of

NAME = name_of("cmpl-1-0-abcdef12")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "answers.written"


def write(writer: WrittenWriter, *moments: float) -> None:
    for moment in moments:
        writer.write(ReportKind.FIRST, NAME, moment)


def moments(reader: WrittenReader, now: float = 0.0) -> list[float]:
    return [report.at for report in reader.poll(now)]


def test_a_report_is_read_once(path: Path) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    writer.write(ReportKind.STARTED, NAME, 1.5)
    assert reader.poll(0.0) == [Report(ReportKind.STARTED, NAME, 1.5)]
    assert reader.poll(0.0) == []
    write(writer, 2.0, 3.0)
    assert moments(reader) == [2.0, 3.0]


def test_several_readers_read_everything(path: Path) -> None:
    writer, readers = WrittenWriter(path), [WrittenReader(path) for _ in range(2)]
    write(writer, 1.0)
    assert [moments(reader) for reader in readers] == [[1.0], [1.0]]


def test_what_an_earlier_server_left_is_passed_over(path: Path) -> None:
    write(WrittenWriter(path), 1.0, 2.0)
    assert moments(WrittenReader(path)) == []


def test_a_file_that_comes_later_or_is_another_one_is_read_from_its_beginning(path: Path) -> None:
    reader = WrittenReader(path)
    assert (moments(reader, 0.0), reader.is_open) == ([], False)
    first = WrittenWriter(path)
    write(first, 1.0)
    assert (moments(reader, 1.0), reader.is_open) == ([1.0], True)
    write(first, 2.0)
    write(WrittenWriter(path), 3.0)
    assert moments(reader, 2.0) == [2.0, 3.0]
    path.unlink()
    assert (moments(reader, 3.0), reader.is_open) == ([], False)


def test_the_file_is_looked_for_a_few_times_per_second_at_most(path: Path) -> None:
    reader = WrittenReader(path)
    moments(reader, 10.0)
    write(WrittenWriter(path), 1.0)
    assert moments(reader, 10.2) == []
    assert moments(reader, 10.3) == [1.0]


def test_a_clock_that_goes_backwards_delays_reports_of_a_known_file_by_nothing(path: Path) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    moments(reader, 1000.0)
    write(writer, 1.0)
    assert moments(reader, 1.0) == [1.0]


def test_of_reports_that_were_overwritten_the_last_ones_are_read(path: Path) -> None:
    writer, reader = WrittenWriter(path, slots=4), WrittenReader(path)
    write(writer, *map(float, range(10)))
    assert moments(reader) == [6.0, 7.0, 8.0, 9.0]


def test_a_writer_that_ends_says_so_and_its_reports_stay(path: Path) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    write(writer, 1.0)
    writer.close()
    assert (moments(reader), reader.is_open) == ([1.0], False)


def test_a_torn_report_is_left_out_and_the_next_one_is_read(path: Path) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    write(writer, 1.0, 2.0)
    with path.open("r+b") as file:
        file.seek(32 + 16)
        file.write(b"\x07")
    assert moments(reader) == [2.0]


@pytest.mark.parametrize("length", [0, 7, 31, 32, 40, 71, 100])
def test_a_file_that_is_cut_short_breaks_nothing(path: Path, length: int) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    write(writer, 1.0, 2.0)
    os.truncate(path, length)
    assert moments(reader) in ([], [1.0])


def test_numbers_pass_as_they_are(path: Path) -> None:
    writer, reader = WrittenWriter(path), WrittenReader(path)
    write(writer, math.nan, -math.inf, 1e308)
    found = moments(reader)
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, 1e308]


@given(st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=40)), max_size=8), st.binary(max_size=64))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_written_into_the_file_nothing_fails(
    tmp_path: Path, changes: list[tuple[int, bytes]], other: bytes
) -> None:
    path = tmp_path / "answers.written"
    writer, reader = WrittenWriter(path, slots=8), WrittenReader(path)
    for position, content in changes:
        write(writer, 1.0)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(content)
        assert all(each.kind in ReportKind for each in reader.poll(0.0))
    path.write_bytes(other)
    assert reader.poll(1.0) == []


def test_names_have_one_length_whatever_clients_choose() -> None:
    names = {name_of(each) for each in ("", "a", "a" * 100_000, "\ud800", "é")}
    assert {len(name) for name in names} == {16}
    assert len(names) == 5
