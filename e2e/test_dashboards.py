"""Every query of every dashboard, asked of the Prometheus that the chart brings: a service is well, others are not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes
from e2e.kubectl import Json, Kubectl, KubectlError
from e2e.load.client import ClientSettings
from e2e.load.steady import SteadyLoad
from e2e.load.streams import Streams
from holdfast.monitoring.alerts import alerts
from holdfast.monitoring.dashboards import dashboards
from holdfast.monitoring.panels import Dashboard, Panel, Target
from holdfast.monitoring.rules import recordings

pytestmark = pytest.mark.cluster

_MODEL = "Qwen/Qwen3-8B"
_ALL = pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: dashboard.uid)
_TROUBLED = {"Alerts", "Conditions that are not as they should be"}
"""Panels of one service that are empty while it is well: asked of the one that is not."""

_SPECULATION = {"Accepted draft tokens"}
"""Panels of engines that decode speculatively, which no emulated one does: e2e/test_promql_facts.py asks for them."""

_SCARCE = "example.com/one-of-a-kind"

# A minute of load is enough for rates over two; the window's first verdicts may need as long again.
_PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def loaded(operator: None, place: Kubectl) -> Iterator[Kubectl]:
    """A service that is well, one that gets less than it needs, one that cannot be resized; clients of the first two.

    All of it goes on as long as the tests run.
    """
    with _one_of_a_kind(), _scene(place):
        yield place


@contextmanager
def _one_of_a_kind() -> Iterator[None]:
    nodes.set_node_capacity({_SCARCE: 1})
    try:
        yield
    finally:
        nodes.set_node_capacity({_SCARCE: None})


@contextmanager
def _scene(place: Kubectl) -> Iterator[None]:
    place.apply([_watched(), _starved(), stack.small_service("frozen")])
    for name, replicas in (("watched", 1), ("starved", 1), ("frozen", 1)):
        place.wait_for("llms", name, functools.partial(_has_ready, replicas), 90, f"{replicas} Ready")
    starved = SteadyLoad(_url(place, "starved"), _MODEL, 2.0)
    with Streams(ClientSettings(_url(place, "watched"), _MODEL), 4, 200, 60), starved, _not_resized(place, "frozen"):
        _raise_minimum(place, "frozen", 2)
        # A counter that is new has not risen yet: the same again once Prometheus has seen it.
        _raise_minimum(place, "watched", 2)
        place.wait_until(lambda: bool(stack.ask(_changes(place))), 60, "the first change, counted")
        _raise_minimum(place, "watched", 3)
        yield


def _watched() -> Json:
    """A service with a price and all objectives, whose engines estimate their work."""
    label = {nodes.GPU_PRODUCT_LABEL: stack.L40S}
    made = stack.service(
        "watched",
        cold_start_seconds=1.0,
        slo={"ttft": "5s", "tpot": "200ms", "e2e": "60s", "objective": "90%", "window": "5m"},
        accelerators=[{"name": "l40s", "nodeSelector": label, "costPerHour": 1.55}],
        budget={"maxCostPerHour": 20},
        scaling={"min": 1, "max": 6},
    )
    made["spec"]["engine"]["args"].append("--enable-mfu-metrics")
    return made


def _starved() -> Json:
    """A service that wants two GPUs of a kind of which there is one, and turns away what it cannot serve in time."""
    made = stack.small_service("starved", min=2)
    made["spec"]["overload"] = "Reject"
    made["spec"]["accelerators"][0]["resource"] = _SCARCE
    return made


@contextmanager
def _not_resized(place: Kubectl, service: str) -> Iterator[None]:
    """The API server refuses to resize a service, as policies of a cluster may: the operator tries in vain."""
    deployment, name = stack.deployment_of(service), f"{place.namespace}-not-resized"
    scale = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}
    inside = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}}
    policy = {
        "matchConstraints": {"resourceRules": [scale | {"resourceNames": [deployment]}]},
        "validations": [{"expression": "false", "message": "it keeps its size"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": inside}
    place.apply([_admission("Policy", name, policy), _admission("PolicyBinding", name, binding)])
    try:
        place.wait_until(lambda: _is_refused(place, deployment), 60, "a policy in force")
        yield
    finally:
        for kind in ("policybinding", "policy"):
            place.delete(f"validatingadmission{kind}", name)


def _admission(kind: str, name: str, spec: Json) -> Json:
    version = "admissionregistration.k8s.io/v1"
    return {
        "apiVersion": version,
        "kind": f"ValidatingAdmission{kind}",
        "metadata": {"name": name},
        "spec": spec,
    }


def _is_refused(place: Kubectl, deployment: str) -> bool:
    try:
        place.run("scale", "deployment", deployment, "--replicas=1", "--dry-run=server")
    except KubectlError as refused:
        return "it keeps its size" in str(refused)
    return False


@_ALL
def test_every_query_of_a_dashboard_returns_data(loaded: Kubectl, dashboard: Dashboard) -> None:
    asked = [(panel, target) for panel, target in dashboard.targets() if panel.title not in _SPECULATION]
    silent = {(panel.title, _of_one(panel, target, loaded)) for panel, target in asked}

    def all_answered() -> bool:
        silent.difference_update([query for query in silent if stack.ask(query[1])])
        return not silent

    try:
        loaded.wait_until(all_answered, _PATIENCE_SECONDS, "data in every panel", poll_seconds=5.0)
    finally:
        print("no data:", *sorted(silent), sep="\n  ")


def test_what_only_trouble_fills_is_on_a_dashboard() -> None:
    titles = {panel.title for dashboard in dashboards() for panel, _ in dashboard.targets()}
    assert titles >= _TROUBLED | _SPECULATION


@_ALL
def test_annotations_are_the_changes_of_the_service(loaded: Kubectl, dashboard: Dashboard) -> None:
    for annotation in dashboard.annotations:
        # As a graph asks: a scrape that failed ends series, and an operator that takes over has made no change yet.
        marks = stack.ask(f"last_over_time(({_of(annotation.expr, loaded)})[10m:2s])")
        assert marks, "the first size is a decision"
        assert {mark["metric"]["reason"] for mark in marks} <= {"FirstSize", "ForecastAboveCapacity", "AtMinimum"}


@_ALL
def test_variables_offer_the_service(loaded: Kubectl, dashboard: Dashboard) -> None:
    offered = {"namespace": loaded.namespace, "holdfast_service": "watched"}
    for variable in dashboard.variables:
        selector, _, label = variable.query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        asked = f"last_over_time({_of(selector, loaded)}[5m])"  # as above: a scrape that failed ends series
        assert offered[label] in {row["metric"][label] for row in stack.ask(asked)}


def test_every_rule_is_evaluated_without_an_error(loaded: Kubectl) -> None:
    groups = stack.prometheus("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(recordings()) + len(alerts())
    loaded.wait_until(lambda: all(rule["health"] == "ok" for rule in _rules()), 90, "every rule's first evaluation")
    assert not [rule["lastError"] for rule in _rules() if rule.get("lastError")]


def test_a_service_that_is_well_fires_nothing(loaded: Kubectl) -> None:
    own = f'namespace="{loaded.namespace}", holdfast_service="watched"'
    firing = stack.ask(f'ALERTS{{alertstate="firing", alertname=~"Holdfast.+", {own}}}')
    assert not firing


def _rules() -> list[dict[str, Any]]:
    return [rule for group in stack.prometheus("/api/v1/rules")["groups"] for rule in group["rules"]]


def _url(place: Kubectl, service: str) -> str:
    return f"http://{service}.{place.namespace}.svc:8000"


def _has_ready(replicas: int, found: Json) -> bool:
    return bool(found.get("status", {}).get("replicas", {}).get("ready") == replicas)


def _raise_minimum(place: Kubectl, service: str, replicas: int) -> None:
    place.patch("llms", service, {"spec": {"scaling": {"min": replicas}}})


def _changes(place: Kubectl) -> str:
    """What the operator counts, as a scrape stores it that does not honour its labels."""
    return f'holdfast_decisions_total{{exported_namespace="{place.namespace}", service="watched", reason="AtMinimum"}}'


def _of_one(panel: Panel, target: Target, place: Kubectl) -> str:
    return _of(target.expr, place, "starved" if panel.title in _TROUBLED else "watched")


def _of(expr: str, place: Kubectl, service: str = "watched") -> str:
    return expr.replace("$namespace", place.namespace).replace("$service", service)
