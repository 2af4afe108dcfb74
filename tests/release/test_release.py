"""What `make release` writes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.toolset import HELM
from release import chart
from release.__main__ import KEY_VARIABLE, TRIAL, Inputs, ReleaseError, make, sign
from release.interpreter import PACKAGES_FOLDER
from release.notes import NotesError, of_version, readme, with_image
from release.pins import ARCHITECTURES, IMAGE_PACKAGES

INPUTS = Inputs("0.1.0", "registry.example.com/team", "https://docs.example.com/h", "https://git.example.com/h")
# The number of each architecture in the header of a program.
ELF_MACHINES = {"amd64": 62, "arm64": 183}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release in a folder."""
    target = tmp_path_factory.mktemp("release") / "dist"
    make(INPUTS, target)
    return target


class Archive:
    """The image of one architecture out of a release's OCI archive."""

    def __init__(self, archive: tarfile.TarFile, architecture: str) -> None:
        self._archive = archive
        [entry] = json.loads(self._read("index.json"))["manifests"]
        index = json.loads(self._blob(entry["digest"]))
        [described] = [found for found in index["manifests"] if found["platform"]["architecture"] == architecture]
        self.digest: str = described["digest"]
        self.manifest: dict[str, Any] = json.loads(self._blob(self.digest))
        self.config: dict[str, Any] = json.loads(self._blob(self.manifest["config"]["digest"]))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Path and first 20 bytes of every file in the image."""
        for described in self.manifest["layers"]:
            with tarfile.open(fileobj=self._archive.extractfile(_path(described["digest"])), mode="r:gz") as layer:
                for member in layer:
                    if member.isfile():
                        yield member.name, layer.extractfile(member).read(20)

    def _blob(self, digest: str) -> bytes:
        return self._read(_path(digest))

    def _read(self, name: str) -> bytes:
        return self._archive.extractfile(name).read()


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestWhatIsInTheFolder:
    def test_every_artefact_is_there_and_has_its_checksum(self, dist: Path) -> None:
        sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
        assert set(sums) == {file.name for file in dist.iterdir()} - {"SHA256SUMS"}
        assert set(sums) == {
            "README.md",
            "RELEASE_NOTES.md",
            "holdfast-0.1.0.tgz",
            "holdfast-image-0.1.0.oci.tar",
            "holdfast_operator-0.1.0-py3-none-any.whl",
            "holdfast_operator-0.1.0.tar.gz",
            *(f"no-gpu-{file.name}" for file in TRIAL.glob("*.yaml")),
            *(f"holdfast-image-0.1.0-{name}.{form}.json" for name in ARCHITECTURES for form in ("cdx", "spdx")),
        }
        for name, expected in sums.items():
            assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == expected

    def test_the_same_inputs_give_the_same_files(self, dist: Path, tmp_path: Path) -> None:
        make(INPUTS, tmp_path / "again")
        assert (tmp_path / "again" / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_programs_are_of_the_images_architecture(self, dist: Path, architecture: str) -> None:
        with tarfile.open(dist / "holdfast-image-0.1.0.oci.tar") as archive:
            image = Archive(archive, architecture)
            assert image.config["architecture"] == architecture
            programs = {name: start for name, start in image.files() if start.startswith(b"\x7fELF")}
        assert len(programs) > 100
        wrong = [name for name, start in programs.items() if start[18] != ELF_MACHINES[architecture]]
        assert wrong == []

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("form", ["cdx", "spdx"])
    def test_the_bill_of_materials_names_every_package_in_the_image(
        self, dist: Path, architecture: str, form: str
    ) -> None:
        document = json.loads((dist / f"holdfast-image-0.1.0-{architecture}.{form}.json").read_text())
        told = {part["name"] for part in document["components" if form == "cdx" else "packages"]}
        with tarfile.open(dist / "holdfast-image-0.1.0.oci.tar") as archive:
            image = Archive(archive, architecture)
            names = [name for name, _ in image.files()]
        assert image.digest.removeprefix("sha256:") in json.dumps(document)
        debs = {Path(name).name for name in names if name.startswith("var/lib/dpkg/status.d/")}
        installed = (re.match(rf"{PACKAGES_FOLDER}/([^/]+)-[^/-]+\.dist-info/METADATA", name) for name in names)
        wheels = {re.sub(r"[-_.]+", "-", found.group(1)).lower() for found in installed if found}
        assert debs == set(IMAGE_PACKAGES)
        assert {"kopf", "numba", "numpy"} <= wheels
        # The project itself is what the document is about.
        assert debs | wheels - {"holdfast-operator"} <= told

    def test_both_architectures_have_the_same_libraries(self, dist: Path) -> None:
        documents = [json.loads((dist / f"holdfast-image-0.1.0-{name}.cdx.json").read_text()) for name in ARCHITECTURES]
        one, other = (
            {(part["name"], part["version"]) for part in document["components"] if "pypi" in part["purl"]}
            for document in documents
        )
        assert one == other

    def test_identifiers_in_a_bill_of_materials_are_unique(self, dist: Path) -> None:
        document = json.loads((dist / "holdfast-image-0.1.0-amd64.spdx.json").read_text())
        identifiers = [package["SPDXID"] for package in document["packages"]]
        assert len(set(identifiers)) == len(identifiers)

    def test_the_wheel_has_its_name_from_the_index_and_the_modules_theirs(self, dist: Path) -> None:
        with zipfile.ZipFile(dist / "holdfast_operator-0.1.0-py3-none-any.whl") as wheel:
            names = wheel.namelist()
            about = wheel.read("holdfast_operator-0.1.0.dist-info/METADATA").decode()
        assert "Name: holdfast-operator\n" in about
        assert {name.split("/")[0] for name in names} == {
            "holdfast",
            "holdfast_engine",
            "holdfast_operator-0.1.0.dist-info",
        }
        assert {"holdfast/py.typed", "holdfast/twin/peers/hpa.py"} <= set(names)

    def test_the_readme_installs_from_the_registry_of_the_release(self, dist: Path) -> None:
        text = (dist / "README.md").read_text()
        assert "helm upgrade --install holdfast oci://registry.example.com/team/charts/holdfast --version 0.1.0" in text
        assert INPUTS.site in text
        assert INPUTS.repository in text


def test_the_readme_starts_the_trial_without_a_gpu_from_the_files_beside_it() -> None:
    text = readme(INPUTS.version, INPUTS.registry, INPUTS.site, INPUTS.repository)
    _, trial = text.split("Or try it without a GPU")
    install, apply = trial.split("```")[1].replace("\\\n", "").splitlines()[1:]
    assert "oci://registry.example.com/team/charts/holdfast --version 0.1.0" in install
    given = [line.split()[-1] for line in (install, apply)]
    assert given == ["no-gpu-values.yaml", "no-gpu-trial.yaml"]
    assert set(given) == {f"no-gpu-{file.name}" for file in TRIAL.glob("*.yaml")}


def _chart(tmp_path: Path, inputs: Inputs) -> Path:
    archive = chart.package(tmp_path, inputs.version, inputs.registry, inputs.site, inputs.repository)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "holdfast"


def test_the_packaged_chart_carries_the_releases_inputs(tmp_path: Path) -> None:
    folder = _chart(tmp_path, INPUTS)
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == ("0.1.0", "0.1.0")
    assert (about["home"], about["sources"]) == (INPUTS.site, [INPUTS.repository])
    assert about["icon"].startswith(INPUTS.site)
    assert {"category", "license", "operator", "crds", "images", "links", "changes"} <= {
        name.removeprefix("artifacthub.io/") for name in about["annotations"]
    }
    values = yaml.safe_load((folder / "values.yaml").read_text())
    assert values["image"]["repository"] == "registry.example.com/team/holdfast"
    assert "oci://registry.example.com/team/charts/holdfast --version 0.1.0" in (folder / "README.md").read_text()
    rules = yaml.safe_load((folder / "files/monitoring/rules.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert {alert["annotations"]["runbook_url"] for alert in alerts} == {f"{INPUTS.site}/docs/monitoring.md#alerts"}


def test_a_chart_without_addresses_names_none(tmp_path: Path) -> None:
    folder = _chart(tmp_path, Inputs("0.2.0-rc.1", "", "", ""))
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert not {"home", "icon", "sources"} & set(about)
    assert about["annotations"]["artifacthub.io/prerelease"] == "true"
    assert "runbook_url" not in (folder / "files/monitoring/rules.yaml").read_text()
    assert yaml.safe_load((folder / "values.yaml").read_text())["image"]["repository"] == "REGISTRY/holdfast"


def test_helm_renders_the_packaged_chart_with_the_image_of_the_release(tmp_path: Path) -> None:
    helm = HELM.program("helm")
    if not helm.exists():
        pytest.skip("helm is not built: make build")
    archive = chart.package(tmp_path, "0.1.0", INPUTS.registry, INPUTS.site, INPUTS.repository)
    settings = ["--set", "settings.prometheusUrl=http://p:9090"]
    lint = subprocess.run([helm, "lint", "--strict", archive, *settings], capture_output=True, text=True, check=False)
    assert lint.returncode == 0, lint.stdout
    rendered = subprocess.run([helm, "template", "h", archive, *settings], capture_output=True, text=True, check=True)
    assert 'image: "registry.example.com/team/holdfast:0.1.0"' in rendered.stdout


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"version": ""}, "VERSION"),
        ({"version": "v0.1.0"}, "VERSION"),
        ({"version": "1.0"}, "VERSION"),
        ({"version": "01.0.0"}, "VERSION"),
        ({"version": "0.1.0-rc1"}, "VERSION"),
        ({"registry": "https://registry.example.com"}, "REGISTRY"),
        ({"registry": "Registry.example.com"}, "REGISTRY"),
        ({"site": "docs.example.com"}, "SITE"),
        ({"repository": 'https://git.example.com/"'}, "REPOSITORY"),
        ({"repository": "git@git.example.com:h"}, "REPOSITORY"),
    ],
)
def test_a_wrong_input_is_named_with_an_example(changed: dict[str, str], name: str) -> None:
    given = {"version": "0.1.0", "registry": "", "site": "", "repository": "", **changed}
    with pytest.raises(ReleaseError, match=f"^{name}=.*: give "):
        Inputs(**given).checked()


def test_trailing_slashes_do_not_end_up_in_addresses() -> None:
    assert Inputs("0.1.0", "a.example/t/", "https://b.example/", "https://c.example/").checked() == Inputs(
        "0.1.0", "a.example/t", "https://b.example", "https://c.example"
    )


def test_notes_are_the_versions_own_section_and_else_what_is_not_released_yet() -> None:
    changelog = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- old\n"
    assert of_version("0.1.0", changelog) == "# Holdfast 0.1.0\n\n- old\n"
    assert of_version("0.2.0", changelog) == "# Holdfast 0.2.0\n\n- new\n"
    with pytest.raises(NotesError, match=r"\[0\.3\.0\]"):
        of_version("0.3.0", "# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n\n- old\n")


def test_the_files_of_the_trial_name_the_image_of_the_release() -> None:
    text = "repository: REGISTRY/holdfast\nimage: REGISTRY/holdfast:0.1.0\n# REGISTRY is the registry\n"
    assert with_image(text, "0.2.0", "r.example/t") == (
        "repository: r.example/t/holdfast\nimage: r.example/t/holdfast:0.2.0\n# REGISTRY is the registry\n"
    )
    assert with_image(text, "0.2.0", "") == text.replace("0.1.0", "0.2.0")


def test_a_release_without_a_key_says_that_it_is_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "SHA256SUMS").write_text("x")
    sign(tmp_path)
    assert "NOT SIGNED: HOLDFAST_SIGNING_KEY is empty" in capsys.readouterr().out
    assert not (tmp_path / "SHA256SUMS.sig").exists()


def test_a_signature_is_verified_with_the_public_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    key = subprocess.run(generate, capture_output=True, text=True, check=True).stdout
    public = subprocess.run(
        ["openssl", "pkey", "-pubout"], input=key, capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "public.pem").write_text(public)
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("x")
    monkeypatch.setenv(KEY_VARIABLE, key)
    sign(tmp_path)
    verify = ["openssl", "dgst", "-sha256", "-verify", tmp_path / "public.pem", "-signature", f"{sums}.sig", sums]
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 0
    sums.write_text("y")
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 1


def test_a_wrong_key_is_refused_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SHA256SUMS").write_text("x")
    monkeypatch.setenv(KEY_VARIABLE, "no key at all")
    with pytest.raises(ReleaseError, match=f"^{KEY_VARIABLE} is no private key in PEM form") as caught:
        sign(tmp_path)
    assert "at all" not in str(caught.value)
