"""The project's own wheel and source distribution, built from a clean copy so that equal sources give equal bytes."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.cache import cache_folder, completed, digest_of, exclusive
from release.wheels import REPOSITORY, WheelError, pinned_versions

# The earliest time that a zip file can hold.
EPOCH_SECONDS = 315532800
_FILES = ("pyproject.toml", "README.md", "LICENSE")
_PACKAGES = ("holdfast", "holdfast_engine")
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def sources() -> list[Path]:
    """Every file that the wheel is made from."""
    files = [path for package in _PACKAGES for path in (REPOSITORY / "operator" / package).rglob("*")]
    code = sorted(path for path in files if path.is_file() and "__pycache__" not in path.parts)
    return [*(REPOSITORY / name for name in _FILES), *code]


def project_version() -> str:
    """The version in pyproject.toml."""
    return _version_line(REPOSITORY / "pyproject.toml").group(1)


def _version_line(file: Path) -> re.Match[str]:
    found = re.search(r'^version = "(.+)"$', file.read_text(), re.MULTILINE)
    if found is None:
        raise WheelError(f"{file} has no version")
    return found


def source_digest() -> str:
    """Changes with any file of the project's own packages."""
    files = sources()
    names = (str(path.relative_to(REPOSITORY)) for path in files)
    return digest_of(files, *names, pinned_versions()["setuptools"])


def build_wheel(target: Path, version: str) -> Path:
    """Write the wheel into a folder."""
    with _clean_copy(version) as copy:
        return _build(copy, "build_wheel", target)


def build_source(target: Path, version: str) -> Path:
    """Write the source distribution into a folder."""
    with _clean_copy(version) as copy:
        built = _build(copy, "build_sdist", target)
    _without_times(built)
    return built


@contextmanager
def _clean_copy(version: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        for file in sources():
            copy = Path(scratch) / file.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o644)
        project = Path(scratch) / "pyproject.toml"
        text, line = project.read_text(), _version_line(project)
        project.write_text(text.replace(line.group(), f'version = "{version}"', 1))
        yield Path(scratch)


def _build(copy: Path, step: str, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    fixed = {"PYTHONPATH": str(_setuptools()), "SOURCE_DATE_EPOCH": str(EPOCH_SECONDS), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _BUILD, step, str(target.resolve())]
    done = subprocess.run(command, cwd=copy, env={**os.environ, **fixed}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WheelError(f"setuptools could not build the project:\n{(done.stdout + done.stderr)[-2000:]}")
    return target / done.stdout.splitlines()[-1]


def _setuptools() -> Path:
    """The pinned setuptools, in the cache: the one that Python brings along may be too old for pyproject.toml."""
    version = pinned_versions()["setuptools"]
    target = cache_folder() / f"setuptools-{version}"
    with exclusive("setuptools"):
        if not target.exists():
            _install(f"setuptools=={version}", target)
    return target


def _install(requirement: str, target: Path) -> None:
    with completed(target) as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise WheelError(f"pip could not install {requirement}:\n{done.stderr[-2000:]}")


def _without_times(archive: Path) -> None:
    """Write a .tar.gz again: sorted, owned by root, without times."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            header = tarfile.TarInfo(member.name)
            header.size, header.type, header.mode, header.mtime = member.size, member.type, member.mode, EPOCH_SECONDS
            new.addfile(header, old.extractfile(member) if member.isfile() else None)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
