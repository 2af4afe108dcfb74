"""`holdfast adopt` prints an LLMService that the API server takes, or why there is none."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.llmservice import LLMService
from holdfast.cli import adopt
from holdfast.enginemodel import acceleratornames
from tests.control.test_targets import HPA, KEDA, autoscaler, cluster
from tests.fakes import ListingApi
from tests.observe.foreign import PRODUCT, deployment, pod

AIM = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "my-vllm"}
NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "labels": {PRODUCT: "NVIDIA-H100-80GB-HBM3"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
}

EXAMPLE = Path(__file__).parents[2] / "examples" / "adopt.yaml"


def arguments(**given: Any) -> argparse.Namespace:
    usual = {"namespace": "prod", "ttft": "1s", "tpot": "50ms", "objective": "99%", "json": False}
    return argparse.Namespace(**{**usual, **given})


async def printed(capsys: pytest.CaptureFixture[str], api: ListingApi, **given: Any) -> tuple[int, str, str]:
    api.kinds |= {"nodes", "llmservices"}
    code = await adopt.told(api, arguments(**given), "my-vllm")
    told = capsys.readouterr()
    return code, told.out, told.err


async def test_the_printed_service_is_valid_and_only_recommends(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    api.put_object("/api/v1/nodes/n1", NODE)
    code, out, err = await printed(capsys, api)
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["apiVersion"] == "holdfast.dev/v1alpha1"
    service = LLMService.parse(yaml.safe_load(out))
    assert service.spec.target is not None
    assert service.spec.target.name == service.metadata.name == "my-vllm"
    assert service.spec.mode == "Recommend"
    assert "runs Qwen/Qwen3-8B in 2 replicas of 2 x nvidia.com/gpu (nvidia-h100-80gb-hbm3)" in out
    assert "Unknown" not in out
    assert api.writes() == []


async def test_the_example_is_what_is_printed_but_for_the_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await printed(capsys, cluster())
    body = yaml.safe_load(out)
    del body["metadata"]["namespace"]
    assert yaml.safe_load(EXAMPLE.read_text()) == body


async def test_objectives_are_those_that_were_given_and_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await printed(capsys, cluster(), ttft="300ms", tpot="25ms", objective="99.5%", json=True)
    assert json.loads(out)["spec"]["slo"] == {"ttft": "300ms", "tpot": "25ms", "objective": "99.5%"}


async def test_bounds_are_those_of_the_autoscaler_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    body = autoscaler("HorizontalPodAutoscaler", "web", AIM)
    body["spec"] |= {"minReplicas": 2, "maxReplicas": 6}
    api.put_object(HPA, body)
    _, out, err = await printed(capsys, api)
    assert yaml.safe_load(out)["spec"]["scaling"] == {"min": 2, "max": 6}
    assert "HorizontalPodAutoscaler web sizes Deployment my-vllm; delete it before" in err


async def test_a_scaled_object_to_zero_gives_a_minimum_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    api.kinds.add("scaledobjects")
    body = autoscaler("ScaledObject", "web", {"name": "my-vllm"})
    body["spec"] |= {"minReplicaCount": 0, "maxReplicaCount": 3}
    api.put_object(KEDA, body)
    _, out, _ = await printed(capsys, api)
    assert yaml.safe_load(out)["spec"]["scaling"] == {"min": 1, "max": 3}


async def test_a_large_deployment_may_stay_as_large(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await printed(capsys, cluster(body=deployment(replicas=30)))
    assert yaml.safe_load(out)["spec"]["scaling"] == {"min": 1, "max": 30}


async def test_one_replica_is_told_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await printed(capsys, cluster(pod(0), body=deployment(replicas=1)))
    assert " in 1 replica of 2 x " in out


async def test_without_nodes_the_accelerator_is_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    api.forbidden = {"nodes"}
    code, out, _ = await printed(capsys, api)
    assert code == 0
    assert "Unknown accelerator" in out


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, "(nvidia-h100-80gb, by its nodeSelector)"),
        ({"karpenter.k8s.aws/instance-gpu-name": "l40s"}, "(l40s, by its nodeSelector)"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "(nvidia-a100-sxm4-80gb, by its nodeSelector)"),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "(h100, by its nodeSelector)"),
        ({"node.kubernetes.io/instance-type": "p5en.48xlarge"}, "(h200, by its nodeSelector)"),
        ({"node.kubernetes.io/instance-type": "a2-ultragpu-1g"}, "(a100-80gb, by its nodeSelector)"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, "(h100, by its nodeSelector)"),
        ({"node.kubernetes.io/instance-type": "Standard_NC64as_T4_v3"}, "(t4, by its nodeSelector)"),
    ],
)
async def test_before_a_pod_has_a_node_the_accelerator_is_the_one_that_its_selector_names(
    selector: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = cluster(pod(0, ""), body=deployment(replicas=1, nodeSelector=selector))
    code, out, _ = await printed(capsys, waiting)
    assert code == 0
    assert f"1 replica of 2 x nvidia.com/gpu {told}." in out
    assert "Unknown" not in out


def test_every_gpu_of_a_known_machine_is_in_the_catalog() -> None:
    unknown = [gpu for _, gpu in acceleratornames._MACHINES if acceleratornames.find_accelerator(gpu) is None]
    assert unknown == []


@pytest.mark.parametrize("machine", ["m5.large", "p5", "Standard_D4s_v5", "h100", "", "p5 .48xlarge"])
async def test_a_machine_that_names_no_gpu_leaves_it_unknown(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    selector = {"node.kubernetes.io/instance-type": machine, "pool": "gpu"}
    _, out, _ = await printed(capsys, cluster(pod(0, ""), body=deployment(replicas=1, nodeSelector=selector)))
    assert "1 replica of 2 x nvidia.com/gpu." in out
    assert "Unknown accelerator" in out


async def test_a_node_says_more_than_a_selector(capsys: pytest.CaptureFixture[str]) -> None:
    selector = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    api = cluster(body=deployment(nodeSelector=selector))
    api.put_object("/api/v1/nodes/n1", NODE)
    _, out, _ = await printed(capsys, api)
    assert "(nvidia-h100-80gb-hbm3)." in out


async def test_it_is_said_that_a_target_has_no_prices(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await printed(capsys, cluster())
    assert "no prices" in out
    assert "holdfast plan --cost" in out


async def test_what_cannot_be_sized_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for api, words in (
        (ListingApi(), "Deployment my-vllm does not exist in namespace prod"),
        (
            cluster(body=deployment(containers=[{"name": "web", "image": "nginx"}])),
            "no container of Deployment my-vllm",
        ),
    ):
        code, out, err = await printed(capsys, api)
        assert (code, out) == (1, "")
        assert words in err
        assert err.count("\n") == 1


async def test_what_may_not_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    api.forbidden = {"pods"}
    code, _, err = await printed(capsys, api)
    assert code == 1
    assert "you may not list pods in namespace prod" in err


async def test_a_deployment_with_a_service_already_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster()
    path = "/apis/holdfast.dev/v1alpha1/namespaces/prod/llmservices/first"
    api.put_object(path, {"metadata": {"name": "first"}, "spec": {"target": {"name": "my-vllm"}}})
    code, out, err = await printed(capsys, api)
    assert (code, out) == (1, "")
    assert "LLMService first has Deployment my-vllm as target already" in err


async def test_bad_objectives_are_refused_with_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = await printed(capsys, cluster(), ttft="soon")
    assert (code, out) == (2, "")
    assert "spec.slo.ttft" in err


def test_only_deployments_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt.run(arguments(deployment="statefulset/x")) == 2
    assert "only Deployments can be adopted" in capsys.readouterr().err


def test_a_name_that_no_service_can_have_is_made_one_that_can() -> None:
    for name, own in (("my.vllm", "my-vllm"), ("8b", "llm-8b")):
        assert adopt.manifest("prod", name, arguments(), {"min": 1, "max": 2})["metadata"]["name"] == own
