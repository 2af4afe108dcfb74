"""The scripts behind the control law run and print what they promise; `--quick` is the same code with fewer draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "docs" / "designs" / "scripts").glob("*.py"))
NOTES = "\n".join(note.read_text() for note in sorted((ROOT / "docs" / "designs").glob("*.md")))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_prints_the_same_figures_each_time(script: Path) -> None:
    first, second = (_printed(script) for _ in range(2))
    assert first == second
    assert len(first.splitlines()) > 1
    assert "nan" not in first


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_design_note_cites_the_script(script: Path) -> None:
    assert f"scripts/{script.name}" in NOTES


def _printed(script: Path) -> str:
    environment = {"PYTHONPATH": str(ROOT / "operator"), "PATH": ""}
    command = [sys.executable, str(script), "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return done.stdout
