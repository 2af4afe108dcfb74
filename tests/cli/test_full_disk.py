"""A result that cannot be written is told in one line; one that nobody reads on is not told at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.twin.twin_builders import scenario_file, small_scenario

FULL = Path("/dev/full")
MANIFEST = str(Path(__file__).parents[2] / "examples" / "chat.yaml")
PLAN = ("plan", "-f", MANIFEST, "--rate", "2", "--prompt-tokens", "500", "--output-tokens", "50")
SIMULATE = ("simulate", "SCENARIO", "--seeds", "1")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full: run it on Linux")


def _told(words: tuple[str, ...], folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, for Python writes what is left when it ends."""
    scenario = str(scenario_file(folder, small_scenario()))
    command = [sys.executable, "-m", "holdfast.cli.main", *(scenario if word == "SCENARIO" else word for word in words)]
    with out.open("w") as taken:
        return subprocess.run(command, stdout=taken, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("crd",),
        pytest.param((*PLAN, "--json"), marks=pytest.mark.slow),
        pytest.param(PLAN, marks=pytest.mark.slow),
        pytest.param(SIMULATE, marks=pytest.mark.slow),
        pytest.param((*SIMULATE, "--json", "-"), marks=pytest.mark.slow),
    ],
)
def test_standard_output_that_is_full_is_told_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = _told(words, tmp_path, FULL)
    assert done.returncode == 1
    assert done.stderr == f"holdfast {words[0]}: cannot write the result: No space left on device\n"


@pytest.mark.slow
def test_a_file_on_a_full_disk_is_told_by_its_name_after_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table.txt"
    done = _told((*SIMULATE, "--json", str(FULL)), tmp_path, table)
    assert done.returncode == 1
    assert done.stderr == f"holdfast simulate: cannot write {FULL}: No space left on device\n"
    assert "holdfast-slow" in table.read_text()


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("catalog",), ("crd",)])
def test_a_closed_pipe_ends_a_command_quietly(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody_reads:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, stdout=nobody_reads, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""
    # argparse itself drops what it cannot write of a help.
    assert done.returncode in ({0, 128 + signal.SIGPIPE} if words[0].startswith("-") else {128 + signal.SIGPIPE})
