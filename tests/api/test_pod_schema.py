"""Every part of a pod that users write has a depth and types; what does not fit is named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.toolset import KUBERNETES
from holdfast.api.llmbenchmark import InvalidLLMBenchmark, LLMBenchmark
from holdfast.api.llmservice import InvalidLLMService, LLMService
from holdfast.api.pod_schema import faults, schema_of
from holdfast.api.template_rules import validate_template
from tests.api import benchmark_refusals
from tests.api.refusals import H100, changed

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_pod_schema.py"


class Whole(dict[str, Any]):
    """Not copied on the way: copying knows no bottom."""

    def __deepcopy__(self, memo: object) -> Whole:
        return self


def nested(levels: int) -> Whole:
    value = Whole()
    for _ in range(levels):
        value = Whole(q=value)
    return value


def template(value: Any) -> dict[str, Any]:
    return {"template": {"spec": value}}


PARTS: list[tuple[str, Callable[[Any], dict[str, Any]]]] = [
    ("spec.template.spec", template),
    ("spec.template.metadata", lambda deep: {"template": {"metadata": deep}}),
    ("spec.template.spec.containers", lambda deep: template({"containers": [{"name": "a", "lifecycle": deep}]})),
    ("spec.accelerators", lambda deep: {"accelerators": [{**H100, "template": {"spec": deep}}]}),
    ("spec.engine.resources", lambda deep: {"engine": {"resources": deep}}),
    ("spec.engine.env", lambda deep: {"engine": {"env": [{"name": "A", "valueFrom": deep}]}}),
    ("spec.accelerators", lambda deep: {"accelerators": [{**H100, "tolerations": [deep]}]}),
]


@pytest.mark.parametrize("levels", [20, 200, 9_990])
@pytest.mark.parametrize(("part", "spec"), PARTS)
def test_a_deep_object_is_refused_in_each_part_with_its_field(
    part: str, spec: Callable[[Any], dict[str, Any]], levels: int
) -> None:
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(changed(spec(nested(levels))))
    assert str(refusal.value).startswith(part)
    assert "remove" in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("levels", [20, 200, 9_990])
def test_a_deep_object_in_a_benchmark_is_refused_with_its_field(levels: int) -> None:
    body = benchmark_refusals.benchmark({"resources": nested(levels)})
    with pytest.raises(InvalidLLMBenchmark, match=r"^spec\.resources\.q"):
        LLMBenchmark.parse(body)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (template({"volumes": {"name": "v"}}), "spec.template.spec.volumes: must be a list"),
        (template({"volumes": [["v"]]}), "spec.template.spec.volumes[0]: must be an object"),
        (template({"hostNetwork": "true"}), "spec.template.spec.hostNetwork: must be true or false"),
        (template({"priority": "9"}), "spec.template.spec.priority: must be a whole number"),
        (template({"nodeSelector": {"a": True}}), "spec.template.spec.nodeSelector.a: must be a string"),
        (template({"ephemeralContainers": []}), "spec.template.spec.ephemeralContainers: unknown field"),
        (template({"containers": [{"name": "a", "imagePullPolcy": "x"}]}), "containers[0].imagePullPolcy: unknown"),
        ({"template": {"kind": "Pod"}}, "spec.template.kind: unknown field"),
        ({"engine": {"resources": {"limits": {"cpu": 0.5}}}}, "resources.limits.cpu: must be a whole number or a str"),
        ({"engine": {"resources": {"limit": {}}}}, "spec.engine.resources.limit: unknown field"),
        ({"engine": {"env": [{"name": "A", "value": 1}]}}, "spec.engine.env[0].value: must be a string"),
        ({"accelerators": [{**H100, "tolerations": [{"tolerationSeconds": "1"}]}]}, "tolerationSeconds: must be a wh"),
    ],
)
def test_what_is_no_part_of_a_pod_is_named_with_the_remedy(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(changed(spec))
    assert problem in str(refusal.value)


def test_several_faults_are_named_together_and_not_more_than_five() -> None:
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(changed(template({f"q{index}": 1 for index in range(9)})))
    assert str(refusal.value).count("unknown field") == 5


def test_a_whole_pod_of_the_other_kind_of_manifest_fits() -> None:
    pod = {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]}]}}}]}},
        "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}],
        "securityContext": {"runAsUser": None}, "schedulingGates": [{"name": "g"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "r"}],
    }  # fmt: skip
    assert list(faults(pod, schema_of("PodSpec"))) == []
    body = changed({"template": {"metadata": {"creationTimestamp": None}, "spec": pod}})
    assert validate_template(LLMService.parse(body).spec.template or {}) == []


def test_the_types_are_those_of_the_pinned_kubernetes() -> None:
    found = importlib.util.spec_from_file_location("make_pod_schema", SCRIPT)
    assert found
    assert found.loader
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    sources = Path.home() / "go" / "pkg" / "mod" / "k8s.io" / f"kubernetes@v{KUBERNETES.version}"
    if not (sources / script.SPECIFICATION).exists():
        pytest.skip(f"the sources of Kubernetes {KUBERNETES.version} are not here: run `make programs`")
    assert script.PACKAGE_FILE.read_text(encoding="utf-8") == script.text(sources)


@pytest.mark.parametrize("amount", ["80gb", "80 Gi", "80GB", "eighty", "", "80Gib", "NaN", "Inf", "0x10", "1,5", "80K"])
def test_an_amount_that_kubernetes_cannot_read_is_named_with_its_field(amount: str) -> None:
    for kind in ("requests", "limits"):
        (found,) = faults({kind: {"memory": amount}}, schema_of("ResourceRequirements"))
        assert found == (
            f".{kind}.memory",
            f"{amount!r} is no amount of a resource: write a number and a unit, such as 80Gi, 500m or 2",
        )


@pytest.mark.parametrize("amount", ["80Gi", "80G", "500m", "2", 2, "1.5", ".5", "1e3", "12E6", "100k", "+1", "1u"])
def test_an_amount_that_kubernetes_reads_is_taken(amount: object) -> None:
    assert list(faults({"limits": {"memory": amount}}, schema_of("ResourceRequirements"))) == []
