"""Writes container images as OCI archives, without a container engine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol, cast

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
_COMPRESSION = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer: exactly one of file, text, link and directory is meant."""

    path: str
    file: Path | None = None
    text: str | None = None
    link: str | None = None
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed layer: `digest` and `size` (bytes) are the file's, `diff_id` is the digest of what it unpacks to."""

    path: Path
    digest: str
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """An image for one architecture, complete but for its name: equal layers and settings give an equal digest."""

    architecture: str
    config: bytes
    manifest: bytes
    layers: tuple[Layer, ...]

    @property
    def digest(self) -> str:
        """The digest that a registry shows and that can be pulled by."""
        return digest_of_bytes(self.manifest)


def tree(root: Path) -> list[Entry]:
    """Everything below a folder; of the permissions only whether a file can be executed counts."""
    entries = []
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            shown, mode = str(path.relative_to(root)), path.lstat().st_mode
            if stat.S_ISLNK(mode):
                entries.append(Entry(shown, link=os.readlink(path)))
            elif stat.S_ISDIR(mode):
                entries.append(Entry(shown))
            else:
                entries.append(Entry(shown, file=path, mode=0o755 if mode & 0o111 else 0o644))
    return entries


def write_layer(target: Path, entries: Iterable[Entry]) -> Layer:
    """Write a layer: sorted, owned by root and without times, so that equal input gives equal bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with unfinished.open("wb") as file, gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
        unpacked = _Hashed(packed)
        _write_tar(unpacked, entries)
    layer = Layer(target, _file_digest(unfinished), unpacked.digest(), unfinished.stat().st_size)
    _described_beside(target).write_text(json.dumps({**asdict(layer), "path": target.name}))
    unfinished.rename(target)
    return layer


def read_layer(target: Path) -> Layer | None:
    """The layer that `write_layer` wrote there, if it did."""
    if not target.exists():
        return None
    return Layer(**{**json.loads(_described_beside(target).read_text()), "path": target})


def _described_beside(target: Path) -> Path:
    return target.with_suffix(".json")


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Hashed:
    """Passes on what is written and takes its digest."""

    def __init__(self, target: _Writable) -> None:
        self._target, self._hash = target, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._target.write(data)

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def _write_tar(target: _Writable, entries: Iterable[Entry]) -> None:
    # A stream (w|) never looks back, so that it can be compressed as it is written.
    with tarfile.open(fileobj=cast(IO[bytes], target), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in _with_parents(entries):
            _add(archive, entry)


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    by_path = {entry.path.strip("/"): entry for entry in entries}
    for path in list(by_path):
        for parent in list(Path(path).parents)[:-1]:
            by_path.setdefault(str(parent), Entry(str(parent)))
    return [by_path[path] for path in sorted(by_path)]


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    header = tarfile.TarInfo(entry.path.strip("/"))
    header.mode = entry.mode
    if entry.link is not None:
        header.type, header.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(header)
    elif entry.text is not None:
        content = entry.text.encode()
        header.size = len(content)
        archive.addfile(header, io.BytesIO(content))
    elif entry.file is not None:
        header.size = entry.file.stat().st_size
        with entry.file.open("rb") as content_file:
            archive.addfile(header, content_file)
    else:
        header.type = tarfile.DIRTYPE
        archive.addfile(header)


def build_image(
    architecture: str,
    layers: Sequence[Layer],
    entrypoint: Sequence[str],
    *,
    user: str = "65532:65532",
    environment: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Image:
    """An image of these layers, lowest first."""
    settings = {
        "User": user,
        "Env": [f"{name}={value}" for name, value in (environment or {}).items()],
        "Entrypoint": list(entrypoint),
        "WorkingDir": "/",
        "Labels": dict(labels or {}),
    }
    root = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
    config = _json({"architecture": architecture, "os": "linux", "config": settings, "rootfs": root})
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(_CONFIG_TYPE, config),
        "layers": [{"mediaType": _LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers],
    }
    return Image(architecture, config, _json(manifest), tuple(layers))


def write_archive(target: Path, reference: str, image: Image, left_out: Sequence[Layer] = ()) -> Path:
    """Write one image as an archive named `reference`: of OCI's form, and of Docker's, which `docker load` wants.

    Layers in `left_out` are part of the image but not of the archive: the importer must have them already.
    """
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    entries = [*_layout({**_of_image(image), "annotations": names}), _for_docker(reference, image)]
    return _write_file(target, [*entries, *_blobs(image, left_out)])


def write_index_archive(target: Path, name: str, images: Sequence[Image], annotations: Mapping[str, str]) -> Path:
    """Write the images of several architectures as one OCI archive whose only entry, an index, is called `name`."""
    manifests = [_of_image(image) for image in images]
    index = _json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": manifests,
            "annotations": dict(annotations),
        }
    )
    named = {**descriptor(INDEX_TYPE, index), "annotations": {"org.opencontainers.image.ref.name": name}}
    entries = [*_layout(named), _blob(index), *(blob for image in images for blob in _blobs(image))]
    return _write_file(target, entries)


def descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    """How a manifest refers to this blob."""
    return {"mediaType": media_type, "digest": digest_of_bytes(blob), "size": len(blob)}


def digest_of_bytes(blob: bytes) -> str:
    """The digest by which registries know this content."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _of_image(image: Image) -> dict[str, object]:
    platform = {"architecture": image.architecture, "os": "linux"}
    return {**descriptor(MANIFEST_TYPE, image.manifest), "platform": platform}


def _layout(entry: Mapping[str, object]) -> list[Entry]:
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    return [
        Entry("oci-layout", text='{"imageLayoutVersion":"1.0.0"}', mode=0o644),
        Entry("index.json", text=_json(index).decode(), mode=0o644),
    ]


def _for_docker(reference: str, image: Image) -> Entry:
    layers = [_blob_path(layer.digest) for layer in image.layers]
    told = [{"Config": _blob_path(digest_of_bytes(image.config)), "RepoTags": [reference], "Layers": layers}]
    return Entry("manifest.json", text=_json(told).decode(), mode=0o644)


def _blobs(image: Image, left_out: Sequence[Layer] = ()) -> list[Entry]:
    layers = [layer for layer in image.layers if layer not in left_out]
    return [
        _blob(image.config),
        _blob(image.manifest),
        *(Entry(_blob_path(layer.digest), file=layer.path, mode=0o644) for layer in layers),
    ]


def _blob(content: bytes) -> Entry:
    return Entry(_blob_path(digest_of_bytes(content)), text=content.decode(), mode=0o644)


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _write_file(target: Path, entries: Iterable[Entry]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with unfinished.open("wb") as file:
        _write_tar(file, entries)
    unfinished.rename(target)
    return target


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()
