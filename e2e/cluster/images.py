"""The images the cluster's pods use, built here because no registry can be reached from inside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import pythonlayers
from e2e.cluster.archive import Entry, build_image, write_layer
from e2e.cluster.cache import cache_folder, exclusive
from e2e.cluster.tools import PAUSE, PROMETHEUS

PAUSE_IMAGE = "holdfast.local/pause:1"
PROMETHEUS_IMAGE = f"holdfast.local/prometheus:{PROMETHEUS.version}"
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


def holdfast_image() -> Image:
    """The operator, the emulated engine and the command line, on the interpreter that runs this."""
    libraries = _layer(f"python-{pythonlayers.libraries_digest()}", pythonlayers.library_entries)
    digest = pythonlayers.source_digest()
    source = _layer(f"holdfast-source-{digest}", pythonlayers.source_entries)
    archive = image_folder() / f"holdfast-{digest}-{libraries.stem}.tar"
    if not archive.exists():
        build_image(
            HOLDFAST_IMAGE,
            archive,
            [libraries, source],
            ["/usr/local/bin/holdfast"],
            environment=pythonlayers.image_environment(),
        )
        _keep_only(archive, "holdfast-[!s]*.tar")
    return Image(HOLDFAST_IMAGE, archive)


def _layer(name: str, entries: Callable[[Path], list[Entry]]) -> Path:
    layer = image_folder() / f"{name}.layer"
    if not layer.exists():
        with tempfile.TemporaryDirectory() as scratch:
            write_layer(layer, entries(Path(scratch)))
        _keep_only(layer, f"{name.rpartition('-')[0]}-*.layer")
    return layer


def _keep_only(kept: Path, pattern: str) -> None:
    for old in kept.parent.glob(pattern):
        if old != kept:
            old.unlink(missing_ok=True)


def build_images() -> list[Image]:
    """All images, built where something changed since the last time."""
    with exclusive("images"):
        return [pause_image(), prometheus_image(), holdfast_image()]
