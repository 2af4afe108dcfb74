"""Debian's packages: where the archive is, how one is fetched by its checksum, and what is unpacked of it."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cache import cache_folder, completed

MIRROR_VARIABLE = "HOLDFAST_DEBIAN_MIRROR"
RENEW = "python -m release.pins"
_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
_ATTEMPTS = 3
_TIMEOUT_SECONDS = 60.0
# What no program of an image reads; the copyright files stay.
_UNUSED = re.compile(
    r"usr/share/(man|locale|lintian|bash-completion|menu|pixmaps|applications|bug|info|python3|binfmts|gcc|gdb|doc-base)/"
    r"|usr/share/doc/.*/(?!copyright$)[^/]+$"
    r"|usr/lib/[^/]+/gconv/|usr/lib/python3\.11/(idlelib|lib2to3|ensurepip|turtledemo|pydoc_data)/"
    r"|etc/(default|init\.d|update-motd\.d|cron\.[a-z]+)/"
)


class ArchiveError(Exception):
    """Debian's archive could not be found or did not answer; the message says what to do."""


class GoneError(ArchiveError):
    """A pinned file is no longer in the archive, which keeps the newest versions only."""


@dataclass(frozen=True, slots=True)
class Deb:
    """One .deb as pinned: `archive` is debian or debian-security, `path` is inside of it, `size` is in bytes."""

    package: str
    version: str
    archive: str
    path: str
    size: int
    sha256: str


def archive_address(archive: str) -> str:
    """The address of `debian` or `debian-security`: below $HOLDFAST_DEBIAN_MIRROR, else from apt's sources."""
    if mirror := os.environ.get(MIRROR_VARIABLE):
        return f"{mirror.rstrip('/')}/{archive}"
    for text in _apt_sources():
        if found := re.search(rf"^[^#\n]*?(https?://\S+/{archive})/?(?:\s|$)", text, re.MULTILINE):
            return found.group(1)
    raise ArchiveError(
        f"no source of apt on this machine is Debian's archive {archive}: set {MIRROR_VARIABLE} to the address of a "
        "mirror, without the last part (debian, debian-security)"
    )


def _apt_sources() -> Iterator[str]:
    single, folder = _SOURCES
    for file in (single, *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))):
        if file.exists():
            yield file.read_text()


def fetch(deb: Deb) -> Path:
    """The .deb, from the cache if it is there; raises GoneError where the archive no longer has it."""
    kept = cache_folder() / "debs" / f"{deb.sha256}.deb"
    if not kept.exists():
        with completed(kept) as file:
            file.write_bytes(_download_pinned(deb))
    return kept


def _download_pinned(deb: Deb) -> bytes:
    try:
        content = download(f"{archive_address(deb.archive)}/{deb.path}")
    except FileNotFoundError:
        raise GoneError(
            f"{deb.package} {deb.version}, pinned in release/pins.json, is no longer in the archive {deb.archive}, "
            f"which keeps only the newest version: renew the pins with `{RENEW}` and commit the file"
        ) from None
    if len(content) != deb.size or hashlib.sha256(content).hexdigest() != deb.sha256:
        raise ArchiveError(
            f"{deb.path} of the archive {deb.archive} is not the file that release/pins.json pins (size or sha256 "
            f"differ): try another mirror ({MIRROR_VARIABLE}); if the package was rebuilt, `{RENEW}`"
        )
    return content


def download(address: str) -> bytes:
    """What is at this address; FileNotFoundError where nothing is, ArchiveError after three failures."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                raise FileNotFoundError(address) from None
            failure: OSError = error
        except OSError as error:
            failure = error
        if attempt < _ATTEMPTS:
            time.sleep(2 * attempt)
    raise ArchiveError(f"{address} could not be read ({failure}): try again, or set {MIRROR_VARIABLE}") from failure


def unpack(file: Path, root: Path) -> None:
    """Unpack what an image needs of a .deb; what scanners read of it goes to var/lib/dpkg/status.d."""
    members = dict(_members(file.read_bytes()))
    with _tar(members, "data.tar") as data:
        for member in data:
            if not _UNUSED.search(member.name.removeprefix("./") + ("/" if member.isdir() else "")):
                data.extract(member, root)
    with _tar(members, "control.tar") as control:
        about = control.extractfile("./control")
        if about is None:
            raise ArchiveError(f"{file} has no control file: remove it, it is fetched again")
        text = about.read()
    package = re.search(rb"^Package: (\S+)", text).group(1).decode()  # type: ignore[union-attr]
    status = root / "var/lib/dpkg/status.d" / package
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_bytes(text)


def _tar(members: dict[str, bytes], stem: str) -> tarfile.TarFile:
    name = next(name for name in members if name.startswith(stem))
    archive = tarfile.open(fileobj=io.BytesIO(members[name]))  # noqa: SIM115
    # Newer versions of Python refuse absolute links, which the interpreter's and the C library's packages have.
    archive.extraction_filter = lambda member, _: member
    return archive


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """A .deb is an ar archive: headers of 60 bytes, contents padded to even sizes."""
    position = len(b"!<arch>\n")
    while position < len(content):
        header = content[position : position + 60]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        position += 60
        yield name, content[position : position + size]
        position += size + size % 2
