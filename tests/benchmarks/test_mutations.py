"""Mutations that are drawn change one thing each, and are tried by the tests that are nearest to the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.mutations import ROOT, mutations, rooms, verdict

CODE = '''"""A text with 7."""

def larger(one: float, other: float = 2.0) -> float:
    # Grüße
    if one > other:
        return one
    return f"{one:.3f}" and other
'''


def test_each_mutation_changes_one_thing_and_is_python(tmp_path: Path) -> None:
    file = tmp_path / "larger.py"
    file.write_text(CODE)
    assert [(each.line, each.before, each.after) for each in mutations(file)] == [
        (3, "2.0", "4.0"),
        (5, "one > other", "(not (one > other))"),
        (5, "one > other", "(one <= other)"),
        (6, "return one", "return None"),
        (7, 'return f"{one:.3f}" and other', "return None"),
    ]
    for each in mutations(file):
        ast.parse(each.source())
        assert each.source() != file.read_bytes()


def test_the_tests_that_import_a_module_come_first_and_then_those_of_its_folder() -> None:
    names = [file.name for file in rooms(ROOT / "operator/holdfast/policy/estimate/forecast.py")]
    assert names[0] == "test_forecast.py"
    assert names.index("test_growth.py") < names.index("test_scenarios.py")
    assert rooms(ROOT / "operator/holdfast_engine/law/steplaw.py")[0].name == "test_engine_steplaw.py"


@pytest.mark.slow
def test_a_mutation_is_what_the_tests_import(tmp_path: Path) -> None:
    half, whole = (tmp_path / f"test_{name}.py" for name in ("half", "whole"))
    half.write_text("from holdfast.policy.settings import PolicySettings\n\ndef test_nothing(): PolicySettings()\n")
    whole.write_text(f"{half.read_text()}def test_it(): assert PolicySettings().drain_seconds == 30.0\n")
    source = ROOT / "operator/holdfast/policy/settings.py"
    drained = next(each for each in mutations(source) if each.before == "30.0")
    assert [verdict(drained, [tests], 120) for tests in (half, whole)] == ["survived", "killed"]
