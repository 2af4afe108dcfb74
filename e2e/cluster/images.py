"""The images the cluster's pods use, built here because no registry can be reached from inside."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from e2e.cluster.cache import digest_of, exclusive
from e2e.cluster.toolset import PAUSE, PROMETHEUS, Tool
from release.image import Builder, image_environment, layer_folder, remove_old
from release.interpreter import own_architecture
from release.oci import Entry, build_image, write_archive, write_layer
from release.own import project_version
from release.pins import available

PAUSE_IMAGE = "holdfast.local/pause:1"
PROMETHEUS_IMAGE = f"holdfast.local/prometheus:{PROMETHEUS.version}"
LIBRARIES_IMAGE = "holdfast.local/libraries:dev"
HOLDFAST_IMAGE = "holdfast.local/holdfast:dev"


@dataclass(frozen=True, slots=True)
class Image:
    """An image and the archive it can be imported from."""

    reference: str
    archive: Path


def pause_image() -> Image:
    """Holds a pod's namespaces."""
    return _of_program(PAUSE_IMAGE, PAUSE, [Entry("pause", file=PAUSE.program("pause"))], "/pause")


def prometheus_image() -> Image:
    """Prometheus and promtool as static programs, nothing else."""
    entries = [Entry(f"bin/{name}", file=PROMETHEUS.program(name)) for name in PROMETHEUS.programs]
    entries += [Entry("etc/prometheus"), Entry("tmp", mode=0o1777), Entry("prometheus", mode=0o1777)]
    return _of_program(PROMETHEUS_IMAGE, PROMETHEUS, entries, "/bin/prometheus")


def _of_program(reference: str, tool: Tool, entries: list[Entry], entrypoint: str) -> Image:
    archive = layer_folder() / f"{tool.folder.name}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as scratch:
            layer = write_layer(Path(scratch) / "layer", entries)
            image = build_image(own_architecture(), [layer], [entrypoint], environment={"PATH": "/bin"})
            write_archive(archive, reference, image)
    return Image(reference, archive)


@cache
def project() -> Builder:
    """Builds the image that is released."""
    return Builder(own_architecture(), layer_folder(), available(own_architecture()))


def libraries_image() -> Image:
    """The interpreter and the libraries: the slow-changing part of the project's image."""
    layers = project().base_layers()
    archive = layer_folder() / f"libraries-{digest_of([], *(layer.digest for layer in layers))}.tar"
    if not archive.exists():
        image = build_image(own_architecture(), layers, ["/usr/bin/python3"], environment=image_environment())
        write_archive(archive, LIBRARIES_IMAGE, image)
        remove_old(archive, "libraries-*.tar")
    return Image(LIBRARIES_IMAGE, archive)


def holdfast_image() -> Image:
    """The operator, the emulated engine and the command line, on top of the libraries: the image that is released.

    The archive leaves out the libraries' layers, so `libraries_image` must be imported before it.
    """
    image = project().image(project_version())
    archive = layer_folder() / f"holdfast-{image.digest.removeprefix('sha256:')[:12]}.tar"
    if not archive.exists():
        write_archive(archive, HOLDFAST_IMAGE, image, left_out=project().base_layers())
        remove_old(archive, "holdfast-*.tar")
    return Image(HOLDFAST_IMAGE, archive)


def trial_image() -> Image:
    """The released image with all layers, tagged by its content: for a cluster that has none of them yet."""
    with exclusive("images"):
        image = project().image(project_version())
        tag = image.digest.removeprefix("sha256:")[:12]
        reference = f"holdfast.local/holdfast:{tag}"
        archive = layer_folder() / f"trial-{tag}.tar"
        if not archive.exists():
            write_archive(archive, reference, image)
            remove_old(archive, "trial-*.tar")
    return Image(reference, archive)


def program_images() -> list[Image]:
    """The images that are made of built programs."""
    return [pause_image(), prometheus_image()]


def slow_images() -> list[Image]:
    """The images that change with versions only, built where they are missing."""
    with exclusive("images"):
        return [*program_images(), libraries_image()]


def fast_images() -> list[Image]:
    """The images that change with this project's source, built where it changed; `slow_images` come first."""
    with exclusive("images"):
        return [holdfast_image()]
