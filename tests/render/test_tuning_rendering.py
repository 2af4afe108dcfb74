"""The Job that tunes: an engine as the replicas are, which nobody else can reach, and limits in a file of its pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.api.llmservice import LLMService
from holdfast.cli.main import build_parser
from holdfast.render.benchmark import job, measurand
from holdfast.render.settings import RenderSettings
from holdfast.render.tuning import LIMITS_FILE, LIMITS_VARIABLE, SERVICE_FILE
from holdfast.rendered.context import as_text
from holdfast.rendered.names import Manifest
from holdfast.rendered.own_engine import OwnEngine
from holdfast.tools.tune import goal
from holdfast_engine.objectives import limits
from tests.api.benchmark_refusals import RECORDED, benchmark
from tests.render.scenes import FULL, MINIMAL, chat_h100, service

OURS = RenderSettings(pod_files={}, activator_image="registry.example.com/holdfast:0.1.0")


def rendered(tune: Any = (), of: Manifest = MINIMAL, **spec: Any) -> Manifest:
    """The Job's pod template."""
    body = benchmark({"sweep": None, "tune": dict(tune), **spec})
    body["metadata"] |= {"namespace": "prod", "uid": "uid-9", "generation": 1}
    asked, declared = LLMBenchmark.parse(body), service(base=of)
    assert asked.spec.tune is not None
    replica = as_text(chat_h100(declared)["spec"]["template"])
    engine = OwnEngine(declared, "h100", replica, asked.spec.tune)
    found: Manifest = job(asked, measurand(asked, declared), OURS, engine)["spec"]["template"]
    return found


def own_engine(template: Manifest) -> Manifest:
    (found,) = [each for each in template["spec"]["initContainers"] if each["name"] == "vllm"]
    assert isinstance(found, dict)
    return found


def client(template: Manifest) -> Manifest:
    (found,) = template["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("of", [MINIMAL, FULL])
def test_the_engine_is_started_as_a_replica_and_ends_with_the_client(of: Manifest) -> None:
    template, replica = rendered(of=of), chat_h100(service(base=of))["spec"]["template"]["spec"]
    engine = own_engine(template)
    (copied,) = [each for each in replica["containers"] if each["name"] == "vllm"]
    for field in ("image", "command", "resources", "securityContext"):
        assert engine[field] == copied[field]
    assert all(each["restartPolicy"] == "Always" for each in template["spec"]["initContainers"])
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"].get("nodeSelector") == replica.get("nodeSelector")
    assert template["spec"].get("tolerations") == replica.get("tolerations")
    assert "startupProbe" in engine, "the client begins once the engine has served a token"
    assert "lifecycle" not in engine, "nobody has to be told that it goes"


def test_replicas_that_need_its_gpus_come_first() -> None:
    assert chat_h100(service(base=FULL))["spec"]["template"]["spec"]["priorityClassName"] == "serving"
    assert "priorityClassName" not in rendered(of=FULL)["spec"]


def test_certificates_that_nobody_looks_at_are_not_waited_for() -> None:
    trusting = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    names = [each["name"] for each in rendered(of=FULL, target=trusting)["spec"]["volumes"]]
    assert "ca" not in names


@pytest.mark.parametrize("of", [MINIMAL, FULL])
def test_nobody_else_can_reach_it_by_a_service_and_no_prometheus_counts_it(of: Manifest) -> None:
    metadata = rendered(of=of)["metadata"]
    ours = {"app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/managed-by"}
    assert metadata["labels"].keys() == ours | {"holdfast.dev/benchmark", "holdfast.dev/benchmark-run"}
    assert not [name for name in metadata["annotations"] if name.startswith("prometheus.io/")]


def test_the_client_writes_the_file_that_the_engine_reads() -> None:
    template = rendered()
    engine, sender = own_engine(template), client(template)
    assert LIMITS_VARIABLE == limits.LIMITS_VARIABLE
    assert {"name": LIMITS_VARIABLE, "value": LIMITS_FILE} in engine["env"]
    assert f"--limits-file={LIMITS_FILE}" in sender["args"]
    (volume,) = [each["name"] for each in template["spec"]["volumes"] if each["name"].startswith("tune-limits")]
    for container in (engine, sender):
        assert {"name": volume, "mountPath": LIMITS_FILE.rpartition("/")[0]} in container["volumeMounts"]
    names = [each["name"] for each in template["spec"]["volumes"]]
    assert len(names) == len(set(names))


def test_the_pod_has_no_token_and_the_client_a_user_of_its_own() -> None:
    template = rendered(of=FULL)
    assert template["spec"]["automountServiceAccountToken"] is False
    assert client(template)["securityContext"]["runAsUser"] == 65532
    assert client(template)["securityContext"]["readOnlyRootFilesystem"] is True
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_it_starts_with_the_largest_limits_that_are_looked_for_and_else_with_those_of_replicas() -> None:
    def flags(tune: Any) -> list[str]:
        return [each for each in own_engine(rendered(tune, FULL))["args"] if each.startswith("--max-num-")]

    assert "--max-num-seqs=256" in flags({})
    wider = flags({"maxNumSeqs": 1024})
    assert "--max-num-seqs=1024" in wider
    assert "--max-num-batched-tokens=4096" in wider
    assert len(wider) == len(flags({}))


def test_the_engine_is_asked_without_tls_for_certificates_name_the_service() -> None:
    engine = own_engine(rendered(of=FULL))
    assert not [each for each in engine["args"] if "ssl" in each]
    assert {engine[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "livenessProbe")} == {"HTTP"}
    assert "--url=http://127.0.0.1:8000" in client(rendered(of=FULL))["args"]


def test_the_file_of_the_service_is_one_that_tuning_reads_with_the_objectives_of_the_run() -> None:
    template = rendered(of=FULL, slo={"ttft": "3s", "tpot": "60ms", "objective": "95%"})
    (volume,) = [each for each in template["spec"]["volumes"] if "service" in each["name"] and "downwardAPI" in each]
    (item,) = volume["downwardAPI"]["items"]
    text = template["metadata"]["annotations"][item["fieldRef"]["fieldPath"].split("'")[1]]
    found = LLMService.parse(yaml.safe_load(text))
    assert found.spec.model.uri == "pvc://weights/llama/70b"
    assert found.spec.slo.ttft_seconds == 3.0
    assert found.spec.slo.objective_share == 0.95
    assert [each.name for each in found.spec.accelerators] == ["h100", "mi300x"]
    assert "secret" not in text.lower()
    assert json.loads(text)["spec"].keys() == {"model", "slo", "accelerators"}
    assert f"--filename={SERVICE_FILE}" in client(template)["args"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lengths": {"promptTokens": 9, "outputTokens": 3, "cv": 0.5}, "maxClientLag": "2s"},
        {"lengths": {"trace": {**RECORDED, "format": "mooncake"}}},
        {"target": {"ignoreEos": False, "api": "Chat", "model": "a b"}},
    ],
)
def test_the_command_line_understands_what_it_is_told(spec: dict[str, Any]) -> None:
    arguments = client(rendered({"requests": 60, "maxTrials": 9}, **spec))["args"]
    parsed = build_parser(["tune"]).parse_args(arguments)
    assert (parsed.most_trials, parsed.requests, parsed.accelerator) == (9, 60, "h100")
    assert str(parsed.summary) == "/dev/termination-log"
    assert parsed.time_limit == 1800.0, "of an hour, so that what was found is told before the run is ended"
    parsed.limits_file = parsed.limits_file.parents[2] / "limits"  # a folder that is here too
    goal.check(parsed)
