"""Layers and archives of images."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path

from release.oci import Entry, build_image, read_layer, tree, write_archive, write_index_archive, write_layer


def test_equal_content_gives_an_equal_layer(tmp_path: Path) -> None:
    entries = [Entry("b/two", text="2", mode=0o644), Entry("a", text="1"), Entry("b/link", link="two")]
    first = write_layer(tmp_path / "first", entries)
    second = write_layer(tmp_path / "second", reversed(entries))
    assert first.path.read_bytes() == second.path.read_bytes()
    with tarfile.open(first.path) as layer:
        assert layer.getnames() == ["a", "b", "b/link", "b/two"]


def test_a_layer_is_described_by_what_it_is_and_by_what_it_unpacks_to(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "layer", [Entry("a", text="1")])
    content = layer.path.read_bytes()
    assert layer.digest == "sha256:" + hashlib.sha256(content).hexdigest()
    assert layer.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(content)).hexdigest()
    assert layer.size == len(content)
    assert read_layer(tmp_path / "layer") == layer
    assert read_layer(tmp_path / "other") is None


def test_a_tree_keeps_links_and_of_the_permissions_whether_a_file_can_be_executed(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1")
    (tmp_path / "run").chmod(0o700)
    (tmp_path / "read").write_text("2")
    (tmp_path / "read").chmod(0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("/absolute/target")
    found = {entry.path: (entry.mode, entry.link) for entry in tree(tmp_path)}
    expected = {"run": (0o755, None), "read": (0o644, None), "folder": (0o755, None)}
    assert found == {**expected, "link": (0o755, "/absolute/target")}


def test_a_layer_left_out_is_still_part_of_the_image(tmp_path: Path) -> None:
    lower = write_layer(tmp_path / "lower", [Entry("lower", text="1")])
    upper = write_layer(tmp_path / "upper", [Entry("upper", text="2")])
    image = build_image("amd64", [lower, upper], ["/x"])
    archive = write_archive(tmp_path / "x.tar", "example.local/x:1", image, left_out=[lower])
    blobs = _blobs(archive)
    assert len(json.loads(blobs[image.digest])["layers"]) == 2
    assert len(blobs) == 3
    assert upper.digest in blobs
    assert lower.digest not in blobs


def test_docker_finds_name_settings_and_every_layer_in_the_same_archive(tmp_path: Path) -> None:
    layers = [write_layer(tmp_path / name, [Entry(name, text=name)]) for name in ("lower", "upper")]
    image = build_image("amd64", layers, ["/x"])
    with tarfile.open(write_archive(tmp_path / "x.tar", "example.local/x:1", image)) as content:
        [told] = json.loads(content.extractfile("manifest.json").read())
        settings = json.loads(content.extractfile(told["Config"]).read())
        unpacked = [gzip.decompress(content.extractfile(path).read()) for path in told["Layers"]]
    assert told["RepoTags"] == ["example.local/x:1"]
    assert settings["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in unpacked]


def test_an_archive_of_two_architectures_has_one_entry_from_which_every_blob_is_reached(tmp_path: Path) -> None:
    shared = write_layer(tmp_path / "shared", [Entry("shared", text="1")])
    images = [build_image(name, [shared], ["/x"]) for name in ("amd64", "arm64")]
    archive = write_index_archive(tmp_path / "x.tar", "1.0", images, {"a": "b"})
    with tarfile.open(archive) as content:
        [entry] = json.loads(content.extractfile("index.json").read())["manifests"]
    blobs = _blobs(archive)
    index = json.loads(blobs[entry["digest"]])
    platforms = [manifest["platform"]["architecture"] for manifest in index["manifests"]]
    assert platforms == ["amd64", "arm64"]
    assert set(blobs) == {entry["digest"], shared.digest} | {
        digest for image in images for digest in (image.digest, json.loads(image.manifest)["config"]["digest"])
    }


def _blobs(archive: Path) -> dict[str, bytes]:
    """Digest to content; the digest in the name is the content's."""
    with tarfile.open(archive) as content:
        files = [member for member in content.getmembers() if member.name.startswith("blobs/sha256/")]
        found = {"sha256:" + Path(file.name).name: content.extractfile(file).read() for file in files if file.isfile()}
    assert all(name == "sha256:" + hashlib.sha256(blob).hexdigest() for name, blob in found.items())
    return found
