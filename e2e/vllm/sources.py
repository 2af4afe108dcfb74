"""What only vLLM's wheels for CUDA hold: the Rust front end, and the Python files of a release that is not installed.

Types are checked against those files; neither needs a GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.cache import cache_folder, exclusive
from e2e.vllm.environment import VERSION

OTHER_VERSION = "0.33.0"
_PLATFORM = "manylinux_2_28_x86_64"


def other_release() -> Path:
    """The package `vllm` of the supported release beside the installed one, which may not be there yet."""
    return cache_folder() / f"vllm-source-{OTHER_VERSION}" / "vllm"


def rust_front_end() -> Path:
    """The program of the installed release, which the wheel for CPUs lacks; it may not be there yet."""
    return cache_folder() / f"vllm-rs-{VERSION}" / "vllm" / "vllm-rs"


def fetch() -> None:
    """Fetch both unless they are there: wheels of 340 MB, of which 60 MB each stay. Raises CalledProcessError."""
    with exclusive("vllm-source"):
        if not other_release().exists():
            print(f"  fetching the source of vLLM {OTHER_VERSION}", flush=True)
            _fetch(OTHER_VERSION, other_release().parent, lambda name: name.endswith(".py"))
        if not rust_front_end().exists():
            print(f"  fetching the Rust front end of vLLM {VERSION}", flush=True)
            _fetch(VERSION, rust_front_end().parents[1], lambda name: name == "vllm/vllm-rs")
            rust_front_end().chmod(0o755)


def _fetch(version: str, folder: Path, is_kept: Callable[[str], bool]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-cache-dir", "--only-binary=:all:", f"--platform={_PLATFORM}", f"--dest={scratch}"]
        subprocess.run([*command, f"vllm=={version}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/") and is_kept(name)]
            archive.extractall(Path(scratch) / "unpacked", names)
        (Path(scratch) / "unpacked").rename(folder)
