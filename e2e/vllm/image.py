"""The image of real engines: an interpreter, and what vLLM needs of a distribution beside it.

vLLM itself is mounted: 3 GB of packages need neither be packed nor unpacked.
"""

from __future__ import annotations

import ctypes.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster import images, packages, pythonlayers
from e2e.cluster.archive import Entry, build_image, write_layer
from e2e.vllm.environment import SITE, Environment

ENGINE_IMAGE = "holdfast.local/vllm-cpu:dev"


def install_prerequisites() -> None:
    """Install libnuma, which vLLM's kernels load, where the machine has none."""
    if ctypes.util.find_library("numa") is None:
        packages.install(["libnuma1"])


def engine_image(environment: Environment) -> images.Image:
    """Lies on the cluster's image of libraries, so that only this small layer is imported."""
    digest = pythonlayers.libraries_digest()
    libraries = images.image_folder() / f"libraries-{digest}.layer"
    archive = images.image_folder() / f"{environment.folder.name}-{digest}.tar"
    with tempfile.TemporaryDirectory() as scratch:
        extras = write_layer(Path(scratch) / "layer", _extras(environment.packages))
        build_image(
            ENGINE_IMAGE,
            archive,
            [libraries, extras],
            ["/usr/bin/python3"],
            environment=pythonlayers.image_environment(),
            left_out=[libraries],
        )
    return images.Image(ENGINE_IMAGE, archive)


def _extras(vllm: Path) -> list[Entry]:
    # vLLM asks lscpu which cores there are.
    lscpu = shutil.which("lscpu")
    if lscpu is None:
        raise FileNotFoundError("lscpu is missing: install util-linux")
    libraries = _libraries([Path(lscpu), *vllm.glob("vllm/*.so")])
    entries = [Entry(f"lib64/{path.name}", file=path.resolve()) for path in libraries if vllm not in path.parents]
    site = pythonlayers.site_script(f"/{pythonlayers.LIBRARIES}") + (SITE / "sitecustomize.py").read_text()
    return [
        Entry("bin/lscpu", file=Path(lscpu).resolve()),
        Entry(pythonlayers.SITE_SCRIPT, text=site, mode=0o644),
        *entries,
    ]


def _libraries(programs: list[Path]) -> list[Path]:
    """The distribution's C libraries that these files load."""
    listing = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return [Path(found) for found in re.findall(r"=> (/\S+) \(0x", listing)]
