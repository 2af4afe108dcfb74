"""Targets are read anew each tick, what cannot be read changes nothing, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.act.api import ApiError
from holdfast.act.scale import scale
from holdfast.api.reasons import Reason
from holdfast.control.tick.targets import Found, Targets
from holdfast.domain.cluster import Workload
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.rendered.live import SCALING
from holdfast.rendered.names import DELETION_COST
from tests.control.parts import parts
from tests.fakes import ListingApi
from tests.observe.foreign import deployment, node, pod, service

NOW = 1000.0
DEPLOYMENT = "/apis/apps/v1/namespaces/prod/deployments/my-vllm"
PODS = "/api/v1/namespaces/prod/pods"
HPA = "/apis/autoscaling/v2/namespaces/prod/horizontalpodautoscalers/web"
AIBRIX = "/apis/autoscaling.aibrix.ai/v1alpha1/namespaces/prod/podautoscalers/web"
KEDA = "/apis/keda.sh/v1alpha1/namespaces/prod/scaledobjects/web"


def cluster(*pods: dict[str, Any], body: dict[str, Any] | None = None) -> ListingApi:
    api = ListingApi()
    api.put_object(DEPLOYMENT, body or deployment())
    for each in pods or (pod(0), pod(1)):
        api.put_object(f"{PODS}/{each['metadata']['name']}", each)
    return api


def priced(number: int, manager: str = SCALING, cost: str = "-5", **meta: Any) -> dict[str, Any]:
    fields = {"f:metadata": {"f:annotations": {f"f:{DELETION_COST}": {}}}}
    owner = {"manager": manager, "operation": "Update", "fieldsV1": fields}
    return pod(number, annotations={DELETION_COST: cost}, managedFields=[owner], **meta)


async def look(api: ListingApi, *given: ServiceParts, targets: Targets | None = None, now: float = NOW) -> Found:
    return await (targets or Targets(api)).look(given or (service(),), (node(),), now)


def autoscaler(kind: str, name: str, target: dict[str, str]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": {"scaleTargetRef": target}}


async def test_a_target_is_read_with_its_pods_and_their_gpus_are_in_use() -> None:
    found = await look(cluster())
    (part,) = found.parts
    assert [replica.name for replica in part.replicas] == [pod(0)["metadata"]["name"], pod(1)["metadata"]["name"]]
    assert part.spec.accelerators[0].name == "nvidia-h100-80gb-hbm3"
    assert found.nodes[0].used == (("nvidia.com/gpu", 4),)


async def test_services_without_a_target_cost_no_request_and_stay_the_same() -> None:
    api, own, nodes = cluster(), parts(), (node(),)
    found = await Targets(api).look((own,), nodes, NOW)
    assert found.parts[0] is own
    assert found.nodes is nodes
    assert api.requests == []


async def test_an_unchanged_target_stays_the_identical_object() -> None:
    api = cluster()
    targets = Targets(api)
    first, second = [(await look(api, targets=targets, now=NOW + tick)).parts[0] for tick in (0.0, 5.0)]
    assert first is second


async def test_reading_writes_nothing() -> None:
    api = cluster()
    await look(api)
    assert [write for write in api.writes() if "accessreview" not in write[1]] == []


async def test_a_missing_deployment_is_refused() -> None:
    (refused,) = (await look(ListingApi())).refused
    assert refused.reason is Reason.TARGET_UNUSABLE
    assert "Deployment my-vllm does not exist" in refused.message


async def test_what_the_operator_may_not_read_is_named() -> None:
    for kind in ("deployments", "pods", "horizontalpodautoscalers", "scaledobjects", "podautoscalers"):
        api = cluster()
        api.forbidden = {kind}
        (refused,) = (await look(api)).refused
        assert kind in refused.message
        assert "namespace prod" in refused.message


async def test_without_the_right_to_scale_a_target_is_refused_until_it_is_granted() -> None:
    for verb in ("get", "patch"):
        api = cluster()
        api.denied = {verb}
        targets = Targets(api)
        assert "deployments/scale" in (await look(api, targets=targets)).refused[0].message
        api.denied = set()
        assert (await look(api, targets=targets, now=NOW + 60.0)).parts


async def test_two_services_on_one_target_are_refused_and_a_third_is_sized() -> None:
    api = cluster()
    api.put_object(DEPLOYMENT.replace("my-vllm", "other"), deployment("other"))
    found = await look(api, service("a"), service("b"), service("c", target="other"), parts())
    assert sorted(each.key.name for each in found.refused) == ["a", "b"]
    assert [part.spec.key.name for part in found.parts] == ["c", "chat"]


async def test_an_autoscaler_of_the_target_is_named_and_one_of_another_object_is_not() -> None:
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "my-vllm"}
    for other in ({**aim, "name": "web"}, {**aim, "kind": "StatefulSet"}, {}):
        api = cluster()
        api.put_object(HPA, autoscaler("HorizontalPodAutoscaler", "web", other))
        assert _rival(await look(api)) == ""
    api = cluster()
    api.put_object(HPA, autoscaler("HorizontalPodAutoscaler", "web", aim))
    assert _rival(await look(api)) == "HorizontalPodAutoscaler web"
    api.kinds.add("scaledobjects")
    api.put_object(KEDA, autoscaler("ScaledObject", "web", {"name": "my-vllm"}))
    assert _rival(await look(api)) == "ScaledObject web"
    api.kinds.add("podautoscalers")
    api.put_object(AIBRIX, autoscaler("PodAutoscaler", "web", aim))
    assert _rival(await look(api)) == "PodAutoscaler web"


async def test_who_made_the_target_is_named_as_an_autoscaler_is() -> None:
    body = deployment()
    owner = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "name": "chat"}
    body["metadata"]["ownerReferences"] = [{**owner, "uid": "1", "controller": True}]
    assert _rival(await look(cluster(body=body))) == "InferenceService chat"


def _rival(found: Found) -> str:
    (part,) = found.parts
    assert part.adoption is not None
    return part.adoption.autoscaler


async def test_while_the_api_server_fails_the_last_answer_counts_and_none_is_no_refusal() -> None:
    api = cluster()
    targets = Targets(api)
    api.fail_with = ApiError(500, "etcd is down")
    assert await look(api, targets=targets) == Found((), (), (node(),))
    api.fail_with = None
    (part,) = (await look(api, targets=targets)).parts
    api.fail_with = ApiError(500, "etcd is down")
    assert (await look(api, targets=targets)).parts == (part,)


async def test_a_target_that_is_not_answered_about_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.control.tick.targets._MOST_SECONDS", 0.2)
    api = cluster()
    api.put_object(DEPLOYMENT.replace("my-vllm", "other"), deployment("other"))
    api.hanging = "my-vllm"
    found = await look(api, service("a"), service("b", target="other"), parts())
    assert [part.spec.key.name for part in found.parts] == ["b", "chat"]
    assert found.refused == ()


async def test_the_accelerator_is_remembered_while_no_pod_has_a_node() -> None:
    api = cluster(pod(0))
    targets = Targets(api)
    before = (await look(api, targets=targets)).parts[0].spec.accelerators
    del api.objects[f"{PODS}/{pod(0)['metadata']['name']}"]
    assert (await look(api, targets=targets)).parts[0].spec.accelerators == before


async def test_a_deletion_cost_of_ours_goes_once_the_size_is_reached() -> None:
    api = cluster(priced(0), priced(1, manager="kubectl"), priced(2, deletionTimestamp="2026-01-01T00:00:00Z"))
    api.objects[DEPLOYMENT]["status"]["replicas"] = 3
    targets = Targets(api)
    await look(api, targets=targets)
    assert _patched(api) == []
    api.objects[DEPLOYMENT]["status"]["replicas"] = 2
    await look(api, targets=targets)
    assert _patched(api) == [priced(0)["metadata"]["name"]]


async def test_when_a_service_goes_the_size_stays_and_our_deletion_costs_go() -> None:
    api = cluster()
    targets = Targets(api)
    await look(api, service(mode="Auto"), targets=targets)
    doomed = pod(1)["metadata"]["name"]
    await scale(api, "prod", Workload("my-vllm"), observed=2, wanted=1, remove_first=[doomed])
    api.put_object(f"{PODS}/{doomed}", priced(1))  # as the API server notes who wrote it
    found = await targets.look((), (node(),), NOW + 5.0)
    assert found == Found((), (), (node(),))
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 1
    assert api.objects[f"{PODS}/{doomed}"]["metadata"]["annotations"].get(DELETION_COST) is None
    requests = len(api.requests)
    await targets.look((), (node(),), NOW + 10.0)
    assert len(api.requests) == requests


async def test_a_service_that_names_another_target_leaves_the_first_one_as_it_is() -> None:
    api = cluster(priced(0))
    api.objects[DEPLOYMENT]["status"]["replicas"] = 3
    api.put_object(DEPLOYMENT.replace("my-vllm", "other"), deployment("other"))
    targets = Targets(api)
    await look(api, targets=targets)
    (part,) = (await look(api, service(target="other"), targets=targets)).parts
    assert part.placements[0].workload.name == "other"
    assert part.spec.accelerators[0].name == "gpu"
    assert _patched(api) == [priced(0)["metadata"]["name"]]


async def test_deletion_costs_that_cannot_be_removed_now_are_removed_later() -> None:
    api = cluster(priced(0))
    api.objects[DEPLOYMENT]["status"]["replicas"] = 3
    targets = Targets(api)
    await look(api, targets=targets)
    api.fail_with = ApiError(500, "etcd is down")
    await targets.look((), (), NOW)
    api.fail_with = None
    assert _patched(api) == []
    await targets.look((), (), NOW)
    assert _patched(api) == [priced(0)["metadata"]["name"]]


async def test_pods_of_a_deployment_of_ours_keep_their_deletion_costs() -> None:
    body = deployment()
    body["metadata"]["ownerReferences"] = [{"apiVersion": "holdfast.dev/v1alpha1", "kind": "LLMService"}]
    api = cluster(priced(0), body=body)
    targets = Targets(api)
    assert "made by Holdfast" in (await look(api, targets=targets)).refused[0].message
    await targets.look((), (), NOW)
    assert _patched(api) == []


def _patched(api: ListingApi) -> list[str]:
    return [path.rpartition("/")[2] for method, path in api.writes() if method == "PATCH"]
