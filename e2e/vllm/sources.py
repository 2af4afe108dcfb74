"""The Python files of a release of vLLM that is not installed: what types are checked against needs no kernels."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from e2e.cluster.cache import cache_folder, exclusive

OTHER_VERSION = "0.33.0"
# The wheel for CUDA: its Python files are those of every platform.
_PLATFORM = "manylinux_2_28_x86_64"


def other_release() -> Path:
    """The package `vllm` of the supported release beside the installed one, which may not be there yet."""
    return cache_folder() / f"vllm-source-{OTHER_VERSION}" / "vllm"


def fetch() -> Path:
    """Fetch it unless it is there: a wheel of 340 MB, of which 60 MB stay. Raises CalledProcessError."""
    wanted = other_release()
    with exclusive("vllm-source"):
        if not wanted.exists():
            print(f"  fetching the source of vLLM {OTHER_VERSION}", flush=True)
            _fetch(wanted.parent)
    return wanted


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-cache-dir", "--only-binary=:all:", f"--platform={_PLATFORM}", f"--dest={scratch}"]
        subprocess.run([*command, f"vllm=={OTHER_VERSION}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(Path(scratch) / "unpacked", names)
        (Path(scratch) / "unpacked").rename(folder)
