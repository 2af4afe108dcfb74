"""What platforms want of the chart: ids, security contexts, labels, names, digests, placement and a proxy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from holdfast.api.llmservice import DEFAULT_ENGINE_IMAGE, LLMService
from tests.chart.test_chart import CHART, TRIAL, URL, _helm, only, parsed_settings, pod_spec, refusal, render

PLATFORMS = (CHART.parents[1] / "docs/platforms.md").read_text()
SELECTED = {
    "app.kubernetes.io/name": "holdfast",
    "app.kubernetes.io/instance": "holdfast",
    "app.kubernetes.io/component": "operator",
}


@pytest.mark.parametrize("name", ["holdfast", "holdfast-prometheus"])
def test_one_value_leaves_all_ids_to_the_platform(name: str) -> None:
    objects = render({**TRIAL, "settings": {"platformAssignsIds": True}})
    assert parsed_settings(objects).platform_assigns_ids
    assert pod_spec(objects, name)["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_security_contexts_can_be_overridden_field_by_field() -> None:
    objects = render({
        **TRIAL,
        "podSecurityContext": {"runAsUser": 1000660001, "fsGroup": None},
        "securityContext": {"readOnlyRootFilesystem": None, "seLinuxOptions": {"level": "s0:c26,c5"}},
    })  # fmt: skip
    ours, prometheus = pod_spec(objects), pod_spec(objects, "holdfast-prometheus")
    assert (ours["securityContext"]["runAsUser"], ours["securityContext"]["runAsGroup"]) == (1000660001, 65532)
    assert "fsGroup" not in ours["securityContext"]
    assert prometheus["securityContext"]["fsGroup"] == 65534
    for pod in (ours, prometheus):
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seLinuxOptions": {"level": "s0:c26,c5"},
        }


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector() -> None:
    common = {"team": "ml", "cost-centre": "42"}
    monitoring = {"podMonitor": {"enabled": True, "labels": {"team": "monitoring"}}, "dashboards": {"enabled": True}}
    objects = render({**TRIAL, "commonLabels": common, "podLabels": {"team": "pods"}, "monitoring": monitoring})
    nearer = {"PodMonitor": "monitoring"}
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            expected = {**common, "team": nearer.get(item["kind"], "ml")}
            assert item["metadata"]["labels"].items() >= expected.items(), item["metadata"]["name"]
    for name, team in (("holdfast", "pods"), ("holdfast-prometheus", "ml")):
        deployment = only(objects, "Deployment", name)["spec"]
        assert deployment["template"]["metadata"]["labels"].items() >= {**common, "team": team}.items()
        assert not common.keys() & deployment["selector"]["matchLabels"].keys()


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("holdfast", {}, "holdfast"),
        ("prod", {}, "prod-holdfast"),
        ("prod", {"nameOverride": "slo"}, "prod-slo"),
        ("prod-slo", {"nameOverride": "slo"}, "prod-slo"),
        ("holdfast", {"nameOverride": "slo"}, "holdfast-slo"),
        ("prod", {"nameOverride": "slo", "fullnameOverride": "mine"}, "mine"),
        ("r" * 53, {"nameOverride": "slo"}, "r" * 52),
    ],
)
def test_names_can_be_overridden_in_part_or_whole(release: str, values: dict[str, Any], name: str) -> None:
    done = _helm("template", release, str(CHART), values={**URL, **values})
    assert done.returncode == 0, done.stderr
    deployment = only(tuple(filter(None, yaml.safe_load_all(done.stdout))), "Deployment", name)
    assert deployment["spec"]["selector"]["matchLabels"] == {**SELECTED, "app.kubernetes.io/instance": release}


def test_a_digest_names_the_image_in_place_of_the_tag() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    image = {"repository": "registry.example/holdfast", "tag": "dev", "digest": digest}
    objects = render({"image": image, "prometheus": {"enabled": True, "image": {"digest": digest}}})
    assert pod_spec(objects)["containers"][0]["image"] == f"registry.example/holdfast@{digest}"
    assert parsed_settings(objects).activator_image == f"registry.example/holdfast@{digest}"
    assert pod_spec(objects, "holdfast-prometheus")["containers"][0]["image"] == f"prom/prometheus@{digest}"


def test_a_constraint_without_a_selector_counts_the_operators_own_pods() -> None:
    zones = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    chosen = {**zones, "labelSelector": {"matchLabels": {"a": "b"}}}
    (default,) = pod_spec(render(URL))["topologySpreadConstraints"]
    assert (default["topologyKey"], default["labelSelector"]) == ("kubernetes.io/hostname", {"matchLabels": SELECTED})
    given = pod_spec(render({**URL, "topologySpreadConstraints": [zones, chosen]}))["topologySpreadConstraints"]
    assert given == [{**zones, "labelSelector": {"matchLabels": SELECTED}}, chosen]
    assert "topologySpreadConstraints" not in pod_spec(render({**URL, "topologySpreadConstraints": []}))


def test_a_proxy_may_run_next_to_the_operator() -> None:
    proxy = {"name": "sigv4", "image": "registry.example/proxy:1", "args": ["--port=:8005"]}
    operator, beside = pod_spec(render({**URL, "extraContainers": [proxy]}))["containers"]
    assert operator["name"] == "holdfast"
    assert beside == proxy


def test_the_operators_service_has_its_metrics_and_the_status_page_where_it_is_on() -> None:
    (metrics,) = only(render(URL), "Service")["spec"]["ports"]
    assert (metrics["name"], metrics["port"], metrics["targetPort"]) == ("http", 8080, "http")
    service = only(render({"settings": {**URL["settings"], "statusPort": 8090, "statusOpen": True}}), "Service")["spec"]
    assert service["selector"] == SELECTED
    assert [(port["name"], port["port"], port["targetPort"]) for port in service["ports"]] == [
        ("http", 8080, "http"),
        ("status", 8090, "status"),
    ]
    assert not [item for item in render({**URL, "service": {"enabled": False}}) if item["kind"] == "Service"]


def test_a_service_monitor_finds_the_service_and_no_pod_is_scraped_twice() -> None:
    monitor = {"enabled": True, "interval": "30s", "labels": {"release": "kps"}}
    objects = render({**URL, "monitoring": {"serviceMonitor": monitor}})
    found, service = only(objects, "ServiceMonitor"), only(objects, "Service")
    assert found["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert found["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]
    assert found["metadata"]["labels"]["release"] == "kps"
    assert "prometheus.io/scrape" not in (
        only(objects, "Deployment")["spec"]["template"]["metadata"].get("annotations") or {}
    )
    both = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    assert "enable one of them" in refusal({**URL, "monitoring": both})
    without = {**URL, "service": {"enabled": False}, "monitoring": {"serviceMonitor": {"enabled": True}}}
    assert "service.enabled=true" in refusal(without)


def test_network_policies_admit_the_named_peers_and_the_pods_that_need_each_other() -> None:
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    wanted = {
        "networkPolicy": {"enabled": True, "from": [monitoring]},
        "settings": {"statusPort": 8090, "statusOpen": True},
    }
    objects = render({**TRIAL, **wanted})
    ours, prometheus = (only(objects, "NetworkPolicy", name)["spec"] for name in ("holdfast", "holdfast-prometheus"))
    of_prometheus = {"podSelector": {"matchLabels": {**SELECTED, "app.kubernetes.io/component": "prometheus"}}}
    assert (ours["policyTypes"], prometheus["policyTypes"]) == (["Ingress"], ["Ingress"])
    assert ours["podSelector"]["matchLabels"] == SELECTED
    (admitted,) = ours["ingress"]
    assert [port["port"] for port in admitted["ports"]] == ["http", "status"]
    assert admitted["from"] == [monitoring, of_prometheus]
    assert prometheus["ingress"][0]["from"] == [monitoring, {"podSelector": {"matchLabels": SELECTED}}]
    assert "ingress" not in only(render({**URL, "networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]
    assert not [item for item in render(TRIAL) if item["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("watched", [[], ["a", "b"]])
def test_googles_collectors_are_told_of_the_operator_and_of_all_engines(watched: list[str]) -> None:
    objects = render({**URL, "watchNamespaces": watched, "monitoring": {"googlePodMonitoring": {"enabled": True}}})
    assert only(objects, "PodMonitoring")["spec"]["selector"]["matchLabels"] == SELECTED
    engines, others = (
        [item for item in objects if item["metadata"]["name"] == f"holdfast-engines{end}"] for end in ("", "-pod")
    )
    kind = "PodMonitoring" if watched else "ClusterPodMonitoring"
    assert [(item["kind"], item["metadata"].get("namespace")) for item in engines] == [
        (kind, namespace) for namespace in watched or [None]
    ]
    documented = next(
        found
        for text in re.findall(r"^```yaml\n(.*?)^```", PLATFORMS, re.MULTILINE | re.DOTALL)
        if (found := yaml.safe_load(text)).get("kind") == "PodMonitoring"
    )
    for item in engines:
        targets = item["spec"]["targetLabels"]
        assert targets["fromPod"] == documented["spec"]["targetLabels"]["fromPod"]
        assert targets["metadata"] == (["pod"] if watched else ["namespace", "pod"])
        assert {**item["spec"], "targetLabels": 0} == {**documented["spec"], "targetLabels": 0}
    for item, other in zip(engines, others, strict=True):
        ((front_end,), (port,)) = other["spec"]["selector"].pop("matchExpressions"), other["spec"].pop("endpoints")
        ((absent,), (own,)) = item["spec"]["selector"].pop("matchExpressions"), item["spec"].pop("endpoints")
        assert (front_end, port) == ({**absent, "operator": "Exists"}, {**own, "port": "pod"})
        assert other["spec"] == item["spec"]


def test_the_documented_ingress_names_the_port_of_the_service() -> None:
    page = (CHART.parents[1] / "docs/status-page.md").read_text()
    texts = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (ingress,) = (found for text in texts for found in yaml.safe_load_all(text) if found.get("kind") == "Ingress")
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = only(render({"settings": {**URL["settings"], "statusPort": 8090, "statusOpen": True}}), "Service")
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


def test_the_images_to_copy_are_those_that_the_chart_and_the_api_name() -> None:
    section = PLATFORMS.split("## Isolated clusters")[1].split("\n## ")[0]
    named = re.findall(r"^\| `([^`]+)`:", section, re.MULTILINE)
    assert named == [DEFAULT_ENGINE_IMAGE, pod_spec(render(TRIAL), "holdfast-prometheus")["containers"][0]["image"]]


def test_helms_test_runs_what_the_operator_runs_and_may_only_list_services() -> None:
    done = _helm(
        "template",
        "holdfast",
        str(CHART),
        "--show-only",
        "templates/tests/slo.yaml",
        values={**TRIAL, "watchNamespaces": ["a", "b"]},
    )
    assert done.returncode == 0, done.stderr
    objects = tuple(yaml.safe_load_all(done.stdout))
    assert {item["metadata"]["namespace"] for item in objects} == {"a"}
    assert all("hook-succeeded" in item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for item in objects)
    assert not [item for item in objects if SELECTED.items() <= item["metadata"]["labels"].items()]
    service, pod = only(objects, "LLMService", "holdfast-test"), only(objects, "Pod", "holdfast-test")["spec"]
    parsed = LLMService.parse(service)
    assert parsed.spec.engine.image == pod_spec(render(TRIAL))["containers"][0]["image"]
    assert only(objects, "Role", "holdfast-test-reader")["rules"] == [
        {"apiGroups": ["holdfast.dev"], "resources": ["llmservices"], "verbs": ["list"]}
    ]
    assert "hook-failed" in service["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("page", ["kube-prometheus-stack", "air-gap"])
def test_helm_takes_the_values_of_a_how_to_page(page: str) -> None:
    text = (CHART.parents[1] / f"docs/howto/{page}.md").read_text()
    (block,) = re.findall(r"^ *```yaml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    values = yaml.safe_load(block)
    told, settings = parsed_settings(render(values)), values["settings"]
    assert told.prometheus_url == settings["prometheusUrl"]
    assert told.engine_image == tuple(settings.get("engineImage", ()))
    assert list(told.pod_monitor_label) == settings.get("podMonitorLabel", [])
