"""Ratios of decode times, whatever single rounds say."""

from __future__ import annotations

import argparse
import math

import pytest

from benchmarks.empty_slots import limits, told


def test_ratios_are_those_of_the_same_round_and_of_the_least_of_all() -> None:
    lines = told([{16: 0.010, 64: 0.011}, {16: 0.020, 64: 0.020}, {16: 0.040, 64: 0.010}])
    assert lines[1].split() == ["16", "10.00", "1.000", "1.000", "(1.000", "to", "1.000)"]
    assert lines[2].split() == ["64", "10.00", "1.000", "1.000", "(0.250", "to", "1.100)"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_round_that_some_engine_did_not_finish_does_not_count(seconds: float) -> None:
    assert told([{16: 0.01, 64: 0.01}, {16: 0.001, 64: seconds}])[1].split()[1] == "10.00"
    (line,) = told([{16: 0.01, 64: seconds}])
    assert line.startswith("no round was finished by all engines: read their logs")


@pytest.mark.parametrize("text", ["", "16", "16,16", "0,16", "-1,16", "16,2000", "a,b", "16,64.5"])
def test_limits_that_give_no_ratio_are_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give two or more numbers from 1 to 1024, such as 16,64,256"):
        limits(text)


def test_limits_are_ascending_and_each_once() -> None:
    assert limits("256,16,64,16") == (16, 64, 256)
