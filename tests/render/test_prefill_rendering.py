"""A prefill pool: a second set of engines beside the replicas, which nothing that selects the replicas selects."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.cli.main import build_parser
from holdfast.render import AcceleratorFacts, RenderContext, RenderSettings, render
from holdfast.rendered.names import Manifest
from holdfast_engine.objectives.rules import Role, parse_limits
from tests.render.scenes import SETTINGS, live, service

OURS = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")
PAIR: Manifest = {"router": {}, "replicas": 1, "prefill": {"replicas": 3}}
POOL = "chat.prefill-h100"
Found = dict[tuple[str, str], Manifest]


def rendered(of: LLMService, context: RenderContext | None = None, settings: RenderSettings = OURS) -> Found:
    """All objects by kind and name."""
    manifests = render(of, ["h100"], settings, context or RenderContext(pod_monitor=True))
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def engine(found: Found, deployment: str) -> Manifest:
    """The engine container of a Deployment."""
    container: Manifest = found["Deployment", deployment]["spec"]["template"]["spec"]["containers"][0]
    return container


def test_a_prefill_pool_adds_its_own_objects_of_fixed_size() -> None:
    alone, pair = rendered(service({"router": {}, "replicas": 1})), rendered(service(PAIR))
    assert set(pair) - set(alone) == {
        ("Service", "chat-prefill-replicas"),
        ("PodDisruptionBudget", "chat.prefill"),
        ("PodMonitor", "chat.prefill"),
        ("ConfigMap", "chat.prefill-engine-limits"),
        *(each for each in pair if each[1].startswith("chat.prefill-pod-")),
        ("Deployment", POOL),
    }
    assert set(alone) <= set(pair)
    assert pair["Deployment", POOL]["spec"]["replicas"] == 3
    assert {each["metadata"]["ownerReferences"][0]["name"] for each in pair.values()} == {"chat"}
    assert pair["Deployment", POOL]["spec"]["template"]["spec"]["serviceAccountName"] == "chat"


def test_without_a_router_there_is_no_prefill_pool_whose_gpus_would_be_idle() -> None:
    assert not [name for _, name in rendered(service(PAIR), settings=SETTINGS) if "prefill" in name]


def test_nothing_that_selects_the_replicas_selects_an_engine_of_the_prefill_pool() -> None:
    found = rendered(service(PAIR))
    labels = found["Deployment", POOL]["spec"]["template"]["metadata"]["labels"]
    assert labels["holdfast.dev/service"] == labels["holdfast_service"] == "chat.prefill"
    own = {("PodDisruptionBudget", "chat.prefill"), ("PodMonitor", "chat.prefill"), ("Deployment", POOL)}
    own.add(("Service", "chat-prefill-replicas"))
    selectors = {key: each["spec"]["selector"] for key, each in found.items() if "selector" in each.get("spec", {})}
    chosen = {key for key, said in selectors.items() if said.get("matchLabels", said).items() <= labels.items()}
    assert chosen == own


@pytest.mark.parametrize("deployment", ["chat-h100", POOL])
def test_engines_of_both_pools_read_each_others_kv_cache(deployment: str) -> None:
    container = engine(rendered(service(PAIR)), deployment)
    (said,) = [each for each in container["args"] if each.startswith("--kv-transfer-config=")]
    config = json.loads(said.partition("=")[2])
    assert config == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    variables = {each["name"]: each for each in container["env"]}
    assert variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"


def test_engines_of_each_pool_know_their_role_and_the_same_objectives() -> None:
    found = rendered(service(PAIR))
    names = ("chat-engine-limits", "chat.prefill-engine-limits")
    decode, prefill = (parse_limits(found["ConfigMap", name]["data"]["h100"]) for name in names)
    assert (decode.role, prefill.role) == (Role.DECODE, Role.PREFILL)
    assert decode.objectives == prefill.objectives
    alone = rendered(service({"router": {}}))["ConfigMap", "chat-engine-limits"]["data"]["h100"]
    assert "role" not in alone


def test_a_transfer_of_the_users_own_is_the_only_one() -> None:
    own = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}'
    found = rendered(service({**PAIR, "engine": {"args": [own]}}))
    for deployment in ("chat-h100", POOL):
        assert [each for each in engine(found, deployment)["args"] if "kv-transfer" in each] == [own]


def test_what_a_prefill_pool_leaves_out_is_as_outside() -> None:
    outside = {"args": ["--enforce-eager"], "env": [{"name": "A", "value": "outside"}]}
    found = rendered(service({**PAIR, "engine": outside, "batching": {"maxNumSeqs": 64}}))
    replica, prefill = engine(found, "chat-h100"), engine(found, POOL)
    assert replica["args"] == prefill["args"]
    assert {each["name"] for each in replica["env"]} == {each["name"] for each in prefill["env"]}


def test_what_a_prefill_pool_says_holds_for_it_alone() -> None:
    own: dict[str, Any] = {
        "replicas": 2,
        "accelerators": [{"name": "a100", "count": 2}],
        "args": ["--async-scheduling"],
        "env": [{"name": "A", "value": "inside"}],
        "batching": {"maxNumBatchedTokens": 16384},
    }
    outside = {"args": ["--enforce-eager"], "env": [{"name": "A", "value": "outside"}]}
    found = rendered(service({**PAIR, "prefill": own, "engine": outside}))
    replica, prefill = engine(found, "chat-h100"), engine(found, "chat.prefill-a100")
    assert prefill["args"][-1] == "--async-scheduling"
    assert replica["args"][-1] == "--enforce-eager"
    assert "--max-num-batched-tokens=16384" in set(prefill["args"]) - set(replica["args"])
    assert {"name": "A", "value": "inside"} in prefill["env"]
    assert {"name": "A", "value": "outside"} in replica["env"]
    assert prefill["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_an_operator_that_restarts_leaves_the_pods_of_a_prefill_pool_as_they_are() -> None:
    made = rendered(service(PAIR))["Deployment", POOL]
    kept = RenderContext(prefill=AcceleratorFacts(deployed=live(made)))
    again = rendered(service({**PAIR, "slo": {"ttft": "9s"}}), kept)["Deployment", POOL]
    assert again["spec"]["template"] == made["spec"]["template"]
    other = rendered(service({**PAIR, "prefill": {"replicas": 3, "args": ["--enforce-eager"]}}), kept)
    assert other["Deployment", POOL]["spec"]["template"] != made["spec"]["template"]


def test_a_router_knows_both_pools_and_is_ready_while_it_has_somewhere_to_send_requests() -> None:
    found = rendered(service({**PAIR, "model": {"uri": "Qwen/Qwen3-8B", "servedName": "chat model"}}))
    container = engine(found, "chat-router")
    said = build_parser().parse_args(container["args"])
    assert (said.replicas, said.prefill) == ("chat-replicas.prod.svc", "chat-prefill-replicas.prod.svc")
    assert said.model == "chat model"
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"
    assert found["Service", "chat-prefill-replicas"]["spec"]["selector"] == {"holdfast.dev/service": "chat.prefill"}


def test_a_service_that_gets_a_prefill_pool_starts_its_replicas_anew() -> None:
    alone, pair = service({"router": {}, "replicas": 1}), service(PAIR)
    key = "holdfast.dev/pod-inputs"
    inputs = [rendered(each)["Deployment", "chat-h100"]["metadata"]["annotations"][key] for each in (alone, pair)]
    assert len(set(inputs)) == 2
