"""The plugin as a pod sees it: a folder for PYTHONPATH with the package and its dist-info beside it."""

from __future__ import annotations

from pathlib import Path

from e2e.vllm.environment import REPOSITORY

PACKAGE = REPOSITORY / "operator" / "holdfast_engine"
VERSION = "0.1.0"


def mount(folder: Path) -> Path:
    """Lay out the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "holdfast_engine").symlink_to(PACKAGE)
    (folder / f"holdfast_engine-{VERSION}.dist-info").symlink_to(PACKAGE / "dist-info")
    return folder
