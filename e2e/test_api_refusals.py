"""The real API server refuses bad objects with a message that names field and remedy, and takes good ones."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import stack
from e2e.campaign.agreement import dry_run
from e2e.cluster import nodes
from e2e.cluster.apiclient import ApiClient, ApiError
from e2e.kubectl import Kubectl, KubectlError
from e2e.patience import patient
from tests.api import benchmark_refusals
from tests.api.refusals import ACCEPTED, REFUSALS, Accepted, Refusal, changed

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def client(api: Kubectl) -> ApiClient:
    """Of the same cluster: a process of kubectl for each of hundreds of objects takes 20 times as long."""
    return nodes.connect()


@pytest.mark.parametrize("case", [*REFUSALS, *benchmark_refusals.REFUSED], ids=lambda case: case.sentence)
def test_refused_with_the_field_and_the_remedy(client: ApiClient, case: Refusal) -> None:
    with pytest.raises(ApiError) as refusal:
        dry_run(client, case.body)
    message = str(refusal.value)
    # A path may end in the message itself: root rules know no fields of metadata.
    assert case.at in message
    assert (case.server or case.remedy) in message
    assert not re.search(r"evaluating rule|no such (key|overload)", message), "a rule failed instead of judging"


@pytest.mark.parametrize("case", [*ACCEPTED, *benchmark_refusals.ACCEPTED], ids=lambda case: case.sentence)
def test_accepted(client: ApiClient, case: Accepted) -> None:
    assert dry_run(client, case.body)["metadata"]["name"] == case.name


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_examples_are_accepted(client: ApiClient, example: str) -> None:
    for body in yaml.safe_load_all((EXAMPLES / example).read_text()):
        body["metadata"].pop("namespace", None)
        assert dry_run(client, body)["spec"]


def test_defaults_are_those_of_the_types(client: ApiClient) -> None:
    spec = dry_run(client, changed({}))["spec"]
    assert spec["slo"] == {"ttft": "500ms", "tpot": "30ms", "objective": "99%", "window": "1h"}
    assert spec["scaling"] == {"min": 1, "max": 10, "minOnDemand": 0}
    assert not {"mode", "rollout", "engine", "batching"} & spec.keys()  # a default would look like a given field
    assert spec["accelerators"] == [{"name": "h100", "nodes": 1, "resource": "nvidia.com/gpu", "spot": False}]
    assert "replicas" not in spec


def test_a_partly_given_part_gets_the_rest_of_its_defaults(client: ApiClient) -> None:
    spec = dry_run(client, changed({"scaling": {"max": 3}}))["spec"]
    assert spec["scaling"] == {"min": 1, "max": 3, "minOnDemand": 0}


PATH = "/apis/holdfast.dev/v1alpha1/namespaces/default"
DEEP: dict[str, tuple[str, dict[str, Any]]] = {
    "template": ("llmservices", changed({"template": {"spec": {"q": "DEEP"}}})),
    "accelerator": ("llmservices", changed({"accelerators": [{"name": "h100", "template": {"q": "DEEP"}}]})),
    "tolerations": ("llmservices", changed({"accelerators": [{"name": "h100", "tolerations": [{"q": "DEEP"}]}]})),
    "resources": ("llmservices", changed({"engine": {"resources": {"q": "DEEP"}}})),
    "environment": ("llmservices", changed({"engine": {"env": [{"name": "A", "valueFrom": {"q": "DEEP"}}]}})),
    "benchmark": ("llmbenchmarks", benchmark_refusals.benchmark({"resources": {"q": "DEEP"}})),
}


@pytest.mark.parametrize("levels", [20, 200, 9_980])
@pytest.mark.parametrize("part", DEEP)
def test_no_part_stores_an_object_of_any_depth(api: Kubectl, part: str, levels: int) -> None:
    plural, body = DEEP[part]
    text = json.dumps(body).replace('"DEEP"', '{"q": ' * levels + "1" + "}" * levels)
    path = f"{PATH}/{plural}?dryRun=All&fieldValidation="
    with pytest.raises(KubectlError, match="unknown field"):
        api.run("create", "--raw", f"{path}Strict", "-f", "-", stdin=text)
    stored = json.loads(api.run("create", "--raw", f"{path}Ignore", "-f", "-", stdin=text))
    assert '"q"' not in json.dumps(stored)


def test_nulls_that_remove_what_the_operator_renders_are_stored(client: ApiClient) -> None:
    ids = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    template = {"spec": {"securityContext": ids, "topologySpreadConstraints": None}}
    assert dry_run(client, changed({"template": template}))["spec"]["template"] == template


def test_parts_of_pods_are_stored_as_they_are(client: ApiClient) -> None:
    template = {"spec": {"priorityClassName": "high", "containers": [{"name": "vllm", "workingDir": "/data"}]}}
    environment = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    spec = dry_run(client, changed({"template": template, "engine": {"env": environment}}))["spec"]
    assert spec["template"] == template
    assert spec["engine"]["env"] == environment


def test_scale_within_the_bounds_pins_the_size(api: Kubectl, namespace: Kubectl) -> None:
    namespace.create(changed({}))
    namespace.scale("llms", "chat", 4)
    assert namespace.get_json("llms", "chat")["spec"]["replicas"] == 4


def test_scale_outside_the_bounds_is_refused_with_the_remedy(api: Kubectl, namespace: Kubectl) -> None:
    namespace.create(changed({}))
    with pytest.raises(KubectlError, match="replicas must be within"):
        namespace.scale("llms", "chat", 11)


def test_explain_says_what_a_field_is_for(api: Kubectl) -> None:
    explained = api.run("explain", "llms.spec.slo", "--api-version", "holdfast.dev/v1alpha1")
    assert "Maximum time to first token of a good request" in explained
    assert "Rolling window of attainment and error budget" in explained


STATUS: dict[str, Any] = {
    "conditions": [
        {"type": kind, "status": "True", "reason": "X", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Ready", "SLOMet")
    ],
    "reason": "BelowCapacity",
    "replicas": {"desired": 4, "ready": 3, "summary": "3/4"},
    "slo": {
        "attainment": "99.2%",
        "budgetRemaining": "42%",
        "hardestClass": "premium",
        "arrivalRps": 41,
        "ttftP95": "410ms",
        "tpotP95": "24ms",
    },
    "lastDecision": {"time": "2026-01-01T00:00:00Z", "action": "ScaleUp", "reason": "BacklogToDrain", "message": "x"},
    "cost": {"perHour": 11.8},
    "placements": [{"accelerator": "h100", "desired": 4, "ready": 3}],
    "batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 4096},
}


def test_get_prints_the_columns_people_ask_for(api: Kubectl, namespace: Kubectl) -> None:
    namespace.create(changed({}))
    namespace.patch("llms", "chat", {"status": STATUS}, subresource="status")
    header, row = namespace.run("get", "llms", "-o", "wide").splitlines()
    assert " ".join(header.split()) == (
        "NAME READY SLO ATTAINMENT BUDGET REPLICAS RPS TTFT-P95 TPOT-P95 REASON AGE"
        " CLASS COST/H ACCELERATORS SEQUENCES TOKENS"
    )
    columns = row.split()
    assert " ".join(columns[:10]) == "chat True True 99.2% 42% 3/4 41 410ms 24ms BelowCapacity"
    assert columns[11:] == ["premium", "11.8", "h100", "64", "4096"]


@pytest.mark.parametrize("flag", ["--max-priority=nobody-is-here=1", "--namespace-share=nobody-is-here=50%"])
def test_an_operator_with_a_limit_of_an_unknown_namespace_does_not_start(cluster: str, flag: str) -> None:
    command = [sys.executable, "-m", "holdfast", "run", "--prometheus-url=http://127.0.0.1:9", *stack.ANY_PORTS]
    command += [f"--kubeconfig={os.environ['KUBECONFIG']}", flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60.0))
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert f"{flag.partition('=')[0]}: namespace nobody-is-here does not exist; correct its name" in said
