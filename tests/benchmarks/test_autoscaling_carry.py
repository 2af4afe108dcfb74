"""Runs of older code count as runs of the code of now where such runs come out the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.autoscaling.carry import carry, draw, equal
from benchmarks.autoscaling.cases import CASES
from benchmarks.autoscaling.journal import Journal, Key, Row, code_digest

ROW = Row(0.99, 2.0, 1.0, 1.0, 1.0, 0.1, 2, 0.5, "hpa")


def key(case: str, policy: str, *, code: str = "older", knob: float | None = None, seed: int = 1) -> Key:
    return Key(case, CASES[case].digest(), policy, knob, seed, code)


def test_one_run_of_each_policy_in_each_scenario_is_drawn_the_shortest_first() -> None:
    rows = [(key("step", "hpa", knob=float(knob)), replace(ROW, wall_seconds=knob)) for knob in range(2, 9)]
    rows += [(key("step", "static:3"), replace(ROW, wall_seconds=1.0))]
    rows += [(key("smooth", "static:5"), replace(ROW, wall_seconds=30.0))]
    drawn = [key for key, _ in draw(rows, most_seconds=60.0)]
    assert [(each.case, each.policy) for each in drawn] == [
        ("step", "static:3"),
        ("step", "hpa"),
        ("smooth", "static:5"),
    ]
    assert [each.policy for each, _ in draw(rows, most_seconds=20.0)] == ["static:3", "hpa"]


def test_runs_of_the_code_of_now_and_of_other_scenarios_are_not_drawn() -> None:
    rows = [
        (key("step", "hpa", code=code_digest("hpa")), ROW),
        (replace(key("step", "hpa"), case_digest="other"), ROW),
        (replace(key("step", "hpa"), case="gone"), ROW),
    ]
    assert draw(rows, most_seconds=60.0) == []


def test_a_run_is_the_same_whatever_time_it_took() -> None:
    drawn = [(key("step", "hpa"), ROW), (key("smooth", "hpa"), ROW), (key("step", "static:3"), ROW)]

    def play(keys: Sequence[Key]) -> list[Row]:
        assert [key for key, _ in drawn] == keys
        return [replace(ROW, wall_seconds=9.0), replace(ROW, gpu_hours=2.0 + 1e-15), replace(ROW, attainment=0.9)]

    assert equal(drawn, play) == {("hpa", "older"): (1, 2), ("static", "older"): (0, 1)}


def test_only_runs_of_what_is_kept_are_carried_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for each in (
        key("step", "static:3"),
        key("step", "static:5"),
        key("step", "hpa"),
        key("step", "hpa", code="oldest"),
    ):
        journal.add(each, ROW)
    (path,) = tmp_path.iterdir()
    assert carry(path, {("static", "older"), ("hpa", "oldest")}) == 3
    assert [(found.policy, found.code) for found, _ in Journal(tmp_path).rows()] == [
        ("static:3", code_digest("static:3")),
        ("static:5", code_digest("static:5")),
        ("hpa", "older"),
        ("hpa", code_digest("hpa")),
    ]
    assert carry(path, set()) == 0
