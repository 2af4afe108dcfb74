"""The Debian packages of the image, pinned by version and checksum; `python -m release.pins` renews them.

Checked against the archive's signature, so gpgv and Debian's keyring (package debian-archive-keyring) are needed.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from e2e.cluster.cache import cache_folder, digest_of
from release.debian import ArchiveError, Deb, GoneError, archive_address, download
from release.interpreter import unpacked

ARCHITECTURES = ("amd64", "arm64")
IMAGE_PACKAGES = (
    "base-files",
    "busybox-static",
    "ca-certificates",
    "gcc-12-base",
    "libbz2-1.0",
    "libc-bin",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libncursesw6",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libreadline8",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libtinfo6",
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)
# What the real vLLM of the tests needs beside it.
ENGINE_PACKAGES = ("libnuma1", "libsmartcols1", "util-linux")
# A registry for the test that publishes, and the program that pushes images.
REGISTRY_PACKAGES = ("docker-registry", "libassuan0", "libdevmapper1.02.1", "libgpg-error0", "libgpgme11", "skopeo")

_PINS = Path(__file__).with_name("pins.json")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SUITES = (("debian", "bookworm"), ("debian-security", "bookworm-security"))


def pinned(architecture: str, packages: tuple[str, ...] = IMAGE_PACKAGES) -> list[Deb]:
    """The pinned .debs of these packages."""
    by_name = {deb["package"]: Deb(**deb) for deb in json.loads(_PINS.read_text())[architecture]}
    return [by_name[package] for package in packages]


def available(architecture: str, packages: tuple[str, ...] = IMAGE_PACKAGES) -> list[Deb]:
    """The pinned .debs, or the newest ones where the archive has a pinned one no more: for tests, never for a release.

    A test on a new machine goes on where a release waits for new pins. The choice is kept until the pins change.
    """
    chosen = cache_folder() / "debian" / f"newest-{digest_of([_PINS], architecture, *packages)}.json"
    if chosen.exists():
        return [Deb(**deb) for deb in json.loads(chosen.read_text())]
    debs = pinned(architecture, packages)
    try:
        unpacked(debs)
    except GoneError as error:
        print(f"  {error}; this run takes the newest versions", flush=True)
        debs = current(architecture, packages)
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(json.dumps([asdict(deb) for deb in debs]))
    return debs


def current(architecture: str, packages: tuple[str, ...] = IMAGE_PACKAGES) -> list[Deb]:
    """The newest .debs of these packages in the archive, as its signed lists have them."""
    newest: dict[str, Deb] = {}
    # The security archive is read last, and what it has is newer than what the release has.
    for archive, suite in _SUITES:
        newest |= {deb.package: deb for deb in _offered(archive, suite, architecture) if deb.package in packages}
    if absent := sorted(set(packages) - set(newest)):
        raise ArchiveError(f"the archive has no {', '.join(absent)} for {architecture}: see IMAGE_PACKAGES")
    return [newest[package] for package in packages]


def _offered(archive: str, suite: str, architecture: str) -> Iterator[Deb]:
    path = f"main/binary-{architecture}/Packages.xz"
    base = f"{archive_address(archive)}/dists/{suite}"
    listing = download(f"{base}/{path}")
    promised = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {path}$", _verified(download(f"{base}/InRelease")), re.MULTILINE)
    if promised is None or hashlib.sha256(listing).hexdigest() != promised.group(1):
        raise ArchiveError(f"{base}/{path} is not what the archive signed: try again, or another mirror")
    for block in lzma.decompress(listing).decode().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Filename|Size|SHA256): (.+)$", block, re.MULTILINE))
        if fields:
            yield Deb(
                fields["Package"],
                fields["Version"],
                archive,
                fields["Filename"],
                int(fields["Size"]),
                fields["SHA256"],
            )


def _verified(signed: bytes) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(signed)
        file.flush()
        command = ["gpgv", "--quiet", "--keyring", _KEYRING, "--output", "-", file.name]
        done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ArchiveError(f"the archive's signature is not Debian's: {done.stderr.decode().strip()[-500:]}")
    return done.stdout.decode()


def main() -> int:
    """Write the newest versions into release/pins.json."""
    packages = tuple(sorted({*IMAGE_PACKAGES, *ENGINE_PACKAGES, *REGISTRY_PACKAGES}))
    try:
        pins = {name: [asdict(deb) for deb in current(name, packages)] for name in ARCHITECTURES}
    except (ArchiveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _PINS.write_text(json.dumps(pins, indent=1) + "\n")
    print(f"wrote {_PINS.name}: {len(packages)} packages for {' and '.join(ARCHITECTURES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
