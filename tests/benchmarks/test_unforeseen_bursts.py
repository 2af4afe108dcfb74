"""What unforeseen bursts cost at least: what that is made of, and days on which it is known by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drawn_days import Burst, DrawnDay
from benchmarks.unforeseen_bursts import bound, main

ROOT = Path(__file__).resolve().parents[2]

CALM = DrawnDay("conversations", 4.0, 1.0, 0.0, 1.0, (), None, None, 240.0)


def with_bursts(*bursts: Burst, cold_start_seconds: float = 240.0) -> DrawnDay:
    """A level day with these bursts."""
    return replace(CALM, bursts=bursts, cold_start_seconds=cold_start_seconds)


def test_a_day_without_bursts_costs_what_the_oracle_pays() -> None:
    assert (bound(CALM).late, bound(CALM).headroom, bound(CALM).of_oracle) == (0.0, 1.0, pytest.approx(1.0))


def test_what_a_burst_brings_within_one_cold_start_is_late_and_no_more() -> None:
    day = with_bursts(Burst(10.0, 20.0, 3.0))
    arrivals = 86_400.0 + 2.0 * 1200.0
    assert bound(day).late == pytest.approx(2.0 * 240.0 / arrivals, rel=0.01)
    short = with_bursts(Burst(10.0, 2.0, 3.0))
    assert bound(short).late == pytest.approx(2.0 * 120.0 / (86_400.0 + 240.0), rel=0.02)
    assert bound(replace(day, cold_start_seconds=0.0)).late == pytest.approx(0.0, abs=1e-4)


def test_headroom_is_the_least_that_keeps_the_objective() -> None:
    day = with_bursts(*(Burst(hour, 20.0, 3.0) for hour in (2.0, 6.0, 10.0, 14.0, 18.0)))
    arrivals = 86_400.0 + 5.0 * 2.0 * 1200.0
    needed = 3.0 - 0.01 * arrivals / (5.0 * 240.0)
    found = bound(day)
    assert found.headroom == pytest.approx(needed, abs=0.02)
    assert found.of_oracle == pytest.approx(needed, rel=0.12)
    assert bound(day, 0.9).headroom == 1.0
    assert bound(day, 0.9999).headroom == pytest.approx(3.0, abs=0.1)


def test_the_command_prints_each_day_and_refuses_a_share_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--seed", "8"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 + 2
    with pytest.raises(SystemExit):
        main(["--objective", "99"])
    assert "--objective 99: give a share between 0 and 1" in capsys.readouterr().err


def test_the_docs_hold_the_table_of_the_ten_days(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = (ROOT / "docs" / "benchmarks" / "days.md").read_text()
    for line in capsys.readouterr().out.splitlines():
        assert line in told
