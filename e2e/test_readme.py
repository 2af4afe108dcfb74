"""The README's trial without a GPU: its code blocks and nothing else, in order, until the SLO is kept.

In a cluster of its own, as empty as a reader's:
python -m e2e.cluster run -- python -m pytest e2e/test_readme.py
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from e2e import stack
from e2e.cluster import images
from e2e.kubectl import Kubectl, condition
from e2e.patience import patient
from release import chart, own

pytestmark = pytest.mark.cluster

_SECTION = "## Try it without a GPU"
_REPOSITORY, _, _TAG = images.HOLDFAST_IMAGE.partition(":")
_PROMETHEUS, _, _PROMETHEUS_TAG = images.PROMETHEUS_IMAGE.partition(":")
IMAGES = {
    "REGISTRY/holdfast:0.1.0": images.HOLDFAST_IMAGE,
    "repository: REGISTRY/holdfast\n": f"repository: {_REPOSITORY}\n  tag: {_TAG}\n",
    "repository: prom/prometheus\n    tag: v3.15.0": f"repository: {_PROMETHEUS}\n    tag: {_PROMETHEUS_TAG}",
}
"""What a reader of a checkout replaces in examples/no-gpu, and the Prometheus of a cluster without Docker Hub."""


def blocks(section: str) -> list[str]:
    """Return the shell blocks of a section of the README."""
    text = (stack.REPOSITORY / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{re.escape(section)}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", found, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The files that the blocks name: the chart as it is packaged, and the examples with the images of this cluster."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(stack.REPOSITORY / "examples/no-gpu", folder / "examples/no-gpu")
    with tarfile.open(chart.package(folder, own.project_version(), registry="", site="", repository="")) as packaged:
        packaged.extractall(folder / "charts", filter="data")
    written = list((folder / "examples/no-gpu").iterdir())
    for old, new in IMAGES.items():
        texts = {path: path.read_text(encoding="utf-8") for path in written}
        assert any(old in text for text in texts.values()), old
        for path, text in texts.items():
            path.write_text(text.replace(old, new), encoding="utf-8")
    yield folder
    Kubectl().run("delete", "--ignore-not-found", "--filename", str(folder / "examples/no-gpu/trial.yaml"))


def test_the_readmes_blocks_alone_reach_a_kept_slo_in_two_commands(cluster: str, checkout: pathlib.Path) -> None:
    install, watch = blocks(_SECTION)
    assert [line.split()[0] for line in install.replace("\\\n", "").splitlines()] == ["helm", "kubectl"]
    for block in (install, watch):
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", block],
            cwd=checkout, env=os.environ, capture_output=True, text=True, timeout=patient(600.0), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^trial +", done.stdout, re.MULTILINE), done.stdout
    trial = Kubectl().get_json("llms", "trial")
    assert condition(trial, "SLOMet")["status"] == "True"
    assert condition(trial, "CapacityAvailable")["message"] == "every desired replica has a node"
