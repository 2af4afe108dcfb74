"""Prometheus' own parser and rule tester, where they are built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.toolset import PROMETHEUS
from e2e.patience import patient


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; skips the test where it is not there."""
    built = PROMETHEUS.program("promtool")
    program = str(built) if built.exists() else shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is neither built nor on PATH: run `make build`")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=patient(120.0), check=False
    )
