"""What is printed of runs behind a router: medians, and the range of the share that was found."""

from __future__ import annotations

from benchmarks.router_sessions import Outcome, told


def test_a_policy_is_told_by_the_medians_of_its_runs_and_the_range_of_its_hits() -> None:
    runs = [Outcome(0.8, 0.05, 0.2, 1.0), Outcome(0.6, 0.10, 0.9, 1.1), Outcome(0.7, 0.07, 0.3, 1.5)]
    _, line = told({"consistent_hash": runs})
    assert line.split() == ["consistent_hash", "70.0%", "(60.0%", "to", "80.0%)", "70.0", "300.0", "1.10"]
