"""The libraries of the image: wheels for Debian's Python, of the versions that constraints.txt pins."""

from __future__ import annotations

import re
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata, util
from pathlib import Path

from e2e.cluster.cache import cache_folder, completed, digest_of
from release.interpreter import Interpreter

REPOSITORY = Path(__file__).resolve().parents[1]
CONSTRAINTS = REPOSITORY / "constraints.txt"
# bookworm has glibc 2.36; pip takes each tag by itself.
_GLIBC_MINORS = range(5, 37)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_UNUSED_PARTS = {"tests"}
_ALONE = ("vllm-router",)
"""Fetched without what they require: that serves parts that are not used (vllm-router's second router, in Python)."""


class WheelError(Exception):
    """The libraries could not be fetched, or one of them is not pinned; the message says what to do."""


def requirements() -> list[str]:
    """What the image installs: the project's requirements and those of its extra tune."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["tune"]]


def pinned_versions() -> dict[str, str]:
    """Normalized name to version of constraints.txt."""
    lines = re.findall(r"^([^#=\s]+)==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    return {normalized(name): version for name, version in lines}


def normalized(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def libraries(architecture: str, interpreter: Interpreter) -> list[Path]:
    """The wheels of all libraries, sorted by name, in the cache."""
    digest = digest_of([CONSTRAINTS, Path(__file__)], architecture, *requirements(), *_ALONE)
    target = cache_folder() / "wheels" / digest
    if not target.exists():
        with completed(target) as folder:
            _download(architecture, interpreter, folder, *requirements())
            _download(architecture, interpreter, folder, "--no-deps", *_ALONE)
            _check_pins(list(folder.glob("*.whl")))
    return sorted(target.glob("*.whl"))


def _download(architecture: str, interpreter: Interpreter, target: Path, *wheels: str) -> None:
    print(f"  fetching the libraries' wheels for {architecture}", flush=True)
    machine = _MACHINES[architecture]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    tags += [f"manylinux{name}_{machine}" for name in ("1", "2010", "2014")]
    command = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp"]
    command += [f"--platform={tag}" for tag in tags]
    done = interpreter.run(*command, f"--constraint={CONSTRAINTS}", f"--dest={target}", *wheels, path=_pip())
    if done.returncode != 0:
        raise WheelError(f"pip could not download the wheels for {architecture}:\n{done.stderr.strip()[-2000:]}")


def _pip() -> str:
    found = util.find_spec("pip")
    if found is None or found.origin is None:
        raise WheelError("this Python has no pip: use the one of `make install`")
    return str(Path(found.origin).parents[1])


def _check_pins(wheels: list[Path]) -> None:
    pins = pinned_versions()
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        if pins.get(normalized(name)) != version:
            raise WheelError(f"{name} {version} is not pinned: add {name}=={version} to constraints.txt")


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel's modules and metadata into a folder of packages, without its tests and programs."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            target = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name)
            parts = Path(target).parts
            if target.endswith("/") or _UNUSED_PARTS.intersection(parts[:-1]) or parts[0].endswith(".data"):
                continue
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def about(wheel: Path) -> metadata.PackageMetadata:
    """The metadata of a wheel: name, version, licence."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return Parser().parsestr(archive.read(name).decode())  # type: ignore[return-value]
