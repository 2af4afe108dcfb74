"""The plugin in pods: who gets it, how it is turned off, and that an upgrade of the operator replaces no engine."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.patience import patient

pytestmark = pytest.mark.cluster

_READY_SECONDS = 90.0
_SCHEDULER = "--scheduler-cls=holdfast_engine.scheduler.HoldfastScheduler"


@pytest.fixture(scope="module")
def services(operator: None, place: Kubectl) -> None:
    """With the plugin and without, behind the Rust front end, and with a vLLM that the plugin does not know."""
    plain, rust = _service("without", plugin="Disabled"), _service("rust", frontEnd="Rust")
    several = _service("several")
    several["spec"]["engine"]["args"] = [*several["spec"]["engine"]["args"], "--api-server-count=2"]
    place.apply([_service("with"), plain, rust, several, _service("old", image="vllm/vllm-openai:v0.31.0")])
    for name in ("with", "without", "rust", "several"):
        place.wait_for("llms", name, _is_ready, _READY_SECONDS, "Ready")


def test_the_plugin_is_at_work_with_the_objectives_of_its_service(services: None, place: Kubectl) -> None:
    (pod,) = _pods(place, "with")
    assert _SCHEDULER in _container(place, "with")["args"]
    assert "holdfast_engine.zip" in place.execute(pod, "ls", "/holdfast")
    assert '"ttftSeconds":2' in place.execute(pod, "cat", "/etc/holdfast/limits/engine-limits")
    (info,) = _samples(place, pod, "holdfast:plugin_info")
    assert info["mode"] == "active"


def test_off_leaves_nothing_of_the_plugin(services: None, place: Kubectl) -> None:
    (pod,) = _pods(place, "without")
    assert _SCHEDULER not in _container(place, "without")["args"]
    assert any(item.startswith("--max-num-queued-tokens=") for item in _container(place, "without")["args"])
    assert "holdfast_engine.zip" not in place.execute(pod, "ls", "/holdfast")
    assert not place.exists("configmap", "without-engine-limits")
    assert not _samples(place, pod, "holdfast:plugin_info")
    said = "without-l40s: no fast loop, because engine.plugin is Disabled; requests beyond its capacity are refused"
    place.wait_for("llms", "without", lambda found: said in condition(found, "Ready").get("message", ""), 30, said)


@pytest.mark.parametrize("name", ["rust", "several"])
def test_where_other_processes_serve_a_pod_answers_probes_and_is_scraped_on_its_own_port(
    name: str, services: None, place: Kubectl
) -> None:
    (pod,) = _pods(place, name)
    probes = [_container(place, name)[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness")]
    assert probes == ["pod", "pod"]
    (info,) = _samples(place, pod, "holdfast:plugin_info", port=8082)
    assert info["mode"] == "active"
    running = f'vllm:num_requests_running{{namespace="{place.namespace}", holdfast_service="{name}"}}'
    place.wait_until(lambda: bool(stack.ask(running)), 60, "a scrape")
    assert [row["metric"]["instance"].rpartition(":")[2] for row in stack.ask(running)] == ["8082"]


def test_the_status_says_which_front_end_runs(services: None, place: Kubectl) -> None:
    def said(name: str) -> str:
        placements = place.get_json("llms", name)["status"].get("placements", [{}])
        return str(placements[0].get("engine", {}).get("frontEnd", ""))

    for name, front_end in (("with", "Python"), ("rust", "Rust")):
        place.wait_until(lambda: said(name) == front_end, 120, f"the front end of {name}")  # noqa: B023


def test_an_image_the_plugin_does_not_know_gets_plain_flags_and_is_named(services: None, place: Kubectl) -> None:
    found = place.wait_for("llms", "old", lambda found: bool(condition(found, "Ready")), 60, "a condition")
    assert "the plugin knows vLLM 0.32 and 0.33, and the image is 0.31.0" in condition(found, "Ready")["message"]
    args = _container(place, "old")["args"]
    assert _SCHEDULER not in args
    assert any(item.startswith("--max-num-queued-tokens=") for item in args)


def test_an_upgrade_replaces_no_engine_until_a_revision_asks_for_it(
    services: None, place: Kubectl, tmp_path: pathlib.Path
) -> None:
    pods, files = _pods(place, "with"), _files(place, "with")
    with _operator_of_a_later_version(place, tmp_path):
        # What it does to this service shows that it has looked at it.
        place.patch("llms", "with", {"spec": {"slo": {"ttft": "3s"}}})
        place.wait_until(lambda: '"ttftSeconds":3' in _told(place, "with"), 60, "the new operator at work")
        place.wait_for("llms", "with", _is_observed, 60, "the status of the new operator")
        assert _pods(place, "with") == pods
        assert _files(place, "with") == files
        assert place.exists("configmap", files)

        place.patch("llms", "with", {"spec": {"engine": {"pluginRevision": 2}}})
        place.wait_until(lambda: _files(place, "with") != files, 30, "the new plugin in the template")
        place.wait_until(lambda: _is_replaced(place, "with", pods), _READY_SECONDS, "an engine with the new plugin")
        (pod,) = _pods(place, "with")
        read = (
            "import zipfile; files = zipfile.ZipFile('/holdfast/holdfast_engine.zip');"
            "print(files.read('holdfast_engine/objectives/rules.py'))"
        )
        assert "a later version" in place.execute(pod, "python3", "-c", read)
        assert place.exists("configmap", files), "an undo of the rollout would need it"


def _service(name: str, image: str = "", **engine: Any) -> Json:
    found = stack.small_service(name, max=1)
    given = found["spec"]["engine"]
    found["spec"]["engine"] = {**given, **engine, "image": image or given["image"]}
    if image:
        found["spec"]["engine"]["args"] = []
    return found


@contextmanager
def _operator_of_a_later_version(place: Kubectl, folder: pathlib.Path) -> Iterator[None]:
    """In place of the cluster's operators, one for this namespace whose plugin is another one."""
    shutil.copytree(stack.REPOSITORY / "operator", folder / "operator", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "operator/holdfast_engine/objectives/rules.py").open("a") as file:
        file.write('\nVERSION = "a later version"\n')
    with stack.no_operator():
        command = [sys.executable, "-m", "holdfast.cli.main", "run", "--prometheus-url=http://127.0.0.1:9", "--tick=2s"]
        where = [
            f"--namespace={place.namespace}",
            f"--lease-namespace={place.namespace}",
            *stack.ANY_PORTS,
            stack.ALONE,
        ]
        process = subprocess.Popen(
            [*command, *where, f"--kubeconfig={os.environ['KUBECONFIG']}"],
            env={**os.environ, "PYTHONPATH": str(folder / "operator")},
            cwd=folder,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(patient(30.0))


def _is_ready(found: Json) -> bool:
    return condition(found, "Ready").get("status") == "True"


def _is_observed(found: Json) -> bool:
    return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])


def _is_replaced(place: Kubectl, service: str, before: list[str]) -> bool:
    now = _pods(place, service)
    ready = condition(place.get_json("pod", now[0]), "Ready").get("status") == "True" if len(now) == 1 else False
    return ready and not set(now) & set(before)


def _pods(place: Kubectl, service: str) -> list[str]:
    found = [pod["metadata"] for pod in place.items("pods", f"holdfast.dev/service={service}")]
    return sorted(meta["name"] for meta in found if "deletionTimestamp" not in meta)


def _template(place: Kubectl, service: str) -> Json:
    place.wait_until(lambda: place.exists("deployment", stack.deployment_of(service)), 60, "a Deployment")
    found: Json = place.get_json("deployment", stack.deployment_of(service))["spec"]["template"]["spec"]
    return found


def _container(place: Kubectl, service: str) -> Json:
    found: Json = _template(place, service)["containers"][0]
    return found


def _files(place: Kubectl, service: str) -> str:
    """The ConfigMap that the template mounts at /holdfast."""
    (name,) = (v["configMap"]["name"] for v in _template(place, service)["volumes"] if v["name"] == "holdfast")
    return str(name)


def _told(place: Kubectl, service: str) -> str:
    return str(place.get_json("configmap", f"{service}-engine-limits")["data"]["l40s"])


def _samples(place: Kubectl, pod: str, metric: str, port: int = 8000) -> list[dict[str, str]]:
    """The labels of a metric at the engine's own /metrics, or at the pod's."""
    address = place.get_json("pod", pod)["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=patient(10.0)) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [sample.labels for family in families for sample in family.samples if sample.name == metric]
