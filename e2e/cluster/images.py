"""The images the cluster's pods use, built here because no registry can be reached from inside."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import pythonlayers
from e2e.cluster.archive import Entry, build_image, write_layer
from e2e.cluster.cache import cache_folder, exclusive
from e2e.cluster.toolset import PAUSE, PROMETHEUS

PAUSE_IMAGE = "holdfast.local/pause:1"
PROMETHEUS_IMAGE = f"holdfast.local/prometheus:{PROMETHEUS.version}"
LIBRARIES_IMAGE = "holdfast.local/libraries:dev"
HOLDFAST_IMAGE = "holdfast.local/holdfast:dev"


@dataclass(frozen=True, slots=True)
class Image:
    """An image and the archive it can be imported from."""

    reference: str
    archive: Path


def image_folder() -> Path:
    """Where layers and archives are kept, named by what they were made from."""
    return cache_folder() / "images"


def pause_image() -> Image:
    """Holds a pod's namespaces."""
    archive = image_folder() / f"{PAUSE.folder.name}.tar"
    if not archive.exists():
        layer = write_layer(archive.with_suffix(".layer"), [Entry("pause", file=PAUSE.program("pause"))])
        build_image(PAUSE_IMAGE, archive, [layer], ["/pause"])
    return Image(PAUSE_IMAGE, archive)


def prometheus_image() -> Image:
    """Prometheus and promtool as static programs, nothing else."""
    archive = image_folder() / f"{PROMETHEUS.folder.name}.tar"
    if not archive.exists():
        entries = [Entry(f"bin/{name}", file=PROMETHEUS.program(name)) for name in PROMETHEUS.programs]
        entries += [Entry("etc/prometheus"), Entry("tmp", mode=0o1777), Entry("prometheus", mode=0o1777)]
        layer = write_layer(archive.with_suffix(".layer"), entries)
        build_image(PROMETHEUS_IMAGE, archive, [layer], ["/bin/prometheus"], environment={"PATH": "/bin"})
        layer.unlink()
    return Image(PROMETHEUS_IMAGE, archive)


def libraries_image() -> Image:
    """The interpreter and the libraries: the slow-changing part of the project's image."""
    digest = pythonlayers.libraries_digest()
    archive = image_folder() / f"libraries-{digest}.tar"
    if not archive.exists():
        layer = _libraries_layer(digest)
        environment = pythonlayers.image_environment()
        build_image(LIBRARIES_IMAGE, archive, [layer], ["/usr/bin/python3"], environment=environment)
        _remove_old(archive, "libraries-*.tar")
    return Image(LIBRARIES_IMAGE, archive)


def holdfast_image() -> Image:
    """The operator, the emulated engine and the command line, on top of the libraries.

    The archive leaves out the libraries' layer, so `libraries_image` must be imported before it.
    """
    libraries = _libraries_layer(pythonlayers.libraries_digest())
    digest = pythonlayers.source_digest()
    archive = image_folder() / f"holdfast-{digest}-{libraries.stem}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as scratch:
            source = write_layer(Path(scratch) / "layer", pythonlayers.source_entries(Path(scratch)))
            build_image(
                HOLDFAST_IMAGE,
                archive,
                [libraries, source],
                ["/usr/local/bin/holdfast"],
                environment=pythonlayers.image_environment(),
                left_out=[libraries],
            )
        _remove_old(archive, "holdfast-*.tar")
    return Image(HOLDFAST_IMAGE, archive)


def _libraries_layer(digest: str) -> Path:
    layer = image_folder() / f"libraries-{digest}.layer"
    if not layer.exists():
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            write_layer(layer, pythonlayers.library_entries(Path(scratch)))
        _remove_old(layer, "libraries-*.layer")
        print(f"  packed the interpreter and the libraries in {time.monotonic() - started:.0f} s", flush=True)
    return layer


def _remove_old(kept: Path, pattern: str) -> None:
    # Another run may be about to import what is an hour old at most.
    for old in kept.parent.glob(pattern):
        if old != kept and old.stat().st_mtime < time.time() - 3600:
            old.unlink(missing_ok=True)


def slow_images() -> list[Image]:
    """The images that change with versions only, built where they are missing."""
    with exclusive("images"):
        return [pause_image(), prometheus_image(), libraries_image()]


def fast_images() -> list[Image]:
    """The images that change with this project's source, built where it changed; `slow_images` come first."""
    with exclusive("images"):
        return [holdfast_image()]
