"""The comparison in minutes, for every change of the code: on a virtual clock, so its figures are always the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.autoscaling.__main__ import main
from benchmarks.autoscaling.cases import SUBSET
from tests.shared_data import shared_data

HELD = (
    "smooth: attains the objective",
    "smooth, objective 95 %: attains the objective",
    "smooth: GPU-hours over the oracle's",
    "step: no peer attains more for as little",
    "step: goodput while capacity is short",
)
"""Bars that were met when this was written; the others are printed as they are."""

PEERS = ("keda-queue",)
"""The dearest to beat; every peer takes ten seconds more."""


def test_bars_that_were_met_still_are_and_nothing_is_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(shared_data("azure2023").parent), "--results", str(tmp_path), "--subset"]
    words += [word for peer in PEERS for word in ("--peer", peer)]
    main(words)
    first = capsys.readouterr()
    bars = dict(re.findall(r"^\| (.+?) \| .+ \| (met|MISSED) \|$", first.out, re.MULTILINE))
    assert "| holdfast |" in first.out
    assert "| holdfast-slow |" in first.out
    assert {bar: bars.get(bar) for bar in HELD} == dict.fromkeys(HELD, "met"), first.out
    for scenario in SUBSET:
        assert f"**{scenario}**, target" in first.out
    assert "GPU-hours at equal attainment" in first.out

    main(words)
    again = capsys.readouterr()
    assert again.out == first.out
    assert again.err == ""
