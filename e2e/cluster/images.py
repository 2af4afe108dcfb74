"""The images the cluster's pods use, built here because no registry can be reached from inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def build_images() -> list[Image]:
    """All images, built where something changed since the last time."""
    with exclusive("images"):
        return [pause_image(), prometheus_image()]
