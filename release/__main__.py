"""`make release`: everything that is published of one version, into one folder, with nothing published yet."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cache import exclusive
from release import chart, notes, own, sbom
from release.debian import ArchiveError
from release.image import Builder, layer_folder
from release.oci import Image, write_index_archive
from release.pins import ARCHITECTURES, pinned
from release.wheels import REPOSITORY, WheelError

KEY_VARIABLE = "HOLDFAST_SIGNING_KEY"
SUMS = "SHA256SUMS"
TRIAL = REPOSITORY / "examples" / "no-gpu"
_SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.(0|[1-9]\d*))?")


class ReleaseError(Exception):
    """An input of the release is wrong; the message names it and what to give instead."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a release is told: where its image and chart will be, where its documentation and its source are."""

    version: str
    registry: str
    site: str
    repository: str

    def checked(self) -> Inputs:
        """The same without trailing slashes; raises ReleaseError."""
        if not _SEMANTIC.fullmatch(self.version):
            raise ReleaseError(f"VERSION={self.version!r}: give a version such as 0.1.0 or 0.2.0-rc.1")
        if self.registry and not re.fullmatch(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*/?", self.registry):
            raise ReleaseError(f"REGISTRY={self.registry!r}: give host and path, such as registry.example.com/team")
        for name, value in (("SITE", self.site), ("REPOSITORY", self.repository)):
            if value and not re.fullmatch(r"https?://[^\s\"'`<>]+", value):
                raise ReleaseError(f"{name}={value!r}: give an address that begins with https://, or nothing")
        return Inputs(self.version, self.registry.rstrip("/"), self.site.rstrip("/"), self.repository.rstrip("/"))


def make(inputs: Inputs, target: Path) -> None:
    """Write all artefacts of a release into an empty folder."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / "RELEASE_NOTES.md").write_text(notes.of_version(inputs.version))
    own.build_wheel(target, inputs.version)
    own.build_source(target, inputs.version)
    images = [_image(architecture, inputs.version, target) for architecture in ARCHITECTURES]
    about = {"org.opencontainers.image.version": inputs.version}
    about |= {"org.opencontainers.image.source": inputs.repository} if inputs.repository else {}
    write_index_archive(target / f"holdfast-image-{inputs.version}.oci.tar", inputs.version, images, about)
    chart.package(target, inputs.version, inputs.registry, inputs.site, inputs.repository)
    for file in sorted(TRIAL.glob("*.yaml")):
        text = notes.with_image(file.read_text(), inputs.version, inputs.registry)
        (target / f"no-gpu-{file.name}").write_text(text)
    (target / "README.md").write_text(notes.readme(inputs.version, inputs.registry, inputs.site, inputs.repository))
    _sums(target)
    sign(target)


def _image(architecture: str, version: str, target: Path) -> Image:
    builder = Builder(architecture, layer_folder(), pinned(architecture))
    with exclusive("images"):
        image = builder.image(version)
        wheels = builder.libraries()
    parts = sbom.parts(architecture, pinned(architecture), wheels)
    for name, document in (("cdx", sbom.cyclonedx), ("spdx", sbom.spdx)):
        text = json.dumps(document(version, architecture, image.digest, parts), indent=1)
        (target / f"holdfast-image-{version}-{architecture}.{name}.json").write_text(text + "\n")
    print(f"  image for {architecture}: {image.digest}", flush=True)
    return image


def _sums(target: Path) -> None:
    files = sorted(target.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (target / SUMS).write_text("".join(lines))


def sign(target: Path) -> None:
    """Sign the checksums with the private key (PEM) in the environment; without one say that nothing is signed."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        print(f"  NOT SIGNED: {KEY_VARIABLE} is empty; give it a private key in PEM form to sign {SUMS}", flush=True)
        return
    sums = target / SUMS
    # The key goes through a pipe, never into a file.
    command = ["openssl", "dgst", "-sha256", "-sign", "/dev/stdin", "-out", f"{sums}.sig", str(sums)]
    done = subprocess.run(command, input=key, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{KEY_VARIABLE} is no private key in PEM form that openssl can sign with")
    print(f"  signed {SUMS}", flush=True)


def main() -> int:
    """Read the inputs and make the release."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--version", required=True, help="such as 0.1.0")
    parser.add_argument("--registry", default="", help="where image and chart will be: registry.example.com/team")
    parser.add_argument(
        "--site", default="", help="address of the documentation: home, icon and runbooks; may be empty"
    )
    parser.add_argument("--repository", default="", help="address of the source; may be empty")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    given = parser.parse_args()
    try:
        make(Inputs(given.version, given.registry, given.site, given.repository).checked(), given.out)
    except (ReleaseError, ArchiveError, WheelError, notes.NotesError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.out}: {', '.join(sorted(file.name for file in given.out.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
