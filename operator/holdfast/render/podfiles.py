"""The files that every engine pod mounts, read from this package once, when the operator is wired."""

from __future__ import annotations

from importlib import resources

_FILES = ("launcher.py", "prestop.py", "holdfast_middleware.py")


def load_pod_files() -> dict[str, str]:
    """The text of each file by name, for RenderSettings; the renderer itself reads nothing."""
    folder = resources.files("holdfast.render") / "pod"
    return {name: (folder / name).read_text(encoding="utf-8") for name in _FILES}
