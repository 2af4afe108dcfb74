"""The Helm chart: what it installs, what it refuses, and that it agrees with the operator."""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.toolset import HELM, PROMETHEUS
from holdfast.act import resources
from holdfast.api import tenants
from holdfast.observe.objects import cluster
from holdfast.runtime import settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "holdfast"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
NAMESPACE = "holdfast-system"
URL = {"settings": {"prometheusUrl": "http://prometheus.monitoring:9090"}}
TRIAL = {"prometheus": {"enabled": True}}
REPOSITORY = "registry.example.com/team/holdfast"
"""Where the image is, if a test says nothing else: the checkout's chart has a placeholder."""
# Flags that make no sense in a pod, or that another value of the chart sets.
NOT_IN_CHART = {"kubeconfig", "identity", "namespace"}


def _program(name: str, built: Path) -> str:
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is neither built nor on PATH: run `make build`")
    return found


def _helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    helm = _program("helm", HELM.program("helm"))
    command = [helm, *arguments, "--values", "-"]
    given = {**(values or {})}
    given["image"] = {"repository": REPOSITORY, **given.get("image", {})}
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=300)


@functools.cache
def _rendered(values: str) -> tuple[dict[str, Any], ...]:
    place = ["--namespace", NAMESPACE, "--skip-tests"]
    done = _helm("template", "holdfast", str(CHART), *place, values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def render(values: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return _rendered(json.dumps(values, sort_keys=True))


def refusal(values: dict[str, Any]) -> str:
    done = _helm("template", "holdfast", str(CHART), values=values)
    assert done.returncode != 0, "accepted"
    return done.stderr


def only(objects: tuple[dict[str, Any], ...], kind: str, name: str = "holdfast") -> dict[str, Any]:
    found = [item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, [(item["kind"], item["metadata"]["name"]) for item in objects]
    return found[0]


def kinds(objects: tuple[dict[str, Any], ...]) -> set[str]:
    return {item["kind"] for item in objects}


def pod_spec(objects: tuple[dict[str, Any], ...], name: str = "holdfast") -> dict[str, Any]:
    spec: dict[str, Any] = only(objects, "Deployment", name)["spec"]["template"]["spec"]
    return spec


def parsed_settings(objects: tuple[dict[str, Any], ...]) -> settings.Settings:
    """What the operator makes of the rendered arguments."""
    command, *flags = pod_spec(objects)["containers"][0]["args"]
    assert command == "run"
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    return settings.read_settings(parser.parse_args(flags), {})


def rules(objects: tuple[dict[str, Any], ...], *, prefix: str = "holdfast") -> list[dict[str, Any]]:
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    return [rule for role in roles if role["metadata"]["name"].startswith(prefix) for rule in role["rules"]]


def test_the_chart_passes_helms_own_lint() -> None:
    done = _helm("lint", "--strict", str(CHART), values=TRIAL)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_install_without_any_prometheus_is_refused_with_the_remedy() -> None:
    message = refusal({})
    assert "settings.prometheusUrl" in message
    assert "prometheus.enabled=true" in message


def test_the_placeholder_of_the_image_is_refused_with_what_to_do_in_a_checkout_and_elsewhere() -> None:
    placeholder = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    assert yaml.safe_load((ROOT / "examples/no-gpu/values.yaml").read_text())["image"]["repository"] == placeholder
    message = refusal({**URL, "image": {"repository": placeholder}})
    assert "image.repository: REGISTRY/holdfast is a placeholder, and no cluster can pull it" in message
    assert "run `make trial` and install with --values build/trial/values.yaml" in message
    assert "`make release publish`" in message


def test_one_value_and_an_image_are_enough_to_install() -> None:
    objects = render(URL)
    assert parsed_settings(objects).prometheus_url == "http://prometheus.monitoring:9090"
    assert kinds(objects) >= {"Deployment", "ServiceAccount", "PodDisruptionBudget", "CustomResourceDefinition"}
    assert only(objects, "Deployment")["spec"]["replicas"] == 2


def test_unset_settings_keep_the_operators_defaults() -> None:
    told, by_the_chart = parsed_settings(render(URL)), {"prometheus_url", "log_format", "activator_image"}
    assert told.model_dump(exclude=by_the_chart) == settings.Settings(
        prometheus_url="http://prometheus.monitoring:9090"
    ).model_dump(exclude=by_the_chart)
    assert told.activator_image == only(render(URL), "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize("name", ["holdfast", "holdfast-prometheus"])
def test_pods_meet_the_restricted_pod_security_standard(name: str) -> None:
    spec = pod_spec(render(TRIAL), name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {next(key for key in volume if key != "name") for volume in spec["volumes"]} <= {"emptyDir", "configMap"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_the_pod_is_probed_where_the_operator_listens() -> None:
    objects = render({"settings": {**URL["settings"], "httpPort": 9999, "healthPort": 9998}})
    container = pod_spec(objects)["containers"][0]
    assert (parsed_settings(objects).http_port, parsed_settings(objects).health_port) == (9999, 9998)
    assert container["ports"] == [{"name": "http", "containerPort": 9999}, {"name": "health", "containerPort": 9998}]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}


def test_the_status_page_has_a_port_only_where_it_is_wanted() -> None:
    objects = render({"settings": {**URL["settings"], "statusPort": 8090, "statusOpen": True}})
    read = parsed_settings(objects)
    assert (read.status_port, read.status_open) == (8090, True)
    ports = pod_spec(objects)["containers"][0]["ports"]
    assert [(port["name"], port["containerPort"]) for port in ports] == [
        ("http", 8080),
        ("health", 8081),
        ("status", 8090),
    ]


def test_the_chart_knows_every_setting_of_the_operator() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    camel = {"".join(part.title() if n else part for n, part in enumerate(name.split("_"))): name
             for name in settings.Settings.model_fields}  # fmt: skip
    assert {camel[name] for name in values["settings"]} == set(settings.Settings.model_fields) - NOT_IN_CHART


def test_every_setting_reaches_the_operator(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("correct-horse-battery-staple")
    told = {
        "prometheusUrl": "https://metrics.example:9090", "prometheusTokenFile": str(file),
        "prometheusCaFile": str(file), "prometheusHeader": ["X-Scope-OrgID=a", "X-Other=b"],
        "prometheusMatcher": ["cluster=eu", "env=prod"],
        "prometheusInsecure": True, "scrapeInterval": "5s", "tick": "7s", "nodeProvisioningTime": "9m",
        "startupTimeout": "45m", "podMonitorLabel": ["release=kps", "team="],
        "leaseNamespace": "leases", "leaseName": "shard-a", "leaseDuration": "20s",
            "idleTime": "30m", "activatorImage": "registry.example/holdfast:1",
        "engineImage": ["vllm/vllm-openai:v1=r.local/vllm:v1"],
        "allowTemplate": ["hostPath", "privileged"], "platformAssignsIds": True,
        "maxPriority": ["a=10", "*=-1000000000"], "namespaceShare": ["a=50%", "*=12.5%"],
        "httpPort": 9090, "healthPort": 9092, "statusPort": 9091,
        "statusTokenFile": str(file), "statusOpen": False,
        "statusHost": ["holdfast.example"], "logLevel": "debug", "logFormat": "text",
    }  # fmt: skip
    assert told.keys() == yaml.safe_load((CHART / "values.yaml").read_text())["settings"].keys()
    read = parsed_settings(render({"settings": told, "watchNamespaces": ["a", "b"], "extraArgs": ["--identity=x"]}))
    assert (read.namespace, read.identity) == (("a", "b"), "x")
    assert read.prometheus_header == ("X-Scope-OrgID=a", "X-Other=b")
    assert read.matchers == (("cluster", "eu"), ("env", "prod"))
    assert read.allow_template == ("hostPath", "privileged")
    assert read.platform_assigns_ids
    assert read.engine_images == {"vllm/vllm-openai:v1": "r.local/vllm:v1"}
    assert read.max_priorities == {"a": 10, "*": -1_000_000_000}
    assert read.namespace_shares == {"a": Fraction(1, 2), "*": Fraction(1, 8)}
    assert (read.startup_seconds, read.pod_monitor_labels) == (2700.0, {"release": "kps", "team": ""})
    plain = ("tick", "scrape_interval", "lease_name", "lease_namespace", "lease_duration")
    assert [getattr(read, name) for name in plain] == ["7s", "5s", "shard-a", "leases", "20s"]
    assert (read.status_port, read.status_token_file, read.status_host) == (9091, file, ("holdfast.example",))
    assert read.health_port == 9092
    assert (read.prometheus_insecure, read.http_port, read.log_level, read.log_format) == (True, 9090, "debug", "text")


def test_every_option_at_once_renders() -> None:
    objects = render({
        **URL, "replicas": 3, "imagePullSecrets": [{"name": "pull"}],
        "image": {"repository": "registry.example/holdfast", "tag": "dev", "pullPolicy": "Never"},
        "serviceAccount": {"name": "operator", "annotations": {"a": "b"}},
        "podAnnotations": {"note": "1"}, "podLabels": {"team": "ml"}, "nodeSelector": {"role": "system"},
        "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}, "priorityClassName": "high",
        "extraVolumes": [{"name": "token", "secret": {"secretName": "prometheus"}}],
        "extraVolumeMounts": [{"name": "token", "mountPath": "/etc/prometheus", "readOnly": True}],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "monitoring": {"podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "kps"}}},
        "prometheus": {"enabled": True, "scrapeInterval": "2s", "volume": {"hostPath": {"path": "/data"}}},
        "fullnameOverride": "slo",
    })  # fmt: skip
    template = only(objects, "Deployment", "slo")["spec"]["template"]
    assert template["metadata"]["annotations"] == {"note": "1"}
    assert template["metadata"]["labels"]["team"] == "ml"
    spec = template["spec"]
    assert spec["serviceAccountName"] == "operator"
    assert spec["priorityClassName"] == "high"
    assert spec["containers"][0]["image"] == "registry.example/holdfast:dev"
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "token"}
    assert only(objects, "PodMonitor", "slo")["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
    assert {"name": "data", "hostPath": {"path": "/data"}} in pod_spec(objects, "slo-prometheus")["volumes"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"promtheusUrl": "http://x"}}, "promtheusUrl"),
        ({"settings": {"prometheusUrl": "prometheus:9090"}}, "prometheusUrl"),
        ({"settings": {"tick": "soon"}}, "tick"),
        ({"settings": {"tick": 5}}, "tick"),
        ({"settings": {"startupTimeout": "long"}}, "startupTimeout"),
        ({"settings": {"podMonitorLabel": ["release"]}}, "podMonitorLabel"),
        ({"settings": {"httpPort": 80}}, "httpPort"),
        ({"settings": {"healthPort": 0}}, "healthPort"),
        ({"settings": {"statusPort": -1}}, "statusPort"),
        ({"settings": {"statusHost": ["http://holdfast.example"]}}, "statusHost"),
        ({"settings": {"logLevel": "loud"}}, "logLevel"),
        ({"settings": {"allowTemplate": ["everything"]}}, "allowTemplate"),
        ({"settings": {"maxPriority": {"team-a": 10}}}, "maxPriority"),
        ({"settings": {"maxPriority": ["team-a=10", "team-a=10"]}}, "maxPriority"),
        ({"settings": {"prometheusHeader": ["X-Scope-OrgID"]}}, "prometheusHeader"),
        ({"settings": {"prometheusMatcher": ["cluster-name=eu"]}}, "prometheusMatcher"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": "two"}, "replicas"),
        ({"watchNamespaces": ["Prod"]}, "watchNamespaces"),
        ({"watchNamespaces": ["a", "a"]}, "watchNamespaces"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"prometheus": {"enabled": "yes"}}, "enabled"),
        ({"prometheus": {"volume": {"emptyDir": {}, "hostPath": {"path": "/x"}}}}, "volume"),
        ({"nodeSelectr": {}}, "nodeSelectr"),
        ({"extraArgs": ["tick=5s"]}, "extraArgs"),
        ({"image": {"digest": "0123"}}, "digest"),
        ({"prometheus": {"image": {"digest": "sha256:0123"}}}, "digest"),
        ({"commonLabels": {"app.kubernetes.io/name": "other"}}, "commonLabels"),
        ({"podLabels": {"app.kubernetes.io/instance": "other"}}, "podLabels"),
        ({"commonLabels": {"team": 7}}, "team"),
        ({"nameOverride": "Slo"}, "nameOverride"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "topologySpreadConstraints"),
        ({"extraContainers": [{"image": "x"}]}, "extraContainers"),
        ({"podSecurityContext": "none"}, "podSecurityContext"),
        ({"settings": {"platformAssignsIds": "yes"}}, "platformAssignsIds"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    assert named in refusal(values)


def test_limits_of_namespaces_are_checked_as_the_operator_checks_them() -> None:
    found = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    for name, pattern in (("maxPriority", tenants.PRIORITY_PATTERN), ("namespaceShare", tenants.SHARE_PATTERN)):
        assert found[name]["items"] == {"type": "string", "pattern": pattern}
    for name, wrong in (("maxPriority", "team-a=high"), ("namespaceShare", "team-a=101%")):
        assert name in refusal({"settings": {**URL["settings"], name: [wrong]}})


@pytest.mark.parametrize("watched", [[], ["a", "b"]])
def test_only_namespaces_with_limits_may_be_read(watched: list[str]) -> None:
    limits = {"maxPriority": ["b=10", "*=0"], "namespaceShare": ["a=50%", "b=50%"]}
    objects = render({"settings": {**URL["settings"], **limits}, "watchNamespaces": watched})
    (rule,) = (rule for rule in rules(objects) if "namespaces" in rule["resources"])
    assert (rule["resourceNames"], rule["verbs"]) == (["a", "b"], ["get"])
    unnamed = render({"settings": {**URL["settings"], "maxPriority": ["*=0"]}})
    assert not [rule for rule in rules(unnamed) if "namespaces" in rule["resources"]]


def test_an_account_that_is_neither_made_nor_named_is_refused() -> None:
    assert "serviceAccount.name" in refusal({**URL, "serviceAccount": {"create": False}})


@pytest.mark.parametrize("values", [TRIAL, {**TRIAL, "watchNamespaces": ["a", "b"]}])
def test_no_role_grants_wildcards_secrets_or_more_rights(values: dict[str, Any]) -> None:
    for rule in rules(render(values)):
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"secrets", "pods/exec", "roles", "clusterroles"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def granted_to_the_operator() -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in only(render(URL), "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_operator_may_do_what_it_does_and_no_more() -> None:
    made = {"get", "list", "watch", "create", "patch"}
    assert granted_to_the_operator() == {
        ("autoscaling", "horizontalpodautoscalers"): {"list"},
        ("keda.sh", "scaledobjects"): {"list"},
        ("autoscaling.aibrix.ai", "podautoscalers"): {"list"},
        ("", "nodes"): {"list", "watch"},
        ("resource.k8s.io", "resourceslices"): {"list", "watch"},
        ("resource.k8s.io", "deviceclasses"): {"list", "watch"},
        ("", "pods"): {"list", "watch", "patch", "delete"},
        ("", "events"): {"create"},
        ("", "resourcequotas"): {"get", "list", "watch"},
        ("", "persistentvolumeclaims"): {"get"},
        ("", "services"): made | {"delete"},
        ("", "serviceaccounts"): made,
        ("", "configmaps"): made | {"delete"},
        ("policy", "poddisruptionbudgets"): made | {"delete"},
        ("monitoring.coreos.com", "podmonitors"): made | {"delete"},
        ("inference.networking.k8s.io", "inferencepools"): made | {"delete"},
        ("apps", "deployments"): made | {"delete"},
        ("apps", "deployments/scale"): {"get", "patch"},
        ("leaderworkerset.x-k8s.io", "leaderworkersets"): made | {"delete"},
        ("leaderworkerset.x-k8s.io", "leaderworkersets/scale"): {"get", "patch"},
        ("apps", "replicasets"): {"list"},
        ("batch", "jobs"): {"get", "create", "delete"},
        ("holdfast.dev", "llmbenchmarks"): {"get", "list", "watch"},
        ("holdfast.dev", "llmbenchmarks/status"): {"patch"},
        ("holdfast.dev", "llmservices"): {"get", "list", "watch"},
        ("holdfast.dev", "llmservices/status"): {"patch"},
    }


def test_the_operations_page_lists_what_the_operator_may_do() -> None:
    section = OPERATIONS.split("## What the operator may do")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z/, ]+) \| ([a-z, ]+) \|", section, re.MULTILINE)
    listed = {resource: verbs.split(", ") for named, verbs in rows[1:] for resource in named.split(", ")}
    lease = listed.pop("leases")
    assert {name: sorted(verbs) for name, verbs in listed.items()} == {
        resource: sorted(verbs) for (_, resource), verbs in granted_to_the_operator().items()
    }
    assert lease == ["create", "and get and update of its own"]


def test_every_kind_that_is_written_may_be_written() -> None:
    writable = {
        resource
        for rule in only(render(URL), "ClusterRole")["rules"]
        for resource in rule["resources"]
        if "create" in rule["verbs"]
    }
    assert writable == {plural for _, plural in resources._KINDS.values()}


def test_every_kind_that_is_watched_may_be_watched() -> None:
    watchable = {
        (group, resource)
        for rule in only(render(URL), "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"list", "watch"} <= set(rule["verbs"])
    }
    assert watchable >= {(group, plural) for group, _, plural in cluster._OWNED.values()}


def test_watching_namespaces_needs_no_cluster_wide_write() -> None:
    objects = render({**TRIAL, "watchNamespaces": ["a", "b"]})
    cluster_wide = only(objects, "ClusterRole")["rules"]
    assert {verb for rule in cluster_wide for verb in rule["verbs"]} == {"list", "watch"}
    assert [rule["resources"] for rule in cluster_wide] == [["nodes"], ["resourceslices", "deviceclasses"]]
    homes = {item["metadata"]["namespace"] for item in objects if item["kind"] == "Role"}
    assert homes == {"a", "b", NAMESPACE}
    everywhere = only(render(URL), "ClusterRole")["rules"]
    (role,) = (
        i
        for i in objects
        if i["kind"] == "Role" and i["metadata"] == {**i["metadata"], "name": "holdfast", "namespace": "a"}
    )
    assert role["rules"] == everywhere[2:]
    config = yaml.safe_load(only(objects, "ConfigMap", "holdfast-prometheus")["data"]["prometheus.yaml"])
    discovery = config["scrape_configs"][0]["kubernetes_sd_configs"][0]
    assert discovery["namespaces"] == {"names": ["a", "b", NAMESPACE]}


def test_the_lease_that_may_be_renewed_is_the_one_the_operator_uses() -> None:
    objects = render(URL)
    role = only(objects, "Role", "holdfast-lease")
    assert role["metadata"]["namespace"] == NAMESPACE
    assert role["rules"][1]["resourceNames"] == [parsed_settings(objects).lease_name]
    elsewhere = render({"settings": {**URL["settings"], "leaseName": "shard-a", "leaseNamespace": "leases"}})
    role = only(elsewhere, "Role", "holdfast-lease")
    assert (role["metadata"]["namespace"], role["rules"][1]["resourceNames"]) == ("leases", ["shard-a"])


def test_the_lease_of_the_operator_goes_with_the_release() -> None:
    for values, place in ((URL, NAMESPACE), ({"settings": {**URL["settings"], "leaseNamespace": "leases"}}, "leases")):
        objects = render(values)
        lease = only(objects, "Lease", parsed_settings(objects).lease_name)
        assert lease["metadata"]["namespace"] == place
        assert "spec" not in lease, "the operator writes who leads"


def test_bindings_name_the_account_of_the_pod() -> None:
    objects = render({**URL, "serviceAccount": {"create": False, "name": "mine"}})
    subjects = [item["subjects"] for item in objects if item["kind"].endswith("RoleBinding")]
    assert subjects
    assert all(found == [{"kind": "ServiceAccount", "name": "mine", "namespace": NAMESPACE}] for found in subjects)
    assert pod_spec(objects)["serviceAccountName"] == "mine"
    assert "ServiceAccount" not in kinds(objects)


@pytest.mark.parametrize("name", ["llmservices.holdfast.dev", "llmbenchmarks.holdfast.dev"])
def test_a_crd_is_the_generated_one_and_outlives_the_release(name: str) -> None:
    crd = only(render(URL), "CustomResourceDefinition", name)
    assert crd["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    generated = yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text())
    generated["metadata"].setdefault("annotations", {})
    assert crd == generated
    assert "CustomResourceDefinition" not in kinds(render({**URL, "crds": {"install": False}}))


def test_one_replica_has_no_disruption_budget_that_would_block_a_drain() -> None:
    assert "PodDisruptionBudget" not in kinds(render({**URL, "replicas": 1}))


def test_the_trial_prometheus_is_the_one_the_operator_asks() -> None:
    objects = render({"prometheus": {"enabled": True, "scrapeInterval": "2s"}})
    told = parsed_settings(objects)
    service = only(objects, "Service", "holdfast-prometheus")
    assert told.prometheus_url == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:9090"
    assert told.scrape_interval == "2s"
    pods = only(objects, "Deployment", "holdfast-prometheus")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pods.items()
    assert service["spec"]["ports"] == [{"name": "http", "port": 9090, "targetPort": "http", "appProtocol": "http"}]


def test_a_prometheus_of_ones_own_wins_over_the_trial_one() -> None:
    told = parsed_settings(render({**URL, **TRIAL}))
    assert told.prometheus_url == "http://prometheus.monitoring:9090"


def scrape_job(config: str) -> dict[str, Any]:
    (job,) = yaml.safe_load(config)["scrape_configs"]
    return dict(job)


def test_engines_with_tls_are_scraped_by_address_and_sent_no_credentials() -> None:
    ours = scrape_job(only(render(TRIAL), "ConfigMap", "holdfast-prometheus")["data"]["prometheus.yaml"])
    (shown,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", OPERATIONS, re.MULTILINE | re.DOTALL)
    for job in (ours, scrape_job(shown)):
        assert job["tls_config"] == {"insecure_skip_verify": True}, "no certificate names the address of a pod"
        assert not {"authorization", "basic_auth", "oauth2", "bearer_token", "bearer_token_file"} & job.keys()


def test_prometheus_itself_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    promtool = _program("promtool", PROMETHEUS.program("promtool"))
    config = tmp_path / "prometheus.yaml"
    objects = render({**TRIAL, "watchNamespaces": ["a"]})
    config.write_text(only(objects, "ConfigMap", "holdfast-prometheus")["data"]["prometheus.yaml"])
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(config)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operators_own_metrics_are_found_by_annotation_or_podmonitor_but_not_both() -> None:
    annotations = only(render(URL), "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/port"] == "8080"
    monitored = render({**URL, "monitoring": {"podMonitor": {"enabled": True}}})
    assert not only(monitored, "Deployment")["spec"]["template"]["metadata"].get("annotations")
    assert only(monitored, "PodMonitor")["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "holdfast"
