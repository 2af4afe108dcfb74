"""The project's image in three layers: Debian's Python, the libraries, the project.

Equal inputs give an equal digest.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.cache import cache_folder, digest_of
from release import own, wheels
from release.debian import Deb
from release.interpreter import PACKAGES_FOLDER, PYTHON, Interpreter, own_architecture, unpacked
from release.oci import Entry, Image, Layer, build_image, read_layer, tree, write_layer
from release.pins import pinned

USER = 65532
ENTRYPOINT = ("/usr/local/bin/holdfast",)
_DESCRIPTION = "The operator, the emulated engine and the command line"
_PROGRAMS = ("sh", "sleep", "cat", "env", "ls", "id", "tail", "kill", "rm", "mkdir")
_RECIPE = [Path(__file__).with_name(f"{name}.py") for name in ("debian", "image", "interpreter", "oci", "wheels")]
_COMMAND = f"""\
#!/usr/bin/{PYTHON}
import sys

from holdfast.cli.main import main

sys.exit(main())
"""


def image_environment() -> dict[str, str]:
    """Environment of containers made from these layers."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        "PYTHONUNBUFFERED": "1",
        # The layers carry compiled files, and the root file system is read-only anyway.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Builder:
    """Builds the image of one architecture; layers are kept in the cache, named by what they were made from."""

    def __init__(self, architecture: str, folder: Path, debs: Sequence[Deb] | None = None) -> None:
        self.architecture = architecture
        self._folder = folder
        self._debs = pinned(architecture) if debs is None else debs

    def image(self, version: str) -> Image:
        """The image of the project as it lies in the checkout."""
        layers = [*self.base_layers(), self._own_layer(version)]
        labels = {"org.opencontainers.image.title": "holdfast", "org.opencontainers.image.description": _DESCRIPTION}
        labels |= {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"}
        return build_image(
            self.architecture, layers, ENTRYPOINT, user=f"{USER}:{USER}", environment=image_environment(), labels=labels
        )

    def base_layers(self) -> list[Layer]:
        """Python and the libraries: what changes with versions only."""
        return [self._debian_layer(), self._libraries_layer()]

    def libraries(self) -> list[Path]:
        """The wheels of the libraries."""
        return wheels.libraries(self.architecture, self._compiler())

    def _debian_layer(self) -> Layer:
        def fill(root: Path) -> list[Entry]:
            shutil.copytree(unpacked(self._debs), root, symlinks=True, dirs_exist_ok=True)
            return _system_entries(root)

        return self._layer("debian", [deb.sha256 for deb in self._debs], fill)

    def _libraries_layer(self) -> Layer:
        found = self.libraries()

        def fill(root: Path) -> list[Entry]:
            for wheel in found:
                wheels.unpack(wheel, root / PACKAGES_FOLDER)
            return []

        return self._layer("libraries", [wheel.name for wheel in found], fill)

    def _own_layer(self, version: str) -> Layer:
        def fill(root: Path) -> list[Entry]:
            with tempfile.TemporaryDirectory() as scratch:
                wheels.unpack(own.build_wheel(Path(scratch), version), root / PACKAGES_FOLDER)
            return [Entry(f"usr/local/bin/{name}", text=_COMMAND) for name in ("holdfast", "kubectl-holdfast")]

        return self._layer("own", [own.source_digest(), version], fill)

    def _layer(self, kind: str, inputs: Sequence[str], fill: Callable[[Path], list[Entry]]) -> Layer:
        compiler = self._compiler()
        digest = digest_of(_RECIPE, self.architecture, *inputs, *compiler.inputs)
        target = self._folder / f"{kind}-{self.architecture}-{digest}.layer"
        if kept := read_layer(target):
            return kept
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            entries = fill(root)
            compiler.compile(root)
            layer = write_layer(target, [*tree(root), *entries])
        remove_old(target, f"{kind}-{self.architecture}-*.layer")
        if kind != "own":
            print(f"  packed {kind} for {self.architecture} in {time.monotonic() - started:.0f} s", flush=True)
        return layer

    def _compiler(self) -> Interpreter:
        """The interpreter of this machine's architecture: what it compiles is the same for all."""
        own_debs = self._debs if self.architecture == own_architecture() else pinned(own_architecture())
        return Interpreter(own_debs, own_architecture())


def remove_old(kept: Path, pattern: str) -> None:
    """Remove earlier files of this pattern, but what another run may be about to use: it is an hour old at most."""
    for old in kept.parent.glob(pattern):
        if old != kept and old.stat().st_mtime < time.time() - 3600:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)


def layer_folder() -> Path:
    """Where layers and archives are kept."""
    return cache_folder() / "images"


def _system_entries(root: Path) -> list[Entry]:
    """What maintainer scripts of Debian's packages would have made, as far as it is needed."""
    entries = [Entry("tmp", mode=0o1777), *(Entry(name) for name in ("proc", "sys", "dev", "run"))]
    passwd = f"root:x:0:0::/:/bin/sh\nnonroot:x:{USER}:{USER}::/tmp:/bin/sh\n"
    entries.append(Entry("etc/passwd", text=passwd, mode=0o644))
    entries.append(Entry("etc/group", text=f"root:x:0:\nnonroot:x:{USER}:\n", mode=0o644))
    entries.append(Entry("etc/nsswitch.conf", text="passwd: files\nhosts: files dns\n", mode=0o644))
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = "".join(file.read_text() for file in certificates)
    entries.append(Entry("etc/ssl/certs/ca-certificates.crt", text=bundle, mode=0o644))
    entries.append(Entry("etc/ssl/cert.pem", link="certs/ca-certificates.crt"))
    entries += [Entry(f"bin/{name}", link="busybox") for name in _PROGRAMS]
    return [*entries, *(Entry(f"usr/bin/{name}", link=PYTHON) for name in ("python3", "python"))]
