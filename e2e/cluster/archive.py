"""Writes container images as OCI archives, without a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer: exactly one of file, text, link and directory is meant."""

    path: str
    file: Path | None = None
    text: str | None = None
    link: str | None = None
    mode: int = 0o755


def write_layer(target: Path, entries: Iterable[Entry]) -> Path:
    """Write an uncompressed layer: sorted, owned by root and without times, so that equal input gives equal bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as layer:
        for entry in _with_parents(entries):
            _add(layer, entry)
    unfinished.rename(target)
    return target


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    by_path = {entry.path.strip("/"): entry for entry in entries}
    for path in list(by_path):
        for parent in list(Path(path).parents)[:-1]:
            by_path.setdefault(str(parent), Entry(str(parent)))
    return [by_path[path] for path in sorted(by_path)]


def _add(layer: tarfile.TarFile, entry: Entry) -> None:
    header = tarfile.TarInfo(entry.path.strip("/"))
    header.mode = entry.mode
    if entry.link is not None:
        header.type, header.linkname = tarfile.SYMTYPE, entry.link
        layer.addfile(header)
    elif entry.text is not None:
        content = entry.text.encode()
        header.size = len(content)
        layer.addfile(header, io.BytesIO(content))
    elif entry.file is not None:
        header.size = entry.file.stat().st_size
        with entry.file.open("rb") as content_file:
            layer.addfile(header, content_file)
    else:
        header.type = tarfile.DIRTYPE
        layer.addfile(header)


def build_image(
    reference: str,
    archive: Path,
    layers: list[Path],
    entrypoint: list[str],
    *,
    user: str = "65532:65532",
    environment: Mapping[str, str] | None = None,
    left_out: Sequence[Path] = (),
) -> Path:
    """Write an image of these layers, lowest first, as an OCI archive named `reference`.

    Layers in `left_out` are part of the image but not of the archive: the importer must have them already.
    """
    digests = [_file_digest(layer) for layer in layers]
    config = {
        "architecture": _ARCHITECTURE,
        "os": "linux",
        "config": {
            "User": user,
            "Env": [f"{name}={value}" for name, value in (environment or {}).items()],
            "Entrypoint": entrypoint,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    config_blob = json.dumps(config).encode()
    manifest_blob = _manifest(config_blob, layers, digests)
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX_TYPE,
        "manifests": [
            {
                **_described(_MANIFEST_TYPE, manifest_blob),
                "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference},
                "platform": {"architecture": _ARCHITECTURE, "os": "linux"},
            }
        ],
    }
    included = {digest: layer for digest, layer in zip(digests, layers, strict=True) if layer not in left_out}
    _write_archive(archive, [config_blob, manifest_blob], included, index)
    return archive


def _manifest(config_blob: bytes, layers: list[Path], digests: list[str]) -> bytes:
    described = [
        {"mediaType": _LAYER_TYPE, "digest": digest, "size": layer.stat().st_size}
        for layer, digest in zip(layers, digests, strict=True)
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": _described(_CONFIG_TYPE, config_blob),
        "layers": described,
    }
    return json.dumps(manifest).encode()


def _described(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _write_archive(archive: Path, blobs: list[bytes], layers: dict[str, Path], index: object) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    entries = [Entry("oci-layout", text='{"imageLayoutVersion":"1.0.0"}', mode=0o644)]
    entries.append(Entry("index.json", text=json.dumps(index), mode=0o644))
    entries += [Entry(_blob_path(_digest(blob)), text=blob.decode(), mode=0o644) for blob in blobs]
    entries += [Entry(_blob_path(digest), file=layer, mode=0o644) for digest, layer in layers.items()]
    write_layer(archive, entries)


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()
