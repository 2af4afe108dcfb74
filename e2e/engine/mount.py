"""The plugin as a pod sees it: a folder for PYTHONPATH with the package and its dist-info beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.vllm.environment import REPOSITORY

PACKAGE = REPOSITORY / "operator" / "holdfast_engine"
VERSION = "0.1.0"


def mount(folder: Path) -> Path:
    """Lay out the folder."""
    shutil.copytree(PACKAGE, folder / "holdfast_engine", ignore=shutil.ignore_patterns("__pycache__", "dist-info"))
    shutil.copytree(PACKAGE / "dist-info", folder / f"holdfast_engine-{VERSION}.dist-info")
    return folder
