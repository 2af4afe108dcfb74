"""Every query of every dashboard, asked of the Prometheus that the chart brings, while a service is under load."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Kubectl
from e2e.load.client import ClientSettings
from e2e.load.streams import Streams
from e2e.patience import patient
from holdfast.monitoring.alerts import alerts
from holdfast.monitoring.dashboards import dashboards
from holdfast.monitoring.panels import Dashboard
from holdfast.monitoring.rules import recordings

pytestmark = pytest.mark.cluster

_PROMETHEUS = f"http://holdfast-prometheus.{stack.NAMESPACE}.svc:9090"
_ALL = pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: dashboard.uid)
_NOTHING_WRONG = {
    "Alerts",
    "Conditions that are not as they should be",
    "Who wants more than there is",
    "Failures in 15 minutes",
}
"""Panels that are empty while everything is well."""

_NOT_HERE = {
    ("End to end", "objective"),  # the service declares no slo.e2e
    ("Roofline", "{{of}} on {{holdfast_accelerator}}"),  # emulated engines estimate no work
    ("Changes in 15 minutes, by reason", "{{action}} {{reason}}"),  # a counter that is new has not risen yet
}
"""Panel and legend of what this service cannot show."""

# A minute of load is enough for rates over two; the window's first verdicts may need as long again.
_PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def loaded(operator: None, place: Kubectl) -> Iterator[Kubectl]:
    """A service with a price, and clients that use it as long as the tests run."""
    spec: dict[str, Any] = {
        "slo": {"ttft": "5s", "tpot": "200ms", "objective": "90%", "window": "5m"},
        "accelerators": [{"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: stack.L40S}, "costPerHour": 1.55}],
        "budget": {"maxCostPerHour": 20},
        "scaling": {"min": 2, "max": 6},
    }
    place.apply(stack.service("watched", cold_start_seconds=1.0, **spec))
    place.wait_for("llms", "watched", lambda found: found.get("status", {}).get("replicas", {}).get("ready") == 2, 90)
    url = f"http://watched.{place.namespace}.svc:8000"
    with Streams(ClientSettings(url, "Qwen/Qwen3-8B"), 4, 200, 60):
        yield place


@_ALL
def test_every_query_of_a_dashboard_returns_data(loaded: Kubectl, dashboard: Dashboard) -> None:
    wanted = {
        (panel.title, target.expr)
        for panel, target in dashboard.targets()
        if panel.title not in _NOTHING_WRONG and (panel.title, target.legend) not in _NOT_HERE
    }
    silent: set[tuple[str, str]] = set()

    def all_answer() -> bool:
        silent.clear()
        silent.update(query for query in wanted if not _ask(_of_this_service(query[1], loaded)))
        return not silent

    try:
        loaded.wait_until(all_answer, _PATIENCE_SECONDS, "data in every panel", poll_seconds=5.0)
    finally:
        print("no data:", *sorted(silent), sep="\n  ")


def test_what_may_stay_silent_is_on_a_dashboard() -> None:
    shown = {(panel.title, target.legend) for dashboard in dashboards() for panel, target in dashboard.targets()}
    assert shown >= _NOT_HERE
    assert {title for title, _ in shown} >= _NOTHING_WRONG


@_ALL
def test_even_those_that_may_stay_silent_are_understood(loaded: Kubectl, dashboard: Dashboard) -> None:
    for _, target in dashboard.targets():
        _ask(_of_this_service(target.expr, loaded))
    for annotation in dashboard.annotations:
        marks = _ask(_of_this_service(annotation.expr, loaded))
        assert marks, "the first size is a decision"
        assert {mark["metric"]["reason"] for mark in marks} <= {"FirstSize", "ForecastAboveCapacity", "AtMinimum"}


@_ALL
def test_variables_offer_the_service(loaded: Kubectl, dashboard: Dashboard) -> None:
    offered = {"namespace": loaded.namespace, "holdfast_service": "watched"}
    for variable in dashboard.variables:
        selector, _, label = variable.query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        found = {row["metric"][label] for row in _ask(_of_this_service(selector, loaded))}
        assert offered[label] in found


def test_every_rule_is_evaluated_without_an_error(loaded: Kubectl) -> None:
    groups = _get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(recordings()) + len(alerts())
    loaded.wait_until(lambda: all(rule["health"] == "ok" for rule in _rules()), 90, "every rule's first evaluation")
    assert not [rule["lastError"] for rule in _rules() if rule.get("lastError")]


def test_a_service_that_is_well_fires_nothing(loaded: Kubectl) -> None:
    firing = _ask(f'ALERTS{{alertstate="firing", alertname=~"Holdfast.+", namespace="{loaded.namespace}"}}')
    assert not firing


def _rules() -> list[dict[str, Any]]:
    return [rule for group in _get("/api/v1/rules")["groups"] for rule in group["rules"]]


def _of_this_service(expr: str, place: Kubectl) -> str:
    return expr.replace("$namespace", place.namespace).replace("$service", "watched")


def _ask(promql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _get(f"/api/v1/query?{urllib.parse.urlencode({'query': promql})}")["result"]
    return found


def _get(path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{_PROMETHEUS}{path}", timeout=patient(10.0)) as answer:
        told: dict[str, Any] = json.load(answer)["data"]
    return told
