"""Loads a pod-side file as a module; in pods they stand alone, outside any package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

POD = Path(__file__).parents[2] / "operator/holdfast/render/pod"
sys.path.append(str(POD))  # last, as the launcher does: one of them imports another


def load(name: str) -> Any:
    """The module of `pod/<name>.py`."""
    spec = importlib.util.spec_from_file_location(name, POD / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
