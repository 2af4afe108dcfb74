"""kopf's own indexing, fed with events: what the loop sees after them."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import kopf
import pytest
from kopf._cogs.structs.references import Resource

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.applied import LAST_APPLIED
from holdfast.observe.objects.cluster import ClusterView
from holdfast.rendered import names
from tests.observe.indexed import Indexed
from tests.observe.test_engines_told import reading
from tests.observe.test_groups import group_pod, group_set
from tests.observe.test_mapping import NODE, deployment, pod

CHAT = ServiceKey("prod", "chat")


class Cluster(Indexed):
    """What `ClusterView` reads."""

    def __init__(self, view: ClusterView | None = None, **apis: bool) -> None:
        self.view = view or ClusterView()
        self.settings = kopf.OperatorSettings()
        registry = kopf.OperatorRegistry()
        self.view.register(registry, self.settings, **apis)
        super().__init__(registry)


@pytest.fixture
async def world() -> Cluster:
    world = Cluster()
    await world.start()
    return world


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "generation": 4},
        "spec": {
            "model": {"uri": "Qwen/Qwen3-8B"},
            "slo": {"ttft": "500ms", "tpot": "30ms"},
            "accelerators": [{"name": "h100"}],
        }
        | spec,
        "status": {"coldStartSeconds": 42.5},
    }


def test_before_kopf_has_started_there_is_nothing() -> None:
    view = ClusterView()
    assert (view.services(), view.invalid(), view.nodes()) == ((), (), ())


class Whole(dict[str, Any]):
    """Not copied on the way: copying knows no bottom either."""

    def __deepcopy__(self, memo: object) -> Whole:
        return self


async def test_a_spec_that_is_nested_too_deeply_is_told_and_leaves_the_others_alone(world: Cluster) -> None:
    nested: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        nested = {"x": nested}
    await world.put("services", service())
    await world.put("services", service("deep", template={"spec": Whole(nested)}))
    assert [parts.spec.key for parts in world.view.services()] == [CHAT]
    (invalid,) = world.view.invalid()
    assert invalid.message.startswith("spec.template.spec.x.x.x.x.x: has more than 64 levels")


@pytest.mark.parametrize(
    ("limits", "counts"),
    [({"prod": 10, "*": 5}, 10), ({"*": 5}, 5), ({"dev": 1}, 100), ({"prod": 200}, 100), ({}, 100)],
)
async def test_priorities_are_capped_by_namespace(limits: dict[str, int], counts: int) -> None:
    world = Cluster(ClusterView(max_priorities=limits))
    await world.start()
    await world.put("services", service(priority=100))
    (parts,) = world.view.services()
    assert (parts.spec.priority, parts.spec.declared_priority) == (counts, 100)


async def test_engines_run_from_the_copy_of_their_image() -> None:
    world = Cluster(ClusterView(images={"vllm/vllm-openai:v0.32.0": "registry.local/vllm-openai:v0.32.0"}))
    await world.start()
    await world.put("services", service())
    (parts,) = world.view.services()
    assert parts.service.spec.engine.image == "registry.local/vllm-openai:v0.32.0"


async def test_a_service_is_joined_with_its_pods_and_deployments(world: Cluster) -> None:
    await world.put("services", service())
    await world.put("pods", pod())
    await world.put("deployments", deployment(replicas=3, updatedReplicas=3))
    (parts,) = world.view.services()
    assert parts.spec.key == CHAT
    assert parts.spec.generation == 4
    assert [replica.phase for replica in parts.replicas] == [ReplicaPhase.STARTING]
    assert [placement.replicas for placement in parts.placements] == [3]
    assert parts.recalled.cold_start_seconds == 42.5


async def test_a_service_of_which_nothing_has_changed_is_the_very_same_at_every_look(world: Cluster) -> None:
    await world.put("services", service())
    await world.put("services", service("other"))
    await world.put("pods", pod())
    (chat, other), (again, still) = world.view.services(), world.view.services()
    assert (again, still) == (chat, other)
    assert again is chat
    more = pod()
    more["metadata"] |= {"name": "chat-h100-2", "uid": "uid-2"}
    await world.put("pods", more)
    grown, same = world.view.services()
    assert (len(grown.replicas), same is other) == (2, True)
    world.remove("pods", more)
    assert len(world.view.services()[0].replicas) == 1
    world.remove("services", service())
    assert [one.spec.key.name for one in world.view.services()] == ["other"]


async def test_pods_of_another_service_or_namespace_are_not_its_own(world: Cluster) -> None:
    await world.put("services", service())
    stranger, elsewhere = pod(), pod()
    stranger["metadata"]["labels"]["holdfast.dev/service"] = "other"
    elsewhere["metadata"]["namespace"] = "test"
    for other in (stranger, elsewhere):
        await world.put("pods", other)
    (parts,) = world.view.services()
    assert parts.replicas == ()


async def test_a_spec_that_is_not_understood_is_reported_and_harms_nobody_else(world: Cluster) -> None:
    await world.put("services", service("good"))
    await world.put("services", service("odd", slo={"ttft": "soon", "tpot": "30ms"}))
    assert [parts.spec.key.name for parts in world.view.services()] == ["good"]
    (invalid,) = world.view.invalid()
    assert (invalid.key, invalid.generation) == (ServiceKey("prod", "odd"), 4)
    assert "ttft" in invalid.message


async def test_a_spec_too_large_to_run_is_told_and_not_held_in_memory(world: Cluster) -> None:
    variables = [{"name": f"V{number}", "value": "x" * 18_000} for number in range(60)]
    await world.put("services", service(engine={"env": variables}))
    assert world.view.services() == ()
    (entry,) = world.view.invalid()
    assert entry.reason is Reason.INVALID
    assert "engine.env" in entry.message
    assert len(repr(entry)) < 2000


async def test_a_spec_that_is_mended_is_invalid_no_more(world: Cluster) -> None:
    await world.put("services", service(slo={"ttft": "soon", "tpot": "30ms"}))
    await world.put("services", service())
    assert world.view.invalid() == ()
    assert len(world.view.services()) == 1


async def test_a_service_that_is_being_deleted_is_left_alone(world: Cluster) -> None:
    await world.put("services", service())
    going = service()
    going["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:00Z"
    await world.put("services", going)
    assert (world.view.services(), world.view.invalid()) == ((), ())


@pytest.mark.parametrize("waiting", [["foregroundDeletion"], ["orphan"], []])
async def test_a_deletion_that_kubernetes_is_at_is_told_by_nobody(world: Cluster, waiting: list[str]) -> None:
    going = service()
    going["metadata"] |= {"deletionTimestamp": "2026-11-21T04:00:00Z", "finalizers": waiting}
    await world.put("services", going)
    assert (world.view.services(), world.view.invalid()) == ((), ())


async def test_a_deletion_that_somebody_holds_names_the_finalizer(world: Cluster) -> None:
    going = service()
    waiting = ["foregroundDeletion", "example.com/dns", "example.com/billing"]
    going["metadata"] |= {"deletionTimestamp": "2026-11-21T04:00:00Z", "finalizers": waiting}
    await world.put("services", going)
    assert world.view.services() == ()
    (held,) = world.view.invalid()
    assert (held.key, held.reason, held.uid) == (CHAT, "DeletionHeld", "uid-chat")
    assert "since 2026-11-21T04:00:00Z" in held.message
    assert "example.com/dns, example.com/billing" in held.message
    assert "foregroundDeletion" not in held.message


async def test_fields_of_the_applied_manifest_that_are_not_stored_are_known_of_a_service(world: Cluster) -> None:
    body = service()
    await world.put("services", body)
    assert world.view.services()[0].not_stored == ()
    applied = json.dumps({"spec": {**body["spec"], "priority": 3}})
    body["metadata"]["annotations"] = {LAST_APPLIED: applied}
    await world.put("services", body)
    assert world.view.services()[0].not_stored == ("spec.priority",)


async def test_what_is_deleted_is_gone(world: Cluster) -> None:
    for index, body in (("services", service()), ("pods", pod()), ("nodes", NODE)):
        await world.put(index, body)
        world.remove(index, body)
    assert (world.view.services(), world.view.nodes()) == ((), ())


async def test_an_evicted_pod_is_no_replica_and_holds_no_gpu(world: Cluster) -> None:
    await world.put("services", service())
    await world.put("nodes", NODE)
    await world.put("pods", pod())
    await world.put("pods", pod(phase="Failed", reason="Evicted"))
    assert world.view.services()[0].replicas == ()
    assert world.view.nodes()[0].used == ()


async def test_ended_pods_are_seen_until_they_are_deleted_and_nothing_is_written_to_them(world: Cluster) -> None:
    await world.put("services", service())
    before = world.view.services()[0]
    rejected = reading(pod(phase="Failed", reason="UnexpectedAdmissionError"))
    for index in world.in_order("ended", "pods"):
        await world.put(index, rejected)
    (parts,) = world.view.services()
    assert [(replica.name, replica.reason) for replica in parts.ended] == [
        ("chat-h100-6d5f-x2x1", "UnexpectedAdmissionError")
    ]
    assert (parts.replicas, parts.engines) == ((), ())
    assert world.view.services()[0] is parts
    world.remove("ended", rejected)
    assert world.view.services()[0] == before


async def test_a_body_is_read_for_ended_pods_before_it_is_emptied(world: Cluster) -> None:
    await world.put("services", service())
    seen = copy.deepcopy(pod(phase="Failed", reason="Evicted"))
    for index in world.in_order("ended", "pods"):
        await world.show(index, seen)
    assert [replica.reason for replica in world.view.services()[0].ended] == ["Evicted"]


async def test_nodes_show_what_our_pods_hold_and_vanish_when_cordoned(world: Cluster) -> None:
    await world.put("nodes", NODE)
    await world.put("pods", pod())
    (node,) = world.view.nodes()
    assert (dict(node.allocatable)["nvidia.com/gpu"], node.used) == (8, (("nvidia.com/gpu", 2),))
    cordoned = copy.deepcopy(NODE)
    cordoned["spec"] = {"unschedulable": True}
    await world.put("nodes", cordoned)
    assert world.view.nodes() == ()


async def test_services_and_replicas_come_in_order_of_names(world: Cluster) -> None:
    for name in ("c", "a", "b"):
        await world.put("services", service(name))
        for suffix in ("2", "1"):
            one = pod()
            one["metadata"] |= {"name": f"{name}-{suffix}"}
            one["metadata"]["labels"] = one["metadata"]["labels"] | {"holdfast.dev/service": name}
            await world.put("pods", one)
    parts = world.view.services()
    assert [part.spec.key.name for part in parts] == ["a", "b", "c"]
    assert [replica.name for replica in parts[0].replicas] == ["a-1", "a-2"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "mine", "ownerReferences": []},
        {"name": "mine"},
        {"ownerReferences": []},
        {"ownerReferences": [{"kind": "LLMService", "name": "chat", "uid": "an-earlier-chat"}]},
        {"name": "chat-old", "labels": {"holdfast.dev/service": "chat", "holdfast.dev/accelerator": "older"}},
    ],
    ids=["a copy", "a copy with its owner", "kept out of our hands", "of an earlier service", "named by another rule"],
)
async def test_a_deployment_that_only_wears_our_labels_is_never_sized_or_deleted(
    world: Cluster, change: dict[str, Any]
) -> None:
    body = deployment()
    body["metadata"] |= change
    await world.put("services", service())
    await world.put("deployments", body)
    (parts,) = world.view.services()
    assert parts.placements == ()
    shown = parts.shown("Deployment", body["metadata"]["name"])
    assert shown is not None, "it is seen all the same, and its name is not free"
    assert shown.name == body["metadata"]["name"]


async def test_a_deployment_remembers_how_it_was_rendered(world: Cluster) -> None:
    body = deployment()
    body["metadata"]["annotations"] = {names.INPUTS_ANNOTATION: "x", "deployment.kubernetes.io/revision": "3"}
    body["spec"]["template"] = {"spec": {"containers": []}}
    await world.put("services", service())
    await world.put("deployments", body)
    rendered = world.view.services()[0].deployed[0].rendered
    assert rendered is not None
    assert rendered.inputs == "x"


def test_pods_and_deployments_are_filtered_at_the_api_server(world: Cluster) -> None:
    selectors = world.settings.watching.label_selectors
    core = [Resource("", "v1", plural) for plural in ("pods", "services", "serviceaccounts", "configmaps")]
    budgets = Resource("policy", "v1", "poddisruptionbudgets")
    for resource in (*core, Resource("apps", "v1", "deployments"), budgets):
        assert list(selectors.collect(resource)) == ["holdfast.dev/service"]
    for resource in (Resource("", "v1", "nodes"), Resource("holdfast.dev", "v1alpha1", "llmservices")):
        assert list(selectors.collect(resource)) == []


async def test_no_index_holds_a_whole_object(world: Cluster) -> None:
    await world.put("pods", pod())
    ((replica, gpus, engine, *_),) = world.indexers.indices["pods"][CHAT]
    assert (replica.name, gpus, engine) == ("chat-h100-6d5f-x2x1", (("nvidia.com/gpu", 2),), None)


async def test_limits_come_from_the_config_map_of_that_name_and_from_pods_that_read_them(world: Cluster) -> None:
    text = '{"version": 7, "ttftSeconds": 1.0, "tpotSeconds": 0.05}'
    await world.put("services", service())
    await world.put("pods", reading(pod(), text))
    for name in ("chat-pod-1234", "chat-engine-limits"):
        config_map = owned("ConfigMap", name) | {"data": {"h100": text, "l40s": "garbage"}}
        for index in ("live", "limits"):
            await world.put(index, config_map)
    (parts,) = world.view.services()
    assert [(name, limits.version) for name, limits in parts.limits] == [("h100", 7)]
    assert [(engine.pod, engine.told) for engine in parts.engines] == [("chat-h100-6d5f-x2x1", parts.limits[0][1])]


def owned(kind: str, name: str = "chat", **meta: Any) -> dict[str, Any]:
    labels = {"holdfast.dev/service": "chat"}
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "prod", "uid": f"{kind}-{name}", "labels": labels} | meta,
    }


async def test_a_service_is_joined_with_the_objects_it_owns_whatever_their_kind(world: Cluster) -> None:
    await world.put("services", service())
    for kind in ("Service", "ConfigMap", "PodDisruptionBudget"):
        await world.put("live", owned(kind))
    await world.put("live", owned("Service", labels={"holdfast.dev/service": "other"}, name="other"))
    await world.put("deployments", deployment())
    (parts,) = world.view.services()
    assert [live.kind for live in parts.live] == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]
    world.remove("live", owned("Service"))
    (parts,) = world.view.services()
    shown = parts.shown("Service", "chat")
    assert shown is not None
    assert shown.uid == ""


async def test_when_a_service_was_made_tells_it_from_an_earlier_one(world: Cluster) -> None:
    made = service()
    made["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z"
    await world.put("services", made)
    (parts,) = world.view.services()
    assert parts.born == "2026-11-21T12:00:00Z"


async def test_what_nobody_watches_is_neither_there_nor_absent(world: Cluster) -> None:
    await world.put("services", service())
    (parts,) = world.view.services()
    assert parts.shown("PodMonitor", "chat") is None


@pytest.mark.parametrize("pod_monitors", [False, True])
@pytest.mark.parametrize("inference_pools", [False, True])
@pytest.mark.parametrize("group_sets", [False, True])
def test_kinds_of_optional_apis_are_watched_where_the_api_exists(
    pod_monitors: bool, inference_pools: bool, group_sets: bool
) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    apis = {"pod_monitors": pod_monitors, "inference_pools": inference_pools, "group_sets": group_sets}
    ClusterView().register(registry, settings, **apis)
    for resource, is_there in (
        (Resource("monitoring.coreos.com", "v1", "podmonitors"), pod_monitors),
        (Resource("inference.networking.k8s.io", "v1", "inferencepools"), inference_pools),
        (Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"), group_sets),
    ):
        selected = settings.watching.label_selectors.collect(resource)
        assert list(selected) == (["holdfast.dev/service"] if is_there else [])


async def test_what_nobody_reads_again_is_not_held_in_memory(world: Cluster) -> None:
    seen = copy.deepcopy(pod())
    seen["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    await world.show("pods", seen)
    assert (seen["spec"], seen["status"]) == ({}, {})
    assert "managedFields" not in seen["metadata"]
    assert seen["metadata"]["name"]


async def test_what_a_config_map_holds_is_let_go_once_its_limits_are_read(world: Cluster) -> None:
    text = '{"version": 7, "ttftSeconds": 1.0, "tpotSeconds": 0.05}'
    await world.put("services", service())
    seen = owned("ConfigMap", "chat-engine-limits") | {"data": {"h100": text}, "binaryData": {"plugin.zip": "UEs="}}
    for index in world.in_order("limits", "live"):
        await world.show(index, seen)
    (parts,) = world.view.services()
    assert [(name, limits.version) for name, limits in parts.limits] == [("h100", 7)]
    assert (seen["data"], seen["binaryData"]) == ({}, {})


async def test_replicas_on_a_cordoned_node_go_with_it_until_it_is_uncordoned(world: Cluster) -> None:
    await world.put("services", service())
    await world.put("pods", pod())
    cordoned = {"metadata": {"name": pod()["spec"]["nodeName"]}, "spec": {"unschedulable": True}}
    before = world.view.services()[0]
    seen = [before.replicas[0].closing]
    for body in (cordoned, {**cordoned, "spec": {}}):
        await world.put("nodes", body)
        seen.append(world.view.services()[0].replicas[0].closing)
    assert seen == [False, True, False]


GROUPS = {"accelerators": [{"name": "h100", "count": 4, "nodes": 2}]}


async def test_a_group_is_one_replica_that_holds_gpus_on_each_of_its_nodes() -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(**GROUPS))
    await world.put("deployments", group_set(replicas=1))
    second = {**NODE, "metadata": {**NODE["metadata"], "name": "gpu-2"}}
    for body in (NODE, second):
        await world.put("nodes", body)
    await world.put("pods", group_pod())
    assert [replica.phase for replica in world.view.services()[0].replicas] == [ReplicaPhase.STARTING]
    follower = group_pod(1)
    follower["spec"]["nodeName"] = "gpu-2"
    await world.put("pods", follower)
    (parts,) = world.view.services()
    assert [replica.nodes for replica in parts.replicas] == [("gpu-1", "gpu-2")]
    assert parts.leaders == (("chat-h100-0", "uid-chat-h100-0"),)
    assert [placement.workload.kind for placement in parts.placements] == ["LeaderWorkerSet"]
    assert [node.used for node in world.view.nodes()] == [(("nvidia.com/gpu", 2),)] * 2
    await world.put("nodes", {**second, "spec": {"unschedulable": True}})
    assert [replica.closing for replica in world.view.services()[0].replicas] == [True]
    world.remove("pods", follower)
    assert [replica.nodes for replica in world.view.services()[0].replicas] == [("gpu-1",)]


OUT_OF_MEMORY = "INFO loading\ntorch.OutOfMemoryError: CUDA out of memory."


def started_again(index: int, created: str, finished: str, message: str = OUT_OF_MEMORY) -> dict[str, Any]:
    """A pod of a group whose container ended once and was started again, just before its group is deleted."""
    run = {"exitCode": 1, "reason": "Error", "message": message, "startedAt": created, "finishedAt": finished}
    engine = {"name": "vllm", "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": run}}
    body = group_pod(index, containerStatuses=[engine], conditions=[unready(created)])
    body["metadata"]["creationTimestamp"] = created
    return body


def unready(at: str) -> dict[str, str]:
    return {"type": "Ready", "status": "False", "lastTransitionTime": at}


async def show(world: Cluster, body: dict[str, Any]) -> None:
    for index in world.in_order("ended", "pods"):
        await world.put(index, body)


async def ends(world: Cluster, *bodies: dict[str, Any]) -> None:
    """Pods are started again, and LeaderWorkerSet deletes them at once, the leader in the foreground."""
    for body in bodies:
        await show(world, body)
        await show(world, {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-11-21T05:00:00Z"}})
    for body in bodies:
        for index in ("ended", "pods"):
            world.remove(index, body)


async def test_each_group_that_crashes_at_its_start_is_remembered_though_its_pods_are_deleted_at_once() -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(**GROUPS))
    first = [started_again(index, "2026-11-21T04:00:00Z", f"2026-11-21T04:02:0{index}Z") for index in (0, 1)]
    await ends(world, *first)
    await ends(world, started_again(0, "2026-11-21T04:03:00Z", "2026-11-21T04:05:00Z"))
    ended = world.view.services()[0].ended
    assert [(replica.name, replica.accelerator, replica.reason) for replica in ended] == [
        ("chat-h100-0", "h100", "Error")
    ] * 2
    assert ended[1].ended_at - ended[0].ended_at == 180.0
    assert "CUDA out of memory.; lower --gpu-memory-utilization" in ended[0].detail
    assert world.view.services()[0] is world.view.services()[0]
    world.remove("services", service())
    assert world.view.services() == ()
    await world.put("services", service(**GROUPS))
    assert world.view.services()[0].ended == ()


@pytest.mark.parametrize(
    ("condition", "remembered"),
    [
        (unready("2026-11-21T04:00:00Z"), 1),
        (unready("2026-11-21T04:01:59Z"), 0),
        ({**unready("2026-11-21T04:01:00Z"), "status": "True"}, 0),
    ],
    ids=["never ready", "ready until the crash", "ready"],
)
async def test_a_follower_that_crashes_ends_the_start_of_its_group_only_if_the_leader_was_never_ready(
    condition: dict[str, str], remembered: int
) -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(**GROUPS))
    await show(world, group_pod(conditions=[condition]))
    await ends(world, started_again(1, "2026-11-21T04:00:10Z", "2026-11-21T04:02:00Z"))
    assert len(world.view.services()[0].ended) == remembered


async def test_a_follower_without_a_leader_that_is_known_says_nothing_of_its_group() -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(**GROUPS))
    await ends(world, started_again(1, "2026-11-21T04:00:10Z", "2026-11-21T04:02:00Z"))
    assert world.view.services()[0].ended == ()


async def test_a_group_whose_pod_is_rejected_has_ended_and_one_that_is_deleted_has_not() -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(**GROUPS))
    rejected = group_pod(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices")
    deleted = {**rejected, "metadata": {**rejected["metadata"], "deletionTimestamp": "2026-11-21T05:00:00Z"}}
    await show(world, deleted)
    assert world.view.services()[0].ended == ()
    await show(world, rejected)
    (ended,) = world.view.services()[0].ended
    assert (ended.name, ended.reason) == ("chat-h100-0", "UnexpectedAdmissionError")
    assert ended.detail.endswith("kubectl cordon gpu-1")


@pytest.mark.parametrize(("nodes", "kinds"), [(1, []), (2, ["LeaderWorkerSet"])])
async def test_a_workload_of_the_other_kind_is_left_over_from_an_edit_and_has_no_part_in_decisions(
    nodes: int, kinds: list[str]
) -> None:
    world = await Cluster(group_sets=True).start()
    await world.put("services", service(accelerators=[{"name": "h100", "count": 2, "nodes": nodes}]))
    await world.put("deployments", group_set())
    (parts,) = world.view.services()
    assert [placement.workload.kind for placement in parts.placements] == kinds
    assert parts.shown("LeaderWorkerSet", "chat-h100") in parts.live
