"""The examples for Flux and Argo CD fit this repository and each other; e2e/test_gitops.py evaluates expressions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.llmservice import API_VERSION, KIND, LLMService
from tests.chart.test_chart import CHART, only, render

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "gitops"
WAVE = "argocd.argoproj.io/sync-wave"
SERVICES = sorted((EXAMPLES / "services").glob("*.yaml"))


def documents(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of a file, by kind and name."""
    found = yaml.safe_load_all((EXAMPLES / name).read_text())
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found}


def chart_values() -> list[dict[str, Any]]:
    """The values that Argo CD and Flux give the chart."""
    application = documents("argocd.yaml")["Application", "holdfast"]
    release = documents("flux.yaml")["HelmRelease", "holdfast"]
    return [application["sources"][0]["helm"]["valuesObject"], release["values"]]


def required_settings() -> set[str]:
    """The settings without which the chart refuses to render."""
    texts = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    return set(re.findall(r'required "[^"]*" \$settings\.(\w+)', texts))


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


@pytest.mark.parametrize("values", chart_values(), ids=["argocd", "flux"])
def test_the_chart_gets_each_value_that_it_requires_and_an_image_in_a_registry(values: dict[str, Any]) -> None:
    required = required_settings()
    assert "prometheusUrl" in required
    assert required <= {name for name, value in values["settings"].items() if value}
    assert "/" in values["image"]["repository"]


@pytest.mark.parametrize("values", chart_values(), ids=["argocd", "flux"])
def test_helm_renders_the_chart_with_the_values_of_the_examples(values: dict[str, Any]) -> None:
    (container,) = only(render(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(values["image"]["repository"] + ":")


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
