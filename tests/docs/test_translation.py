"""docs/howto/translation.md: its commands run in order as they stand there, and choose what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.translation_trace import rows
from e2e.patience import patient
from e2e.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "translation.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS, SHOWN = ([text for language, text in FENCED if language == kind] for kind in ("sh", ""))
CHOSEN = re.compile(r"^ +(\d+) .* chosen", re.MULTILINE)
PREAMBLE = "set -euo pipefail\ntrap 'kill $(jobs -p)' EXIT\n"
PROGRAM = f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n'
NEXT = "=== next block ==="

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each block prints; the port is one that is free, and a client beside other tests may be late."""
    folder = tmp_path_factory.mktemp("translation")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "holdfast").write_text(PROGRAM)
    (folder / "holdfast").chmod(0o755)
    script = PREAMBLE + f'echo "{NEXT}"\n'.join(BLOCKS).replace("8000", str(free_port())).replace("lag 2s", "lag 1h")
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=patient(600.0)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(NEXT)


def test_the_page_has_a_block_for_each_step(told: list[str]) -> None:
    assert len(told) == len(BLOCKS) == len(SHOWN) == 4


def test_some_25_requests_are_under_way_and_the_cache_has_the_size_that_the_page_shows(told: list[str]) -> None:
    (mean,) = re.findall(r"under way +([\d.]+) requests on average over time", told[0])
    assert float(mean) > 15.0, "a busy machine keeps more of them waiting, never fewer"
    assert "53,583 tokens" in told[0]
    assert "53,583 tokens" in SHOWN[0]


def test_uniform_lengths_hide_what_static_batches_lose(told: list[str]) -> None:
    gains = dict(re.findall(r"(\w+) lengths: continuous batching finishes ([\d.]+) times", told[1]))
    assert 1.1 < float(gains["variable"]) > float(gains["uniform"])


@pytest.mark.parametrize("step", [2, 3])
def test_the_ladder_chooses_what_the_page_shows(told: list[str], step: int) -> None:
    assert CHOSEN.findall(told[step]) == CHOSEN.findall(SHOWN[step]) == [("32", "16")[step - 2]]


def test_the_trace_is_what_its_command_writes() -> None:
    assert (ROOT / "examples" / "traces" / "translation.csv").read_text().splitlines() == list(rows())
