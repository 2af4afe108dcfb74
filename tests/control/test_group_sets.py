"""Groups of pods: the LeaderWorkerSet that a decision asks for, its size, and the API that a cluster may lack."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import Action, Restart
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from tests.control.parts import as_watched, body, decision, llmservice, parts
from tests.control.test_actuator import DEPLOYMENTS, SERVICES, actuator
from tests.fakes import FakeApi, RefusingApi

SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/prod/leaderworkersets"
SCALE = f"{SETS}/chat-h100/scale"
SPEC: dict[str, Any] = {"accelerators": [{"name": "h100", "count": 2, "nodes": 2}]}


def cluster(**spec: Any) -> FakeApi:
    api = FakeApi()
    api.put_object(f"{SERVICES}/chat", body(**spec))
    return api


def of_groups(size: int | None = None, **changes: Any) -> ServiceParts:
    """A service of groups in a cluster that has the API, with a set of so many groups, if any."""
    part = parts(llmservice(**SPEC, **changes))
    kept = Placement("h100", size or 0, workload=Workload("chat-h100", "LeaderWorkerSet"))
    return dataclasses.replace(part, deployed=() if size is None else (ObservedDeployment(kept),))


async def test_groups_are_made_at_their_size_as_a_set_in_place_of_a_deployment() -> None:
    api = cluster(**SPEC)
    part = as_watched(of_groups(), api)
    await actuator(api).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    made = api.objects[f"{SETS}/chat-h100"]
    assert (made["kind"], made["spec"]["replicas"]) == ("LeaderWorkerSet", 2)
    assert made["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert f"{DEPLOYMENTS}/chat-h100" not in api.objects


async def test_a_set_is_sized_by_scale_and_no_pod_is_marked_for_it_knows_no_marks() -> None:
    api = cluster(**SPEC)
    made = as_watched(of_groups(), api)
    acting = actuator(api)
    await acting.act([made], [decision(made, Action.CREATE, h100=3)], [], [], now=0.0)
    part = as_watched(of_groups(3), api)
    smaller = decision(part, Action.SCALE_DOWN, h100=1)
    (target,) = smaller.verdict.targets
    target = dataclasses.replace(target, remove_first=("chat-h100-0",))
    verdict = dataclasses.replace(smaller.verdict, targets=(target,))
    before = len(api.requests)
    await acting.act([part], [dataclasses.replace(smaller, verdict=verdict)], [], [], now=20.0)
    assert api.objects[f"{SETS}/chat-h100"]["spec"]["replicas"] == 1
    assert not [path for _, path, *_ in api.requests[before:] if "/pods/" in path]


async def test_a_cluster_without_the_api_is_named_and_nothing_of_the_accelerator_is_made() -> None:
    api, acting = cluster(**SPEC), None
    acting = actuator(api)
    known = as_watched(of_groups(), api)
    part = dataclasses.replace(known, watched=known.watched - {"LeaderWorkerSet"})
    await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    (problem,) = acting.problems(part)
    assert problem.reason is Reason.API_MISSING
    assert problem.message.startswith("accelerators[h100].nodes is 2 and the cluster has no LeaderWorkerSet")
    assert "or use nodes that hold a whole replica" in problem.message
    assert not [path for path in api.objects if path.startswith((SETS, DEPLOYMENTS))]
    assert acting.problems(known) == ()
    assert acting.problems(as_watched(parts(llmservice()), api)) == ()


async def test_an_edit_of_nodes_replaces_the_workload_of_the_other_kind() -> None:
    api = RefusingApi("leaderworkersets", 500, "failed calling webhook mleaderworkerset.kb.io: no endpoints")
    api.put_object(f"{SERVICES}/chat", body())
    single, acting = as_watched(parts(llmservice()), api), actuator(api)
    await acting.act([single], [decision(single, Action.CREATE, h100=1)], [], [], now=0.0)
    assert f"{DEPLOYMENTS}/chat-h100" in api.objects
    api.put_object(f"{SERVICES}/chat", body(generation=2, **SPEC))
    for now, refuses in ((20.0, True), (400.0, False)):
        api.kind = "leaderworkersets" if refuses else "nothing"
        part = as_watched(of_groups(generation=2), api)
        await acting.act([part], [decision(part, Action.CREATE, h100=1)], [], [], now=now)
        assert [problem.reason for problem in acting.problems(part)] == [Reason.APPLY_FAILED] * refuses
        assert f"{DEPLOYMENTS}/chat-h100" in api.objects, "it serves until the set is there"
    part = as_watched(of_groups(1, generation=2), api)
    await acting.act([part], [decision(part, Action.HOLD, h100=1)], [], [], now=420.0)
    assert f"{SETS}/chat-h100" in api.objects
    assert f"{DEPLOYMENTS}/chat-h100" not in api.objects


@pytest.mark.parametrize(
    ("owner", "reasons"), [("LLMService", [Reason.NAME_CONFLICT]), ("LeaderWorkerSet", [])], ids=["foreign", "its own"]
)
async def test_groups_are_not_made_where_somebody_else_has_the_service_of_their_name(
    owner: str, reasons: list[Reason]
) -> None:
    api = cluster(**SPEC)
    owners = [{"kind": owner, "name": "chat-h100", "uid": "u1", "controller": True}]
    service = {"metadata": {"name": "chat-h100", "namespace": "prod", "ownerReferences": owners}, "spec": {}}
    api.put_object("/api/v1/namespaces/prod/services/chat-h100", service)
    part, acting = as_watched(of_groups(), api), actuator(api)
    await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    problems = acting.problems(part)
    assert [problem.reason for problem in problems] == reasons
    assert all(problem.message.startswith("Service prod/chat-h100 exists") for problem in problems)
    assert (f"{SETS}/chat-h100" in api.objects) is (not reasons)


def told(api: FakeApi) -> list[str]:
    """The messages of the Events about a stalled group."""
    events = (body for path, body in api.objects.items() if "/events/" in path)
    return [event["message"] for event in events if event["reason"] == "EngineHung"]


async def test_of_a_sick_group_the_leader_is_deleted_and_one_event_says_why() -> None:
    api, leader = cluster(**SPEC), "/api/v1/namespaces/prod/pods/chat-h100-1"
    made, acting = as_watched(of_groups(), api), actuator(api)
    await acting.act([made], [decision(made, Action.CREATE, h100=2)], [], [], now=0.0)
    part = dataclasses.replace(as_watched(of_groups(2), api), leaders=(("chat-h100-0", "u6"), ("chat-h100-1", "u7")))
    sick = Restart("chat-h100-1", Reason.ENGINE_HUNG, "replica chat-h100-1 is stalled; it is being restarted")
    hold = dataclasses.replace(decision(part, Action.HOLD, h100=2), restart=sick)
    for now in (20.0, 25.0):  # the watch may show it a tick late, and its pod takes time to end
        api.put_object(leader, {"metadata": {"name": "chat-h100-1", "namespace": "prod", "uid": "u7"}})
        await acting.act([part], [hold], [], [], now=now)
    assert leader not in api.objects
    assert told(api) == [sick.message]
    assert acting.problems(part) == ()


async def test_a_group_that_was_made_anew_meanwhile_is_not_deleted() -> None:
    api, leader = cluster(**SPEC), "/api/v1/namespaces/prod/pods/chat-h100-1"
    api.put_object(leader, {"metadata": {"name": "chat-h100-1", "namespace": "prod", "uid": "u8"}})
    part = dataclasses.replace(as_watched(of_groups(2), api), leaders=(("chat-h100-1", "u7"),))
    sick = Restart("chat-h100-1", Reason.ENGINE_HUNG, "it is stalled")
    acting = actuator(api)
    await acting.act([part], [dataclasses.replace(decision(part, Action.HOLD, h100=2), restart=sick)], [], [], now=0.0)
    assert leader in api.objects
    assert told(api) == []
    assert acting.problems(part) == ()


async def test_a_refused_deletion_is_told() -> None:
    api = RefusingApi("pods", 403, 'pods "chat-h100-1" is forbidden')
    api.put_object(f"{SERVICES}/chat", body(**SPEC))
    part = dataclasses.replace(as_watched(of_groups(2), api), leaders=(("chat-h100-1", "u7"),))
    sick = Restart("chat-h100-1", Reason.ENGINE_HUNG, "it is stalled")
    acting = actuator(api)
    await acting.act([part], [dataclasses.replace(decision(part, Action.HOLD, h100=2), restart=sick)], [], [], now=0.0)
    (problem,) = acting.problems(part)
    assert problem.reason is Reason.APPLY_FAILED
    assert problem.message.startswith("pod chat-h100-1 was not deleted")
    assert told(api) == [], "nothing was restarted"


async def test_a_group_of_a_service_that_was_edited_meanwhile_is_neither_deleted_nor_told_of() -> None:
    api, leader = cluster(**SPEC), "/api/v1/namespaces/prod/pods/chat-h100-1"
    api.put_object(leader, {"metadata": {"name": "chat-h100-1", "namespace": "prod", "uid": "u7"}})
    part = dataclasses.replace(as_watched(of_groups(2), api), leaders=(("chat-h100-1", "u7"),))
    api.objects[f"{SERVICES}/chat"]["metadata"]["generation"] = 2
    sick = Restart("chat-h100-1", Reason.ENGINE_HUNG, "it is stalled")
    acting = actuator(api)
    await acting.act([part], [dataclasses.replace(decision(part, Action.HOLD, h100=2), restart=sick)], [], [], now=0.0)
    assert leader in api.objects
    assert told(api) == []
