"""Rules and dashboards in the chart: off unless asked for, and put in as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.promtool import promtool
from tests.chart.test_chart import CHART, NAMESPACE, TRIAL, URL, _helm, kinds, only, refusal, render

FILES = CHART / "files" / "monitoring"
RULES = (FILES / "rules.yaml").read_text().replace("RELEASE_NAMESPACE", NAMESPACE)
API = "monitoring.coreos.com/v1/PrometheusRule"
ON = {"rules": {"prometheusRule": {"enabled": True, "labels": {"release": "kps"}}}}


def with_api(values: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    done = _helm("template", "holdfast", str(CHART), "--namespace", NAMESPACE, "--api-versions", API, values=values)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def test_nothing_of_it_is_installed_unless_asked_for() -> None:
    assert "PrometheusRule" not in kinds(with_api(URL))
    assert "ConfigMap" not in kinds(render(URL))


def test_the_prometheus_operator_gets_the_generated_rules() -> None:
    rule = only(with_api({**URL, "monitoring": ON}), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES)
    assert rule["metadata"]["labels"]["release"] == "kps"
    assert rule["metadata"]["namespace"] == NAMESPACE


def test_where_its_api_is_missing_the_rules_are_left_out() -> None:
    assert "PrometheusRule" not in kinds(render({**URL, "monitoring": ON}))


def test_a_config_map_carries_the_rules_for_any_prometheus(tmp_path: Path) -> None:
    values = {"rules": {"configMap": {"enabled": True, "labels": {"role": "alert-rules"}}}}
    found = only(render({**URL, "monitoring": values}), "ConfigMap", "holdfast-rules")
    assert found["metadata"]["labels"]["role"] == "alert-rules"
    assert found["data"]["holdfast.yaml"].strip() == RULES.strip()
    file = tmp_path / "holdfast.yaml"
    file.write_text(found["data"]["holdfast.yaml"])
    assert promtool("check", "rules", file).returncode == 0


def test_grafanas_sidecar_finds_the_dashboards_as_they_were_made() -> None:
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "Holdfast"}}}
    found = only(render({**URL, "monitoring": values}), "ConfigMap", "holdfast-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Holdfast"}
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in FILES.glob("*.json")
    }
    assert len(json.dumps(found)) < 1_000_000, "a ConfigMap holds 1 MiB"


def test_the_trial_prometheus_evaluates_the_rules(tmp_path: Path) -> None:
    data = only(render(TRIAL), "ConfigMap", "holdfast-prometheus")["data"]
    assert yaml.safe_load(data["prometheus.yaml"])["rule_files"] == ["/etc/prometheus/rules.yaml"]
    assert yaml.safe_load(data["rules.yaml"]) == yaml.safe_load(RULES)


def test_several_operators_are_believed_by_a_regular_expression_of_their_namespaces() -> None:
    several = {"rules": {**ON["rules"], "operatorNamespace": "holdfast-system|team-.*"}}
    (leads,) = (
        rule["expr"]
        for group in only(with_api({**URL, "monitoring": several}), "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "HoldfastAbsent"
    )
    assert 'namespace=~"holdfast-system|team-.*"' in leads


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rules": {"enabled": True}}, "enabled"),
        ({"rules": {"prometheusRule": {"enabled": "yes"}}}, "enabled"),
        ({"rules": {"configMap": {"labels": {"a": 1}}}}, "labels"),
        ({"rules": {"operatorNamespace": 'a"} or vector(1)'}}, "operatorNamespace"),
        ({"dashboards": {"folder": "x"}}, "folder"),
        ({"alerts": {}}, "alerts"),
    ],
)
def test_values_of_monitoring_that_make_no_sense_are_refused(values: dict[str, Any], named: str) -> None:
    assert named in refusal({**URL, "monitoring": values})
