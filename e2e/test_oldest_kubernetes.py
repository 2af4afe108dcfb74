"""The CRDs before the API server of the oldest Kubernetes that the chart takes: its own validation, built from source.

Needs Go only: no cluster.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.toolset import CRDCHECK

pytestmark = pytest.mark.cluster

_REPOSITORY = Path(__file__).parents[1]
_CRDS = sorted((_REPOSITORY / "crds").glob("*.yaml"))
_MATCHED = {"type": "string", "x-kubernetes-validations": [{"rule": "self.matches('a*b*')"}]}


def refusal(definition: str) -> str:
    """What the API server would answer; empty where it accepts the definition."""
    done = subprocess.run([CRDCHECK.built_program("crdcheck")], input=definition, capture_output=True, text=True)
    assert bool(done.returncode) == bool(done.stdout), done.stderr
    return done.stdout


def changed(**properties: Any) -> str:
    """The CRD of LLMServices with more properties of the spec."""
    definition = yaml.safe_load((_REPOSITORY / "crds" / "llmservices.holdfast.dev.yaml").read_text())
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] |= properties
    return yaml.safe_dump(definition)


def test_the_code_is_of_the_oldest_kubernetes_that_the_chart_takes() -> None:
    chart = yaml.safe_load((_REPOSITORY / "charts" / "holdfast" / "Chart.yaml").read_text())
    minor = CRDCHECK.version.split(".")[1]
    assert chart["kubeVersion"] == f">=1.{minor}.0-0"


@pytest.mark.parametrize("path", _CRDS, ids=lambda path: path.stem)
def test_the_oldest_kubernetes_accepts_the_crd(path: Path) -> None:
    assert refusal(path.read_text()) == ""


def test_it_would_refuse_a_rule_that_it_does_not_know() -> None:
    rule = {"rule": "ip.isCanonical(self)", "message": "of Kubernetes 1.30"}
    assert "undeclared reference" in refusal(changed(address={"type": "string", "x-kubernetes-validations": [rule]}))


def test_it_would_refuse_rules_that_cost_too_much() -> None:
    refused = refusal(changed(rows={"type": "array", "items": {"type": "array", "items": _MATCHED}}))
    assert "estimated rule cost exceeds budget" in refused


def test_it_would_refuse_a_field_that_it_does_not_know() -> None:
    assert 'unknown field "' in refusal(changed(rows={"type": "string", "oneOfThem": 1}))
