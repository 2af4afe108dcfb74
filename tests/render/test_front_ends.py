"""Where a pod answers probes and scrapes, by what serves its requests; and that an upgrade changes no running pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from holdfast.render import RenderContext, render
from holdfast.rendered.context import as_text
from holdfast.rendered.names import Manifest
from tests.render.scenes import SETTINGS, chat_h100, context, engine, live, service

TWO_ENGINES = {"accelerators": [{"name": "h100", "count": 2, "parallelism": {"tensor": 1, "data": 2}}]}


def answering(manifest: Manifest) -> tuple[str, str | None, str]:
    """The port of the probes, the label of the pods, and the port that their annotation names."""
    pods, container = manifest["spec"]["template"]["metadata"], engine(manifest)
    (port,) = {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")}
    numbers = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ("HOLDFAST_POD_PORT" in {each["name"] for each in container["env"]}) == ("pod" in numbers)
    assert pods["annotations"]["prometheus.io/port"] == str(numbers[port])
    return port, pods["labels"].get("holdfast.dev/front-end"), pods["annotations"]["prometheus.io/port"]


def with_args(*args: str) -> dict[str, Any]:
    return {"engine": {"args": list(args)}}


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        ({}, ("http", None, "8000")),
        (TWO_ENGINES, ("pod", "python", "8082")),
        (TWO_ENGINES | with_args("--api-server-count=1"), ("http", None, "8000")),
        (with_args("--api-server-count", "4"), ("pod", "python", "8082")),
        (with_args("--api_server_count=4"), ("pod", "python", "8082")),
        (with_args("-asc=4"), ("pod", "python", "8082")),
        (with_args("--api-server-count=$(SERVERS)"), ("pod", "python", "8082")),
        ({"engine": {"frontEnd": "Rust"}}, ("pod", "rust", "8082")),
        (TWO_ENGINES | {"engine": {"frontEnd": "Rust"}}, ("pod", "rust", "8082")),
    ],
)
def test_a_pod_answers_by_itself_unless_its_first_process_serves_requests(
    changes: dict[str, Any], answers: tuple[str, str | None, str]
) -> None:
    assert answering(chat_h100(service(changes))) == answers


def test_arguments_of_an_accelerator_count_for_it_alone() -> None:
    accelerators = [{"name": "h100", "args": ["--api-server-count=3"]}, {"name": "l40s"}]
    found = render(service({"accelerators": accelerators}), ["h100", "l40s"], SETTINGS, RenderContext())
    by_name = {item["metadata"]["name"]: item for item in found if item["kind"] == "Deployment"}
    assert [answering(by_name[f"chat-{name}"])[0] for name in ("h100", "l40s")] == ["pod", "http"]


def before(manifest: Manifest) -> Manifest:
    """The Deployment as an operator made it that knew no port of the pod."""
    old = copy.deepcopy(manifest)
    template, container = old["spec"]["template"], engine(old)
    del template["metadata"]["labels"]["holdfast.dev/front-end"]
    template["metadata"]["annotations"]["prometheus.io/port"] = "8000"
    container["ports"] = container["ports"][:1]
    container["env"] = [each for each in container["env"] if each["name"] != "HOLDFAST_POD_PORT"]
    for kind in ("startup", "readiness", "liveness"):
        container[f"{kind}Probe"]["httpGet"]["port"] = "http"
    old["metadata"]["annotations"]["holdfast.dev/pod-template"] = as_text(template)
    return old


def test_an_upgrade_leaves_engines_behind_several_api_servers_as_they_run() -> None:
    old = before(chat_h100(service(TWO_ENGINES)))
    kept = chat_h100(service(TWO_ENGINES), context(deployed=live(old)))
    assert answering(kept) == ("http", None, "8000")
    assert as_text(kept["spec"]["template"]) == as_text(old["spec"]["template"])
    rolled = chat_h100(service(TWO_ENGINES | with_args("--enforce-eager")), context(deployed=live(kept)))
    assert answering(rolled) == ("pod", "python", "8082")


@pytest.mark.parametrize("changes", [{}, TWO_ENGINES, {"engine": {"frontEnd": "Rust"}}])
def test_pods_of_both_kinds_are_scraped_once_whatever_the_service_asks_for_now(changes: dict[str, Any]) -> None:
    manifests = render(service(changes), ["h100"], SETTINGS, RenderContext(pod_monitor=True))
    (monitor,) = (item for item in manifests if item["kind"] == "PodMonitor")
    http, pod = monitor["spec"]["podMetricsEndpoints"]
    assert (http["port"], pod["port"]) == ("http", "pod")
    assert http["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_label_holdfast_dev_front_end"], "regex": ".+", "action": "drop"}
    ]
    assert {**http, "relabelings": 0, "port": 0} == {**pod, "relabelings": 0, "port": 0}
