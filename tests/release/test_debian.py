"""Debian's packages by checksum, from an archive that answers and from one that has them no more."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from release import debian, interpreter, pins
from release.debian import ArchiveError, Deb, GoneError, fetch, unpack

CONTENT = b"what the archive has"
DEB = Deb("libssl3", "3.0", "debian", "pool/libssl3.deb", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a mirror that is asked, with an empty cache."""
    folder = tmp_path / "mirror"
    (folder / "debian" / "pool").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(debian.MIRROR_VARIABLE, f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield folder / "debian"
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_package_is_fetched_once(archive: Path) -> None:
    file = archive / DEB.path
    file.write_bytes(CONTENT)
    assert fetch(DEB).read_bytes() == CONTENT
    file.unlink()
    assert fetch(DEB).read_bytes() == CONTENT


@pytest.mark.usefixtures("archive")
def test_a_package_that_the_archive_has_no_more_is_named_with_the_command_that_renews_the_pins() -> None:
    with pytest.raises(GoneError, match=r"libssl3 3\.0, pinned in .*pins\.json.*python -m release\.pins"):
        fetch(DEB)


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT[::-1], CONTENT * 2])
def test_a_package_that_is_not_the_pinned_one_is_refused_and_not_kept(archive: Path, content: bytes) -> None:
    (archive / DEB.path).write_bytes(content)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"pool/libssl3\.deb .*is not the file that"):
            fetch(DEB)


def test_a_machine_without_debians_archive_is_told_which_variable_names_a_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(debian.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(debian, "_SOURCES", (tmp_path / "sources.list", tmp_path / "sources.list.d"))
    with pytest.raises(ArchiveError, match="HOLDFAST_DEBIAN_MIRROR"):
        debian.archive_address("debian")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "# deb http://no.example/debian x\ndeb [arch=amd64] http://a.example/debian/ bookworm main\n"),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\n"),
    ],
)
def test_the_archive_is_the_one_that_apt_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.delenv(debian.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(debian, "_SOURCES", (tmp_path / "sources.list", tmp_path / "sources.list.d"))
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert debian.archive_address("debian") == "http://a.example/debian"
    with pytest.raises(ArchiveError, match="debian-security"):
        debian.archive_address("debian-security")


def test_of_a_package_what_an_image_needs_is_unpacked_and_scanners_find_its_version(tmp_path: Path) -> None:
    kept = {"usr/lib/x.so": b"x", "usr/share/doc/x/copyright": b"c", "usr/share/doc/y/a/copyright": b"c"}
    unused = {"usr/share/man/man1/x.1": b"m", "usr/share/doc/x/changelog.gz": b"z", "usr/share/locale/de/x.mo": b"l"}
    (tmp_path / "x.deb").write_bytes(made_deb("Package: x\nVersion: 1\n", kept | unused))
    unpack(tmp_path / "x.deb", tmp_path / "root")
    found = {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_file()}
    assert found == {*kept, "var/lib/dpkg/status.d/x"}
    assert (tmp_path / "root/var/lib/dpkg/status.d/x").read_text().startswith("Package: x\nVersion: 1")


def test_a_test_goes_on_with_the_newest_version_where_a_pinned_one_is_gone(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = made_deb("Package: x\nVersion: 2\n", {"etc/x": b"2"})
    newest = Deb("x", "2", "debian", "pool/x2.deb", len(content), hashlib.sha256(content).hexdigest())
    (archive / newest.path).write_bytes(content)
    monkeypatch.setattr(pins, "pinned", lambda *_: [DEB])
    monkeypatch.setattr(pins, "current", lambda *_: [newest])
    assert pins.available("amd64") == [newest]
    assert "libssl3 3.0" in capsys.readouterr().out
    # Inside a cluster's namespaces no archive can be asked again.
    monkeypatch.setattr(pins, "current", None)
    assert pins.available("amd64") == [newest]
    assert (interpreter.unpacked([newest]) / "etc/x").read_text() == "2"


def test_both_architectures_pin_the_same_packages_in_the_same_upstream_versions() -> None:
    # What is compiled for one is what the other runs.
    packages = (*pins.IMAGE_PACKAGES, *pins.ENGINE_PACKAGES)
    one, other = (pins.pinned(architecture, packages) for architecture in pins.ARCHITECTURES)
    # A rebuild for one architecture alone ends in +b and a number.
    assert [(deb.package, deb.version.partition("+b")[0]) for deb in one] == [
        (deb.package, deb.version.partition("+b")[0]) for deb in other
    ]
    assert all(len(deb.sha256) == 64 and deb.size > 0 and ":" not in deb.path for deb in (*one, *other))


def made_deb(control: str, files: dict[str, bytes]) -> bytes:
    """A package as Debian lays it out."""
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": _tar({"./control": control.encode()}),
        "data.tar.xz": _tar({f"./{name}": content for name, content in files.items()}),
    }
    made = b"!<arch>\n"
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        made += header.encode() + content + b"\n" * (len(content) % 2)
    return made


def _tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
