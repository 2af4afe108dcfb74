"""The examples for Flux and Argo CD fit this repository and each other; e2e/test_gitops.py evaluates expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.llmservice import API_VERSION, KIND, LLMService

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "gitops"
WAVE = "argocd.argoproj.io/sync-wave"
SERVICES = sorted((EXAMPLES / "services").glob("*.yaml"))


def documents(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of a file, by kind and name."""
    found = yaml.safe_load_all((EXAMPLES / name).read_text())
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found}


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_in_git_are_valid_unpinned_and_come_after_the_operator(path: Path) -> None:
    body = yaml.safe_load(path.read_text())
    meta = body["metadata"]
    service = LLMService.parse({**body, "metadata": {**meta, "uid": "", "generation": 1}})
    assert service.spec.replicas is None
    assert int(meta["annotations"][WAVE]) > 0, "resources without a wave are in wave 0"


def test_nothing_of_the_chart_comes_after_the_services() -> None:
    assert SERVICES
    assert not [path for path in (ROOT / "charts" / "holdfast").rglob("*.yaml") if WAVE in path.read_text()]


def test_argo_cd_applies_the_crd_on_the_server_and_before_it_checks_the_services() -> None:
    application = documents("argocd.yaml")["Application", "holdfast"]
    assert {"ServerSideApply=true", "SkipDryRunOnMissingResource=true"} <= {*application["syncPolicy"]["syncOptions"]}
    chart, services = application["sources"]
    assert (ROOT / chart["path"] / "Chart.yaml").exists()
    assert (EXAMPLES / services["path"]).is_dir()


def test_flux_waits_for_the_services_with_the_expressions() -> None:
    found = documents("flux.yaml")
    services, release = found["Kustomization", "llm-services"], found["HelmRelease", "holdfast"]
    assert services["wait"] is True
    assert (ROOT / release["chart"]["spec"]["chart"] / "Chart.yaml").exists()
    assert (EXAMPLES / services["path"]).is_dir()
    (check,) = services["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == (API_VERSION, KIND)
    for user in (services, release["chart"]["spec"]):
        source = user["sourceRef"]
        assert (source["kind"], source["name"]) in found
