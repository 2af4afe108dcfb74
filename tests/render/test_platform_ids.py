"""Ids that the platform assigns: no pod asks for any, all else stays, and pods that it refuses get another template."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.render import Deployed, RenderContext, RenderSettings, remarks, render
from holdfast.render.benchmark import job, measurand
from holdfast.rendered.context import as_text
from holdfast.rendered.names import Manifest
from holdfast.rendered.own_engine import OwnEngine
from tests.api.benchmark_refusals import RECORDED, benchmark
from tests.render.scenes import FULL, MINIMAL, SETTINGS, chat_h100, context, service

IDS = {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"}
OURS = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")
ASSIGNED = replace(OURS, platform_assigns_ids=True)


def engines(settings: RenderSettings) -> list[Manifest]:
    """The pod templates of engines and activator."""
    pods = [
        *render(service({"scaling": {"min": 0}}), ["h100"], settings, RenderContext()),
        *render(service(base=FULL), ["h100", "mi300x"], settings, RenderContext()),
    ]
    return [item["spec"]["template"] for item in pods if item["kind"] == "Deployment"]


def routers(settings: RenderSettings) -> list[Manifest]:
    """The pod template of a router."""
    pods = render(service({"router": {}}), [], settings, RenderContext())
    return [item["spec"]["template"] for item in pods if item["kind"] == "Deployment"]


def benchmarks(settings: RenderSettings) -> list[Manifest]:
    """The pod templates of benchmarks, one with an engine of its own."""
    found = []
    for spec in ({"sweep": None, "trace": RECORDED}, {"sweep": None, "tune": {}}):
        body = benchmark(spec)
        body["metadata"] |= {"namespace": "prod", "uid": "uid-9", "generation": 1}
        asked, of = LLMBenchmark.parse(body), service(base=MINIMAL)
        replica = as_text(chat_h100(of, settings=settings)["spec"]["template"])
        engine = OwnEngine(of, "h100", replica, asked.spec.tune) if asked.spec.tune else None
        found.append(job(asked, measurand(asked, of), settings, engine)["spec"]["template"])
    return found


def named(part: Any, fields: set[str]) -> set[str]:
    """The keys of these names anywhere in an object."""
    if isinstance(part, dict):
        return (part.keys() & fields).union(*(named(each, fields) for each in part.values()))
    return set().union(*(named(each, fields) for each in part)) if isinstance(part, list) else set()


def without_ids(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: without_ids(each) for key, each in part.items() if key not in IDS}
    return [without_ids(each) for each in part] if isinstance(part, list) else part


@pytest.mark.parametrize("pods", [engines, routers, benchmarks])
def test_no_pod_asks_for_an_id_where_the_platform_assigns_them(pods: Any) -> None:
    assert all(named(template, IDS) >= {"runAsUser", "runAsGroup"} for template in pods(OURS))
    assert [named(template, IDS) for template in pods(ASSIGNED)] == [set() for _ in pods(OURS)]


@pytest.mark.parametrize("pods", [engines, routers, benchmarks])
def test_every_other_protection_stays(pods: Any) -> None:
    assert pods(ASSIGNED) == without_ids(pods(OURS))
    for template in pods(ASSIGNED):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_an_id_that_the_template_names_is_the_users_own() -> None:
    named_id = {"template": {"spec": {"securityContext": {"runAsUser": 1000660007}}}}
    pods = chat_h100(service(named_id), settings=ASSIGNED)["spec"]["template"]["spec"]
    assert pods["securityContext"]["runAsUser"] == 1000660007
    assert "fsGroup" not in pods["securityContext"]


REFUSED = {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}]}


def deployed(status: Manifest) -> Deployed:
    """What the operator reads back of a Deployment that it rendered with ids of its own."""
    body = copy.deepcopy(chat_h100(service()))
    found = Deployed.read({**body, "status": status})
    assert found is not None
    return found


def runs_as(status: Manifest) -> int | None:
    """The user of the pods once the platform assigns ids."""
    facts = context(deployed=deployed(status))
    found: int | None = chat_h100(service(), facts, ASSIGNED)["spec"]["template"]["spec"]["securityContext"].get(
        "runAsUser"
    )
    return found


@pytest.mark.parametrize(
    "status",
    [
        REFUSED,
        {**REFUSED, "replicas": 2, "updatedReplicas": 0},  # of an earlier template
    ],
)
def test_refused_pods_get_a_template_of_the_present_settings(status: Manifest) -> None:
    assert runs_as(status) is None


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"replicas": 1, "updatedReplicas": 1},
        {**REFUSED, "replicas": 1, "updatedReplicas": 1},  # a quota stops one more
        {"conditions": [{"type": "ReplicaFailure", "status": "False"}]},
        {"conditions": [{"type": "Progressing", "status": "True"}]},
    ],
)
def test_a_changed_setting_replaces_no_pod_that_runs(status: Manifest) -> None:
    assert runs_as(status) == 2000


def test_the_template_of_refused_pods_settles() -> None:
    once = chat_h100(service(), context(deployed=deployed(REFUSED)), ASSIGNED)
    read = Deployed.read({**copy.deepcopy(once), "status": REFUSED})
    again = chat_h100(service(), context(deployed=read), ASSIGNED)
    assert json.dumps(again["spec"]["template"]) == json.dumps(once["spec"]["template"])


def said(security: Any, *, assigned: bool = False, place: str = "template") -> str:
    overlay = {"template": {"spec": {"securityContext": security}}}
    changes = overlay if place == "template" else {"accelerators": [{"name": "h100", **overlay}]}
    of = service({})
    of = of.model_copy(update={"spec": type(of.spec).model_validate({**MINIMAL["spec"], **changes})})
    return " ".join(remarks(of, ["h100"], RenderContext(), platform_assigns_ids=assigned))


@pytest.mark.parametrize("place", ["template", "accelerators[h100].template"])
def test_nulls_that_kubectl_apply_drops_are_named_with_the_flag(place: str) -> None:
    before, after = (said(security, place=place) for security in ({"runAsUser": None}, {}))
    assert f"{place}.spec.securityContext removes ids by null" in before
    assert f"{place}.spec.securityContext is empty and removes no id" in after
    assert all("--platform-assigns-ids" in text for text in (before, after))


@pytest.mark.parametrize("security", [{"runAsUser": None}, {}, {"fsGroup": None, "runAsUser": 7}])
def test_nulls_matter_to_nobody_where_the_platform_assigns_ids(security: Manifest) -> None:
    assert said(security)
    assert not said(security, assigned=True)


@pytest.mark.parametrize("security", [{"runAsUser": 1000660007}, {"fsGroupChangePolicy": "Always"}])
def test_ids_that_stay_are_not_remarked_on(security: Manifest) -> None:
    assert not said(security)
