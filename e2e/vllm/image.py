"""The image of real engines: an interpreter, and what vLLM needs of a distribution beside it.

vLLM itself is mounted: 3 GB of packages need neither be packed nor unpacked.
"""

from __future__ import annotations

import ctypes.util
import tempfile
from pathlib import Path

from e2e.cluster import images, packages
from e2e.cluster.cache import digest_of
from e2e.vllm.environment import SITE, Environment
from release.image import image_environment, layer_folder
from release.interpreter import PACKAGES_FOLDER, own_architecture, unpacked
from release.oci import Entry, build_image, tree, write_archive, write_layer
from release.pins import ENGINE_PACKAGES, available

ENGINE_IMAGE = "holdfast.local/vllm-cpu:dev"


def install_prerequisites() -> None:
    """Install libnuma, which vLLM's kernels load, where the machine has none, and fetch what the image needs."""
    _distribution()
    if ctypes.util.find_library("numa") is None:
        packages.install(["libnuma1"])


def engine_image(environment: Environment) -> images.Image:
    """Lies on the cluster's image of libraries, so that only this small layer is imported."""
    base = images.project().base_layers()
    digest = digest_of([Path(__file__)], environment.folder.name, *(layer.digest for layer in base))
    archive = layer_folder() / f"vllm-cpu-{digest}.tar"
    with tempfile.TemporaryDirectory() as scratch:
        extras = write_layer(Path(scratch) / "layer", _extras())
        image = build_image(own_architecture(), [*base, extras], ["/usr/bin/python3"], environment=image_environment())
        write_archive(archive, ENGINE_IMAGE, image, left_out=base)
    return images.Image(ENGINE_IMAGE, archive)


def _distribution() -> Path:
    """Debian's packages for the image, unpacked in the cache: a cluster has no way out to fetch them."""
    return unpacked(available(own_architecture(), ENGINE_PACKAGES))


def _extras() -> list[Entry]:
    """What vLLM asks of a distribution: libnuma, which its kernels load, lscpu, and the module of SITE."""
    site = (SITE / "sitecustomize.py").read_text()
    return [
        *tree(_distribution()),
        Entry(f"{PACKAGES_FOLDER}/engine_site.py", text=site, mode=0o644),
        Entry(f"{PACKAGES_FOLDER}/engine_site.pth", text="import engine_site\n", mode=0o644),
    ]
