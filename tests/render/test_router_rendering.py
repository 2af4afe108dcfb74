"""A router: what it adds, when clients are led to it, and that its pods have no rights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.cli.main import build_parser
from holdfast.render import RenderContext, render
from holdfast.rendered.names import Manifest
from holdfast.router.options import Options
from tests.render.scenes import SETTINGS, chat_h100, service

ROUTER = {"router": {}}
OURS = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")


def clients(manifests: tuple[Manifest, ...]) -> dict[str, str]:
    """What the Service of the clients leads to."""
    (front,) = [each for each in manifests if each["kind"] == "Service" and each["metadata"]["name"] == "chat"]
    found: dict[str, str] = front["spec"]["selector"]
    return found


def of_router(manifests: tuple[Manifest, ...]) -> dict[tuple[str, str], Manifest]:
    """The objects of a router."""
    component = "app.kubernetes.io/component"
    found = [each for each in manifests if each["metadata"]["labels"].get(component) == "router"]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.mark.parametrize(
    ("holding", "routed", "label"),
    [
        (False, False, "holdfast.dev/service"),
        (False, True, "holdfast.dev/router"),
        (True, True, "holdfast.dev/activator"),
        (True, False, "holdfast.dev/activator"),
    ],
)
def test_clients_reach_the_activator_while_it_holds_else_a_ready_router_else_the_replicas(
    holding: bool, routed: bool, label: str
) -> None:
    routing = service({**ROUTER, "scaling": {"min": 0}})
    facts = RenderContext(holding=holding, routed=routed)
    assert clients(render(routing, ["h100"], OURS, facts)) == {label: "chat"}


def test_clients_are_never_led_to_a_router_that_is_not_declared_or_has_no_image() -> None:
    facts = RenderContext(routed=True)
    for spec, settings in (({}, OURS), (ROUTER, SETTINGS)):
        manifests = render(service(spec), ["h100"], settings, facts)
        assert clients(manifests) == {"holdfast.dev/service": "chat"}
        assert of_router(manifests) == {}


def test_a_router_adds_its_own_objects_and_changes_no_engine() -> None:
    without = render(service(), ["h100"], OURS, RenderContext())
    manifests = render(service(ROUTER), ["h100"], OURS, RenderContext())
    added = of_router(manifests)
    assert set(added) == {
        ("Service", "chat-replicas"),
        ("PodDisruptionBudget", "chat-router"),
        ("Deployment", "chat-router"),
    }
    assert [each for each in manifests if each not in added.values()] == list(without)


def test_router_pods_are_no_engines_and_may_do_nothing_at_the_api_server() -> None:
    deployment = of_router(render(service(ROUTER), ["h100"], OURS, RenderContext()))["Deployment", "chat-router"]
    template = deployment["spec"]["template"]
    assert "holdfast.dev/service" not in template["metadata"]["labels"]
    assert template["metadata"]["labels"].items() >= deployment["spec"]["selector"]["matchLabels"].items()
    assert (template["spec"]["automountServiceAccountToken"], template["spec"]["serviceAccountName"]) == (False, "chat")
    (container,) = template["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def test_a_router_finds_the_replicas_by_a_headless_service_before_they_are_ready_and_while_they_drain() -> None:
    objects = of_router(render(service(ROUTER), ["h100"], OURS, RenderContext()))
    spec = objects["Service", "chat-replicas"]["spec"]
    assert (spec["clusterIP"], spec["selector"]) == ("None", {"holdfast.dev/service": "chat"})
    assert spec["publishNotReadyAddresses"] is True
    (container,) = objects["Deployment", "chat-router"]["spec"]["template"]["spec"]["containers"]
    assert "--replicas=chat-replicas.prod.svc" in container["args"]


def test_a_router_pod_takes_requests_until_every_node_knows_and_then_lets_them_finish() -> None:
    spec = of_router(render(service(ROUTER), ["h100"], OURS, RenderContext()))["Deployment", "chat-router"]["spec"]
    engine = chat_h100(service(), settings=OURS)["spec"]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == engine["terminationGracePeriodSeconds"]
    assert f"--linger={OURS.prestop_seconds}" in pod["containers"][0]["args"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_router_that_still_starts_hears_that_it_should_end() -> None:
    spec = of_router(render(service(ROUTER), ["h100"], OURS, RenderContext()))["Deployment", "chat-router"]["spec"]
    assert spec["template"]["spec"]["shareProcessNamespace"] is True


def test_one_router_pod_has_no_disruption_budget_that_would_block_a_drain() -> None:
    single = of_router(render(service({"router": {"replicas": 1}}), ["h100"], OURS, RenderContext()))
    assert ("PodDisruptionBudget", "chat-router") not in single
    assert single["Deployment", "chat-router"]["spec"]["replicas"] == 1


def test_resources_of_a_router_are_merged_into_the_defaults() -> None:
    routing = service({"router": {"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}}})
    spec = of_router(render(routing, ["h100"], OURS, RenderContext()))["Deployment", "chat-router"]["spec"]
    assert spec["template"]["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "512Mi"},
        "limits": {"memory": "4Gi"},
    }


@pytest.mark.parametrize(("asked", "limit"), [("4Gi", "4Gi"), ("1Gi", "2Gi"), ("2049Mi", "2049Mi"), ("1.5Gi", "2Gi")])
def test_a_limit_of_ours_never_bounds_what_a_router_requests(asked: str, limit: str) -> None:
    routing = service({"router": {"resources": {"requests": {"memory": asked}}}})
    spec = of_router(render(routing, ["h100"], OURS, RenderContext()))["Deployment", "chat-router"]["spec"]
    assert spec["template"]["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": asked},
        "limits": {"memory": limit},
    }


@pytest.mark.parametrize(
    ("declared", "policy"), [({}, "round_robin"), ({"policy": "ConsistentHash"}, "consistent_hash")]
)
def test_a_router_pod_is_told_the_policy_in_the_words_of_vllm_router(declared: dict[str, Any], policy: str) -> None:
    objects = of_router(render(service({"router": declared}), ["h100"], OURS, RenderContext()))
    (container,) = objects["Deployment", "chat-router"]["spec"]["template"]["spec"]["containers"]
    told = build_parser(["route"]).parse_args(container["args"])
    assert f"--policy={policy}" in Options(told.replicas, policy=told.policy).flags()
