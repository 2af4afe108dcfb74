"""Where the project's data folder is: HOLDFAST_DATA, else ../shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(*parts: str) -> Path:
    """A path in the data folder; skips the test where there is none, but never in CI where the folder is."""
    root = Path(os.environ.get("HOLDFAST_DATA") or Path(__file__).parents[2] / "shared/data")
    path = root.joinpath(*parts)
    if not path.exists():
        lacking = f"needs {path}: set HOLDFAST_DATA to the data folder"
        if os.environ.get("CI") == "true" and root.exists():
            pytest.fail(lacking)
        pytest.skip(lacking)
    return path
