"""The image: the same from the same inputs, whatever was built before and wherever."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.cache import cache_folder, exclusive
from e2e.cluster.images import project
from release import own
from release.image import Builder
from release.interpreter import PACKAGES_FOLDER, own_architecture
from release.oci import Image
from release.pins import available

# The first build fetches packages and wheels.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def image() -> Image:
    """The image that the cluster of the tests runs."""
    with exclusive("images"):
        return project().image(own.project_version())


def test_an_empty_folder_gets_the_same_digest_as_the_image_that_the_cluster_runs(image: Image, tmp_path: Path) -> None:
    again = Builder(own_architecture(), tmp_path / "layers", available(own_architecture())).image(own.project_version())
    assert [layer.diff_id for layer in again.layers] == [layer.diff_id for layer in image.layers]
    assert again.digest == image.digest


def test_two_wheels_and_two_source_distributions_of_the_same_files_are_equal(tmp_path: Path) -> None:
    for build in (own.build_wheel, own.build_source):
        first, second = (build(tmp_path / folder, "0.1.0") for folder in ("first", "second"))
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()


def test_the_image_runs_the_program_as_nobody(image: Image) -> None:
    settings = json.loads(image.config)["config"]
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["/usr/local/bin/holdfast"]


def test_a_change_of_the_code_is_alone_in_the_last_layer(image: Image) -> None:
    with tarfile.open(image.layers[-1].path) as layer:
        files = [member.name for member in layer if member.isfile()]
    assert f"{PACKAGES_FOLDER}/holdfast/cli/main.py" in files
    packages = {Path(name).relative_to(PACKAGES_FOLDER).parts[0] for name in files if name.startswith("usr/local/lib")}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"holdfast", "holdfast_engine"}


def test_no_time_owner_or_folder_of_the_build_is_in_the_image(image: Image) -> None:
    here = str(cache_folder()).encode()
    for described in image.layers:
        with tarfile.open(described.path) as layer:
            for member in layer:
                assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, ""), member.name
                assert not member.mode & 0o6000, member.name
                if member.name.endswith(".pyc"):
                    assert here not in layer.extractfile(member).read(), member.name


def test_every_module_is_compiled(image: Image) -> None:
    # A container's root file system is read-only, so that what is not compiled is compiled at every start.
    for described in image.layers:
        with tarfile.open(described.path) as layer:
            names = set(layer.getnames())
        modules = {Path(name) for name in names if name.endswith(".py")}
        compiled = {path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc" for path in modules}
        assert len(compiled - set(map(Path, names))) <= 3, described.path.name
