"""From an older chart to the present one while engines serve; then `helm test`, and a CRD that was left behind.

The operator is the present one before and after: its older image cannot be built here. The chart, the CRDs and the
rights are those of commit 67a7e69 at first.

In a cluster of its own: python -m e2e.cluster run -- python -m pytest e2e/test_upgrade.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import urllib.request

import pytest

from e2e import stack
from e2e.engine.server import samples_of
from e2e.kubectl import Json, Kubectl, condition
from e2e.load import verdict
from e2e.load.records import Record
from e2e.load.steady import SteadyLoad
from e2e.patience import patient
from holdfast.api import crd
from holdfast.api.crd_fields import missing_fields
from holdfast.control.tick.served_crds import PATH
from tests.chart.test_chart import TRIAL, render

pytestmark = pytest.mark.cluster

_OLD_CHART = stack.REPOSITORY / "tests/data/holdfast-chart-67a7e69.tgz"


@dataclasses.dataclass
class Upgraded:
    """Engines before and after the upgrade, with the pod template of their Deployment, and what clients saw."""

    before: list[Json]
    after: list[Json]
    templates: tuple[Json, Json]
    service: Json
    records: list[Record]
    arrived: float
    """Requests that the engines of before have counted."""


@pytest.fixture(scope="module")
def upgraded(cluster: str, place: Kubectl) -> Upgraded:
    """Two engines under load, while the release goes from the old chart to the present one."""
    stack.uninstall()
    stack.offer_gpus(8)
    stack.install(_OLD_CHART)
    place.apply(stack.service("chat", scaling={"min": 2, "max": 2}))
    place.wait_for("llms", "chat", _serves, 120, "two replicas")
    before, template = _engines(place), _template(place)
    with SteadyLoad(f"http://chat.{place.namespace}.svc:8000", "Qwen/Qwen3-8B", 1.0) as load:
        stack.install()
        # An edit that the new operator has taken in shows that it reconciled the service.
        place.patch("llms", "chat", {"spec": {"scaling": {"max": 3}}})
        edited = place.get_json("llms", "chat")["metadata"]["generation"]
        place.wait_for("llms", "chat", lambda found: _serves(found, edited), 120, "the edit in the status")
    found = place.get_json("llms", "chat")
    arrived = sum(_arrived(pod) for pod in place.items("pods", "holdfast.dev/service=chat"))
    return Upgraded(before, _engines(place), (template, _template(place)), found, load.records, arrived)


def test_an_upgrade_restarts_no_engine(upgraded: Upgraded) -> None:
    assert len(upgraded.before) == 2
    assert upgraded.after == upgraded.before
    assert upgraded.templates[1] == upgraded.templates[0]


def test_an_upgrade_loses_no_request(upgraded: Upgraded) -> None:
    assert upgraded.records
    assert not [record for record in upgraded.records if verdict.is_lost(record)]


def test_an_upgrade_loses_no_count(upgraded: Upgraded) -> None:
    assert upgraded.arrived == len(upgraded.records)


def test_helms_own_test_keeps_an_slo_and_leaves_nothing(upgraded: Upgraded) -> None:
    command = ["helm", "test", "holdfast", "--namespace", stack.NAMESPACE, f"--timeout={patient(200.0):.0f}s", "--logs"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    system = Kubectl(stack.NAMESPACE)
    left = "llms,pods,deployments,services,serviceaccounts,roles,rolebindings"
    system.wait_until(lambda: "holdfast-test" not in system.run("get", left, "-o", "name"), 60, "nothing of it left")


def test_the_api_server_takes_the_network_policies(upgraded: Upgraded) -> None:
    objects = render({**TRIAL, "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]}})
    policies = [item for item in objects if item["kind"] == "NetworkPolicy"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": policies})
    Kubectl(stack.NAMESPACE).run("apply", "--dry-run=server", "--filename", "-", stdin=text)


def test_a_field_that_an_older_crd_drops_is_told_until_the_crd_is_updated(upgraded: Upgraded, place: Kubectl) -> None:
    system, manifest = Kubectl(stack.NAMESPACE), stack.service("chat", scaling={"min": 2, "max": 3}, priority=7)
    system.run("replace", "--filename", "-", stdin=json.dumps(_older_crd("priority")))
    system.wait_until(lambda: _missing() == ("spec.priority",), 60, "the older CRD to be served")
    system.run("rollout", "restart", "deployment/holdfast")
    system.wait_available("holdfast", 120)

    place.run("apply", "--validate=warn", "--filename", "-", stdin=json.dumps(manifest))
    found = place.wait_for("llms", "chat", lambda each: _stalled(each) == "CrdTooOld", 120, "the lost field")
    assert "no effect: spec.priority;" in condition(found, "Stalled")["message"]
    assert condition(found, "Ready")["status"] == "True"
    assert f"LLMService {place.namespace}/chat: CrdTooOld: 1 field has no effect" in stack.operator_logs()

    system.run("apply", "--filename", "-", stdin=system.execute("deployment/holdfast", "holdfast", "crd"))
    place.wait_for("llms", "chat", lambda each: _stalled(each) == "", 120, "the update of the CRD")
    place.apply(manifest)
    assert place.get_json("llms", "chat")["spec"]["priority"] == 7
    assert _engines(place) == upgraded.before


def test_engines_of_another_front_end_take_over_under_load_and_no_request_is_lost_or_counted_twice(
    upgraded: Upgraded, place: Kubectl
) -> None:
    rust = "holdfast.dev/service=chat,holdfast.dev/front-end=rust"
    with SteadyLoad(f"http://chat.{place.namespace}.svc:8000", "Qwen/Qwen3-8B", 1.0) as load:
        place.patch("llms", "chat", {"spec": {"engine": {"frontEnd": "Rust"}}})
        place.wait_until(lambda: _ready(place, rust) == 2 == len(_engines(place)), 240, "engines with the other one")
    # An emulated engine counts the token of each new pod's own; the real one does not (e2e/engine).
    sent = len(upgraded.records) + len(load.records) + 2
    assert not [record for record in load.records if verdict.is_lost(record)]
    series = f'holdfast:requests_arrived_total{{namespace="{place.namespace}", holdfast_service="chat"}}'

    def told() -> list[Json]:
        return stack.ask(f"max_over_time({series}[30m])")

    place.wait_until(lambda: sum(float(row["value"][1]) for row in told()) >= sent, 60, f"{sent} counted requests")
    assert sum(float(row["value"][1]) for row in told()) == sent
    assert _ports(told()) == ["8000", "8000", "8082", "8082"]
    # Prometheus tells the last values of a removed pod until its next discovery.
    place.wait_until(lambda: _ports(stack.ask(series)) == ["8082", "8082"], 60, "series of the new engines alone")


def _ports(rows: list[Json]) -> list[str]:
    return sorted(row["metric"]["instance"].rpartition(":")[2] for row in rows)


def _ready(place: Kubectl, selector: str) -> int:
    pods = place.items("pods", selector)
    return sum(condition(pod, "Ready").get("status") == "True" for pod in pods)


def _arrived(pod: Json) -> float:
    """What a pod's own page says now, whatever Prometheus has seen of it."""
    url = f"http://{pod['status']['podIP']}:8000/metrics"
    with urllib.request.urlopen(url, timeout=patient(10.0)) as answer:
        return samples_of(answer.read().decode(), "holdfast:requests_arrived_total")[()]


def _stalled(found: Json) -> str:
    return str(condition(found, "Stalled").get("reason", ""))


def _missing() -> tuple[str, ...] | None:
    """The fields that the API server does not serve."""
    return missing_fields(json.loads(Kubectl().run("get", "--raw", PATH)))


def _older_crd(lacks: str) -> Json:
    """The CRD without a field of the spec."""
    found = crd.crd()
    del found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][lacks]
    return found


def _serves(found: Json, generation: int = 1) -> bool:
    status = found.get("status", {})
    ready = status.get("replicas", {}).get("ready") == 2 and condition(found, "Ready").get("status") == "True"
    return ready and status.get("observedGeneration", 0) >= generation


def _engines(place: Kubectl) -> list[Json]:
    """What would differ if a pod had been replaced or its container started again."""
    return [
        {
            "uid": pod["metadata"]["uid"],
            "restarts": [each["restartCount"] for each in pod["status"]["containerStatuses"]],
        }
        for pod in place.items("pods", "holdfast.dev/service=chat")
    ]


def _template(place: Kubectl) -> Json:
    template: Json = place.get_json("deployment", "chat-h100")["spec"]["template"]
    return template
