"""A Deployment of somebody else is read as if Holdfast had made it, or refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.api.reasons import Reason
from holdfast.api.target import TARGET_RULES
from holdfast.control.status import node_labels, remedies
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.service import BatchingLimits, ServiceKey
from holdfast.enginemodel.prior import option_prior
from holdfast.observe.adoption.adoption import TargetState, accelerator_labels, adopted, own_pods, rivals, selector_text
from holdfast.observe.objects import ended, failure_words, mapping
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.failure_words import Remedy
from holdfast.rendered.names import DELETION_COST
from tests.observe.foreign import CONTAINER, PRODUCT, deployment, named, node, pod, service, with_container

H100 = {PRODUCT: "NVIDIA-H100-80GB-HBM3"}


def taken(state: TargetState, part: ServiceParts | None = None) -> ServiceParts:
    found = adopted(part or service(), state, H100)
    assert isinstance(found, ServiceParts), found
    return found


def refusal(state: TargetState) -> str:
    found = adopted(service(), state, {})
    assert isinstance(found, Invalid)
    assert found.reason is Reason.TARGET_UNUSABLE
    assert found.key == ServiceKey("prod", "chat")
    return found.message


def test_model_flags_and_accelerator_are_those_of_the_deployment() -> None:
    spec = taken(TargetState(deployment(), (pod(0),))).spec
    assert (spec.model_uri, spec.batching) == ("Qwen/Qwen3-8B", BatchingLimits(64, None))
    (option,) = spec.accelerators
    assert (option.name, option.resource, option.gpus_per_replica) == ("nvidia-h100-80gb-hbm3", "nvidia.com/gpu", 2)
    assert dict(option.node_selector) == H100
    assert not option_prior(spec.model_uri, option, spec.quantization).unknown_accelerator


def test_objectives_and_bounds_are_those_of_the_service() -> None:
    part = named(service(scaling={"min": 2, "max": 7}, priority=9, mode="Auto"), priority=3)
    spec = taken(TargetState(deployment(), (pod(0),)), part).spec
    assert (spec.slo.ttft_seconds, spec.min_replicas, spec.max_replicas, spec.priority) == (1.0, 2, 7, 3)
    assert not spec.recommend_only


def test_a_service_with_a_target_only_recommends_unless_it_says_auto() -> None:
    assert taken(TargetState(deployment())).spec.recommend_only


def test_replicas_and_size_are_those_of_the_deployment() -> None:
    part = taken(TargetState(deployment(replicas=3), (pod(1), pod(0))))
    assert [replica.phase for replica in part.replicas] == [ReplicaPhase.READY] * 2
    assert {replica.accelerator for replica in part.replicas} == {"nvidia-h100-80gb-hbm3"}
    (placement,) = part.placements
    assert (placement.replicas, placement.workload.name) == (3, "my-vllm")
    assert placement.revision == part.spec.accelerators[0].revision


def test_what_a_replica_carries_is_learned_anew_for_other_arguments() -> None:
    changed = with_container(args=["--model=Qwen/Qwen3-8B", "--max-num-seqs=8"])
    before, after = (taken(TargetState(each)).spec.accelerators[0] for each in (deployment(), changed))
    assert before.revision != after.revision


def test_the_pods_restrict_the_nodes_as_their_template_does() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    state = TargetState(deployment(nodeSelector={"pool": "a"}, tolerations=tolerations))
    (option,) = taken(state).spec.accelerators
    assert dict(option.node_selector) == {"pool": "a", **H100}
    assert option.tolerations[0].key == "gpu"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"resources": {}}, ("nvidia.com/gpu", 2, 1, 1)),
        ({"resources": {"limits": {"amd.com/gpu": "8"}}, "args": ["-tp=4", "-dp=2"]}, ("amd.com/gpu", 8, 1, 2)),
        ({"resources": {}, "args": ["-tp=2", "-pp=2"]}, ("nvidia.com/gpu", 4, 2, 1)),
        ({"args": ["-pp=3"]}, ("nvidia.com/gpu", 2, 1, 1)),
    ],
)
def test_gpus_are_those_of_the_limits_else_those_of_the_flags(changes: dict[str, Any], expected: object) -> None:
    (option,) = taken(TargetState(with_container(**changes))).spec.accelerators
    assert (option.resource, option.gpus_per_replica, option.pipeline, option.data) == expected


def test_a_model_that_the_arguments_hide_is_unknown_and_no_fault() -> None:
    spec = taken(TargetState(with_container(args=["--config=/x.yaml"]))).spec
    assert spec.model_uri == "my-vllm"


REFUSED = {
    "does not exist in namespace prod; create it": TargetState(),
    "the operator may not list pods in namespace prod; grant it": TargetState(unreadable="list pods in namespace prod"),
    "was made by Holdfast, which sizes it already": TargetState(
        {**deployment(), "metadata": {"name": "my-vllm", "ownerReferences": [{"apiVersion": "holdfast.dev/v1alpha1"}]}}
    ),
    "may not get and patch deployments/scale in namespace prod": TargetState(deployment(), may_scale=False),
    "no container of Deployment my-vllm runs vLLM (web)": TargetState(
        deployment(containers=[{"name": "web", "image": "nginx"}])
    ),
    "runs vLLM (it has none)": TargetState(deployment(containers=[])),
    "containers server and second of Deployment my-vllm all run vLLM": TargetState(
        deployment(containers=[CONTAINER, {**CONTAINER, "name": "second"}])
    ),
    "divides an engine among several pods (--nnodes)": TargetState(with_container(args=["--nnodes=2"])),
    # D11: llm-d/llm-d-autoscaling#250
    "is one half of an engine (kv_producer)": TargetState(
        with_container(args=["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'])
    ),
    "is one half of an engine (kv_consumer)": TargetState(
        with_container(args=["--kv-transfer-config.kv_role=kv_consumer"])
    ),
    "is one half of an engine (ec_producer)": TargetState(
        with_container(args=["--ec-transfer-config=$(EC)"], env=[{"name": "EC", "value": '{"ec_role": "ec_producer"}'}])
    ),
    # D12: kubernetes-sigs/lws#184, ray-project/kuberay#4099
    "it shares 16 GPUs and a pod has 8": TargetState(
        with_container(
            command=["sh", "-c", "ray start --head; vllm serve a/b -tp 8 --pipeline-parallel-size=2"],
            args=[],
            resources={"limits": {"nvidia.com/gpu": "8"}},
        )
    ),
    "it shares 2 GPUs and a pod has 1": TargetState(
        with_container(args=["a/b", "-dp", "2"], resources={"limits": {"nvidia.com/gpu": "1"}})
    ),
    "container server of Deployment my-vllm starts several engines": TargetState(
        with_container(command=["sh", "-c", "vllm serve a/b & vllm serve c/d"], args=[])
    ),
    "generates no text (BAAI/bge-m3)": TargetState(with_container(args=["BAAI/bge-m3"])),
    "generates no text (openai/whisper-large-v3)": TargetState(
        with_container(args=["--port", "80", "openai/whisper-large-v3", "--runner", "auto"])
    ),
    "generates no text (pooling)": TargetState(with_container(args=["--runner", "pooling"])),
    "runs vLLM with --disable-log-stats": TargetState(with_container(args=["--disable_log_stats"])),
}


@pytest.mark.parametrize(("words", "state"), REFUSED.items(), ids=REFUSED.keys())
def test_what_cannot_be_sized_is_refused_in_one_sentence(words: str, state: TargetState) -> None:
    told = refusal(state)
    assert words in told
    assert "\n" not in told
    assert ". " not in told


@pytest.mark.parametrize("generates", [["--runner=generate"], ["--task", "generate"]])
def test_a_model_of_such_a_name_is_taken_where_its_arguments_say_that_it_generates(generates: list[str]) -> None:
    taken(TargetState(with_container(args=["team/embedding-chat", *generates])))


def test_a_whole_engine_that_moves_its_cache_is_taken() -> None:
    taken(TargetState(with_container(args=["m", "--kv-transfer-config", '{"kv_role":"kv_both"}'])))


def test_a_deployment_with_labels_of_ours_and_no_owner_is_ours_too() -> None:
    body = deployment()
    body["metadata"]["labels"] |= {"holdfast.dev/service": "x", "app.kubernetes.io/managed-by": "holdfast"}
    assert "was made by Holdfast" in refusal(TargetState(body))


def test_two_services_with_one_target_are_both_refused_and_others_are_not() -> None:
    parts = [service("a"), service("b"), service("c", target="other")]
    found = {each.key.name: each.message for each in rivals(parts)}
    assert sorted(found) == ["a", "b"]
    assert "LLMService b has Deployment my-vllm as target too" in found["a"]


def test_another_autoscaler_is_never_fought_not_even_by_a_pin() -> None:
    state = TargetState(deployment(), autoscaler="HorizontalPodAutoscaler x")
    part = taken(state, service(mode="Auto", replicas=2))
    assert part.spec.recommend_only
    assert part.spec.pinned_replicas is None
    assert part.adoption is not None
    assert part.adoption.autoscaler == "HorizontalPodAutoscaler x"


def test_only_pods_of_its_own_replica_sets_are_replicas() -> None:
    alone = pod(1, ownerReferences=[])
    other = pod(2, ownerReferences=[{"kind": "ReplicaSet", "name": "my-vllm-b-7d9f8c6b5d", "controller": True}])
    unlabelled = pod(3, labels={})
    assert own_pods(deployment(), (pod(0), alone, other, unlabelled)) == (pod(0),)


def test_the_accelerator_is_that_of_most_pods_and_unknown_without_nodes() -> None:
    nodes = [node("n1"), node("n2", "NVIDIA-L40S"), node("n3", "NVIDIA-L40S")]
    assert accelerator_labels([pod(0), pod(1, "n2"), pod(2, "n3")], nodes) == {PRODUCT: "NVIDIA-L40S"}
    assert accelerator_labels([pod(0), pod(1, "n2")], nodes) == {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
    assert accelerator_labels([pod(0, "gone"), pod(1, "")], nodes) == {}


def test_a_shared_gpu_is_not_taken_for_a_whole_one() -> None:
    labels = accelerator_labels([pod(0)], [node(**{"nvidia.com/gpu.replicas": "4"})])
    found = adopted(service(), TargetState(deployment(), (pod(0),)), labels)
    assert isinstance(found, ServiceParts)
    assert option_prior(found.spec.model_uri, found.spec.accelerators[0], None).unknown_accelerator


@pytest.mark.parametrize(
    ("amounts", "annotations"),
    [({"nvidia.com/gpumem": "24000"}, {}), ({"nvidia.com/gpucores": 30}, {}), ({}, {"gpu-fraction": "0.5"})],
)
def test_a_share_that_is_asked_for_next_to_the_gpu_is_not_taken_for_a_whole_one(
    amounts: dict[str, Any], annotations: dict[str, str]
) -> None:
    body = with_container(resources={"limits": {"nvidia.com/gpu": "2", **amounts}})
    body["spec"]["template"]["metadata"]["annotations"] = annotations
    (option,) = taken(TargetState(body, (pod(0),))).spec.accelerators
    assert (option.resource, option.gpus_per_replica) == ("nvidia.com/gpu", 2)
    assert option_prior("Qwen/Qwen3-8B", option, None).unknown_accelerator


def test_a_deletion_cost_of_somebody_else_is_left_to_them() -> None:
    theirs = pod(0, annotations={DELETION_COST: "7"})
    part = taken(TargetState(deployment(), (theirs, pod(1))))
    assert part.adoption is not None
    assert part.adoption.priced == {theirs["metadata"]["name"]}


def test_a_selector_of_every_kind_is_asked_for_as_the_api_server_has_it() -> None:
    body = deployment()
    body["spec"]["selector"]["matchExpressions"] = [
        {"key": "a", "operator": "In", "values": ["x", "y"]},
        {"key": "b", "operator": "NotIn", "values": ["z"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    assert selector_text(body) == "app=my-vllm,a in (x,y),b notin (z),c,!d"


def remedies_in(found: object) -> Iterator[Remedy]:
    if isinstance(found, Remedy):
        yield found
    elif isinstance(found, tuple):
        for each in found:
            yield from remedies_in(each)


REMEDIES = {
    each
    for module in (failure_words, mapping, ended, node_labels, remedies)
    for each in remedies_in(tuple(vars(module).values()))
}
EXCLUDED = [rule.message.split()[0] for rule in TARGET_RULES if "target exclude each other" in rule.message]
OF_SPEC = re.compile(rf"\b({'|'.join(EXCLUDED)})[.\[]|\bin the spec\b|of the spec\b|--platform|list another")


def test_no_remedy_for_a_target_names_a_field_that_a_target_excludes() -> None:
    assert {"model", "engine", "accelerators", "template"} <= set(EXCLUDED)
    assert len(REMEDIES) > 20
    by_spec = [each for each in REMEDIES if OF_SPEC.search(each.by_spec)]
    assert len(by_spec) > 15
    assert [each for each in REMEDIES if OF_SPEC.search(each.of("my-vllm"))] == []
    assert all(each.of("my-vllm").endswith(" in Deployment my-vllm") for each in by_spec)


def test_a_pod_of_a_target_that_fails_says_what_to_change_in_the_deployment() -> None:
    pulling = {"name": "server", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}
    failing = pod(0) | {"status": {"containerStatuses": [pulling]}}
    evicted = pod(1) | {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}}
    body = deployment()
    body["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}]
    part = taken(TargetState(body, (failing, evicted)))
    told = [part.replicas[0].detail, part.ended[0].detail, part.deployed[0].problems[0].message]
    assert [each.split("; ")[-1] for each in told] == [
        "correct the image, or set imagePullSecrets to a Secret with access to the registry in Deployment my-vllm",
        "use nodes with more memory, or request more in Deployment my-vllm",
        "change the policy of the cluster, or what the message names in Deployment my-vllm",
    ]
