"""Debian's interpreter: unpacked for the image, and run from there to compile and to choose wheels.

What the image's Python has compiled is the same whatever Python and distribution the build runs on.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster.cache import cache_folder, completed, digest_of
from release.debian import Deb, fetch, unpack

PYTHON = "python3.11"
PACKAGES_FOLDER = f"usr/local/lib/{PYTHON}/dist-packages"
_LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# A process each: how much is compiled beside each other must not depend on the machine, for it shows in the bytes.
_COMPILERS = 4


def own_architecture() -> str:
    """Debian's name of this machine's architecture."""
    return _MACHINES.get(platform.machine(), platform.machine())


def unpacked(debs: Sequence[Deb]) -> Path:
    """The folder in the cache that holds these .debs, unpacked."""
    recipe = [Path(__file__), Path(__file__).with_name("debian.py")]
    target = cache_folder() / "debian" / digest_of(recipe, *(deb.sha256 for deb in debs))
    if not target.exists():
        with ThreadPoolExecutor(8) as pool:
            files = list(pool.map(fetch, debs))
        with completed(target) as folder:
            folder.mkdir()
            for file in files:
                unpack(file, folder)
    return target


class Interpreter:
    """The Python of these .debs, run without being installed; `inputs` changes with what it compiles to."""

    def __init__(self, debs: Sequence[Deb], architecture: str) -> None:
        root = unpacked(debs)
        self.inputs = [deb.sha256 for deb in debs if "python" in deb.package]
        folders = [root / part / _TRIPLETS[architecture] for part in ("lib", "usr/lib")]
        self._command = [
            str(folders[0] / _LOADERS[architecture]),
            "--library-path",
            ":".join(map(str, folders)),
            str(root / "usr/bin" / PYTHON),
            "-BPS",
        ]
        self._environment = {**os.environ, "PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0"}

    def run(self, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments and modules of `path`."""
        environment = {**self._environment, "PYTHONPATH": path}
        return subprocess.run(
            [*self._command, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    def compile(self, root: Path) -> None:
        """Compile every module below `root`, which is an image's root, to equal bytes from equal sources.

        The compiled files stay valid whatever the time stamps in the image are. What cannot be compiled, such as
        templates that libraries ship, is left out.
        """
        folders = sorted({file.parent for file in root.rglob("*.py")})
        groups = [group for index in range(_COMPILERS) if (group := folders[index::_COMPILERS])]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda group: self._compile(root, group), groups))

    def _compile(self, root: Path, folders: Iterable[Path]) -> None:
        options = ["-qq", "-l", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
        self.run("-m", "compileall", *options, *map(str, folders))
