"""`make trial`: which cluster the kubeconfig names, what its program is asked for, and what is refused.

kubectl is the real one; kind, minikube and k3d are programs on PATH that write down what they are asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import trial
from e2e.cluster.images import Image
from e2e.cluster.toolset import KUBERNETES
from e2e.trial import TrialError
from tests.chart.test_chart import CHART, _helm, only
from tests.chart.test_chart import _program as program

ARCHIVE = Path("/images/trial.tar")
REFERENCE = "holdfast.local/holdfast:123456789012"
MINIKUBE = [{"name": "cluster_info", "extension": {"provider": "minikube.sigs.k8s.io", "version": "v1.38.0"}}]
KIND, K3D = ("kind-a-b", "kind load image-archive", "--name a-b"), ("k3d-dev", "k3d image import", "--cluster dev")
CLUSTERS: dict[str, tuple[str, list[Any], str, str]] = {
    "kind": (KIND[0], [], *KIND[1:]),
    "k3d": (K3D[0], [], *K3D[1:]),
    "minikube": ("minikube", [], "minikube image load", "--profile minikube"),
    "a profile of minikube": ("work", MINIKUBE, "minikube image load", "--profile work"),
    "a profile of minikube that looks like kind's": ("kind-x", MINIKUBE, "minikube image load", "--profile kind-x"),
}


def kubeconfig(
    cluster: str, extensions: list[Any], context: str = "renamed", chosen: str = "renamed"
) -> dict[str, Any]:
    """A kubeconfig of two clusters of which the current context names one."""
    entry = {"server": "https://10.0.0.1:6443", **({"extensions": extensions} if extensions else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": chosen,
        "clusters": [{"name": "other", "cluster": {"server": "https://o"}}, {"name": cluster, "cluster": entry}],
        "contexts": [
            {"name": "other", "context": {"cluster": "other", "user": "u"}},
            {"name": context, "context": {"cluster": cluster, "user": "u"}},
        ],
        "users": [{"name": "u", "user": {}}],
    }


class Machine:
    """A machine with a kubeconfig, the real kubectl, and stand-ins of the clusters' programs."""

    def __init__(self, folder: Path, config: dict[str, Any], *programs: str, code: int = 0) -> None:
        self._asked = folder / "asked"
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        (folder / "kubectl").symlink_to(program("kubectl", KUBERNETES.program("kubectl")))
        for name in programs:
            written = f'#!/bin/sh\necho "$0 $*" >> {self._asked}\necho "no space left" >&2\nexit {code}\n'
            (folder / name).write_text(written)
            (folder / name).chmod(0o755)
        self.environment = {"PATH": str(folder), "KUBECONFIG": str(folder / "kubeconfig")}
        self._folder = folder

    def asked(self) -> list[str]:
        """What the stand-ins were asked for."""
        text = self._asked.read_text() if self._asked.exists() else ""
        return [line.removeprefix(f"{self._folder}/") for line in text.splitlines()]

    def load(self) -> None:
        """Load an image as `make trial` does."""
        trial.into_the_cluster(self.environment, lambda: Image(REFERENCE, ARCHIVE))


@pytest.mark.parametrize(("cluster", "extensions", "command", "named"), CLUSTERS.values(), ids=CLUSTERS.keys())
def test_the_program_of_the_current_cluster_alone_is_asked_for_the_image(
    tmp_path: Path, cluster: str, extensions: list[Any], command: str, named: str
) -> None:
    machine = Machine(tmp_path, kubeconfig(cluster, extensions), "kind", "minikube", "k3d")
    machine.load()
    assert machine.asked() == [f"{command} {ARCHIVE} {named}"]


@pytest.mark.parametrize("cluster", ["prod", "kindly", "k3dx", "gke_team_eu_minikube"])
def test_a_cluster_of_another_kind_is_named_and_nothing_is_built(tmp_path: Path, cluster: str) -> None:
    machine = Machine(tmp_path, kubeconfig(cluster, []), "kind", "minikube", "k3d")
    with pytest.raises(TrialError) as refused:
        trial.into_the_cluster(machine.environment, lambda: pytest.fail("built"))
    assert f"context renamed is cluster {cluster} at https://10.0.0.1:6443" in str(refused.value)
    assert "none of kind, minikube and k3d" in str(refused.value)
    assert "`make release publish`" in str(refused.value)
    assert machine.asked() == []


@pytest.mark.parametrize("config", [{}, kubeconfig("kind-a", [], chosen="gone"), kubeconfig("kind-a", [], chosen="")])
def test_a_kubeconfig_without_a_current_cluster_gets_the_remedy(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(TrialError, match=r"start one \(`kind create cluster`.* or choose its context with `kubectl"):
        Machine(tmp_path, config, "kind").load()


def test_a_missing_program_is_named_before_anything_is_built(tmp_path: Path) -> None:
    machine = Machine(tmp_path, kubeconfig("kind-a", []))
    with pytest.raises(TrialError, match="kind is not on PATH: install it"):
        trial.into_the_cluster(machine.environment, lambda: pytest.fail("built"))
    with pytest.raises(TrialError, match="kubectl is not on PATH: install it"):
        trial.into_the_cluster({"PATH": str(tmp_path / "nowhere")}, lambda: pytest.fail("built"))


def test_a_program_that_fails_is_quoted_with_its_command(tmp_path: Path) -> None:
    machine = Machine(tmp_path, kubeconfig("k3d-dev", []), "k3d", code=1)
    with pytest.raises(TrialError, match=f"k3d image import {ARCHIVE} --cluster dev: no space left; look whether"):
        machine.load()


def test_the_files_name_the_image_that_was_loaded_and_no_placeholder(tmp_path: Path) -> None:
    trial.write_files(REFERENCE, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"values.yaml", "trial.yaml"}
    service, load = yaml.safe_load_all((tmp_path / "trial.yaml").read_text())
    pod = load["spec"]["template"]["spec"]
    containers = [*pod["initContainers"], *pod["containers"]]
    assert {service["spec"]["engine"]["image"], *(each["image"] for each in containers)} == {REFERENCE}
    done = _helm("template", "holdfast", str(CHART), values=yaml.safe_load((tmp_path / "values.yaml").read_text()))
    assert done.returncode == 0, done.stderr
    deployment = only(tuple(filter(None, yaml.safe_load_all(done.stdout))), "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == REFERENCE
    assert json.dumps([service, load]).count("REGISTRY") == 0
