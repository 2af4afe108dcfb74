from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_engine.objectives.limits import LOOK_SECONDS, LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives

LIMITS = Limits(1, Objectives(1.0, 0.05))


class Mounted:
    """A file as the kubelet mounts it: a link to a link to a folder that is swapped as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        folder.mkdir()
        self.path = folder / "engine-limits"
        self.path.symlink_to(Path("..data") / "engine-limits")

    def write(self, text: str) -> None:
        self._count += 1
        fresh = self._folder / f"..{self._count}"
        fresh.mkdir()
        (fresh / "engine-limits").write_text(text)
        link = self._folder / "..data_tmp"
        link.symlink_to(fresh.name)
        link.rename(self._folder / "..data")


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "pod")


def test_a_file_that_is_not_there_changes_nothing(mounted: Mounted) -> None:
    assert LimitsFiles([mounted.path]).poll(0.0) is None


def test_a_swapped_link_is_noticed(mounted: Mounted) -> None:
    files = LimitsFiles([mounted.path])
    mounted.write(LIMITS.to_json())
    assert files.poll(0.0) == LIMITS
    assert files.poll(1.0) is None
    mounted.write(replace(LIMITS, version=2).to_json())
    assert files.poll(2.0) == replace(LIMITS, version=2)


def test_files_are_looked_at_a_few_times_per_second(mounted: Mounted) -> None:
    files = LimitsFiles([mounted.path])
    assert files.poll(0.0) is None
    mounted.write(LIMITS.to_json())
    assert files.poll(LOOK_SECONDS * 0.9) is None
    assert files.poll(LOOK_SECONDS) == LIMITS


def test_the_highest_version_wins_wherever_it_stands(mounted: Mounted, tmp_path: Path) -> None:
    other = tmp_path / "configmap"
    other.write_text(replace(LIMITS, version=5).to_json())
    mounted.write(replace(LIMITS, version=3).to_json())
    files = LimitsFiles([mounted.path, other])
    assert files.poll(0.0) == replace(LIMITS, version=5)
    mounted.write(replace(LIMITS, version=4).to_json())
    assert files.poll(1.0) is None
    mounted.write(replace(LIMITS, version=6).to_json())
    assert files.poll(2.0) == replace(LIMITS, version=6)


@pytest.mark.parametrize("text", ["", "  \n", "{", "[]", "null", '{"version": 9}', "\x00\xff", "9" * 100_000])
def test_a_bad_file_changes_nothing_and_a_good_one_after_it_counts(mounted: Mounted, text: str) -> None:
    files = LimitsFiles([mounted.path])
    mounted.write(LIMITS.to_json())
    assert files.poll(0.0) == LIMITS
    mounted.write(text)
    assert files.poll(1.0) is None
    assert files.current == LIMITS
    mounted.write(replace(LIMITS, version=2).to_json())
    assert files.poll(2.0) == replace(LIMITS, version=2)


def test_a_file_that_vanishes_or_cannot_be_read_changes_nothing(mounted: Mounted, tmp_path: Path) -> None:
    files = LimitsFiles([mounted.path])
    mounted.write(LIMITS.to_json())
    files.poll(0.0)
    os.unlink(mounted.path)
    assert files.poll(1.0) is None
    mounted.path.mkdir()
    assert files.poll(2.0) is None
    assert files.current == LIMITS
