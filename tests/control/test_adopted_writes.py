"""Of somebody else's Deployment only the size is written, and deletion costs of pods that are about to go."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import status_of
from holdfast.domain.decision import Action, ConditionValue, Decision, PlacementTarget
from holdfast.observe.adoption.adoption import TargetState, adopted
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.rendered.names import DELETION_COST
from tests.control.parts import decision
from tests.control.test_actuator import SERVICES, actuator
from tests.fakes import FakeApi, RefusingApi
from tests.observe.foreign import PRODUCT, deployment, pod, service

DEPLOYMENT = "/apis/apps/v1/namespaces/prod/deployments/my-vllm"
PODS = [f"/api/v1/namespaces/prod/pods/{pod(number)['metadata']['name']}" for number in range(3)]


def part(autoscaler: str = "", **spec: Any) -> ServiceParts:
    pods = [pod(0), pod(1), pod(2, annotations={DELETION_COST: "9"})]
    state = TargetState(deployment(replicas=3), tuple(pods), autoscaler)
    found = adopted(service(**{"mode": "Auto", **spec}), state, {PRODUCT: "NVIDIA-H100-80GB-HBM3"})
    assert isinstance(found, ServiceParts)
    return found


def cluster(api: FakeApi | None = None) -> FakeApi:
    api = api or FakeApi()
    api.put_object(
        f"{SERVICES}/chat", {"metadata": {"name": "chat", "namespace": "prod", "uid": "uid-chat", "generation": 1}}
    )
    api.put_object(DEPLOYMENT, deployment(replicas=3))
    for number, path in enumerate(PODS):
        api.put_object(path, pod(number, **({"annotations": {DELETION_COST: "9"}} if number == 2 else {})))
    return api


def sized(of: ServiceParts, action: Action, replicas: int, *remove_first: str) -> Decision:
    made = decision(of, action)
    target = PlacementTarget(of.spec.accelerators[0].name, replicas, 3, remove_first)
    return dataclasses.replace(made, verdict=dataclasses.replace(made.verdict, targets=(target,)))


def resources(api: FakeApi) -> set[str]:
    """The paths that were written, but for the service's own status and Events."""
    return {path for _, path in api.writes() if not path.startswith(SERVICES) and "/events" not in path}


async def test_a_larger_size_is_written_through_scale_and_nothing_else_is() -> None:
    api, of = cluster(), part()
    await actuator(api).act([of], [sized(of, Action.SCALE_UP, 5)], [], [], now=0.0)
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 5
    assert resources(api) == {f"{DEPLOYMENT}/scale"}


async def test_a_smaller_size_marks_the_pods_that_go_but_not_those_of_another_cost() -> None:
    api, of = cluster(), part()
    names = [path.rpartition("/")[2] for path in reversed(PODS)]
    await actuator(api).act([of], [sized(of, Action.SCALE_DOWN, 1, *names)], [], [], now=0.0)
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 1
    assert resources(api) == {f"{DEPLOYMENT}/scale", PODS[0], PODS[1]}
    assert api.objects[PODS[2]]["metadata"]["annotations"] == {DELETION_COST: "9"}


async def test_nothing_but_size_and_deletion_cost_of_their_objects_changes() -> None:
    api, of = cluster(), part()
    before = {path: _without_version(api.objects[path]) for path in (DEPLOYMENT, *PODS)}
    await actuator(api).act([of], [sized(of, Action.SCALE_UP, 4)], [], [], now=0.0)
    before[DEPLOYMENT]["spec"]["replicas"] = 4
    assert {path: _without_version(api.objects[path]) for path in before} == before


async def test_a_size_that_somebody_else_set_meanwhile_stays() -> None:
    api, of = cluster(), part()
    api.edit(DEPLOYMENT, {"spec": {"replicas": 8}})
    await actuator(api).act([of], [sized(of, Action.SCALE_UP, 5)], [], [], now=0.0)
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 8


async def test_a_hold_writes_nothing_to_the_target() -> None:
    api, of = cluster(), part()
    await actuator(api).act([of], [sized(of, Action.HOLD, 3)], [], [], now=0.0)
    assert resources(api) == set()


async def test_a_second_tick_with_nothing_new_writes_nothing() -> None:
    api, of = cluster(), part()
    acting, hold = actuator(api), sized(of, Action.HOLD, 3)
    await acting.act([of], [hold], [], [], now=0.0)
    api.requests.clear()
    await acting.act([of], [hold], [], [], now=5.0)
    assert api.writes() == []


async def test_a_refused_size_is_told() -> None:
    api, of = RefusingApi("deployments", 403, "denied by webhook"), part()
    cluster(api)
    acting = actuator(api)
    await acting.act([of], [sized(of, Action.SCALE_UP, 5)], [], [], now=0.0)
    (problem,) = acting.problems(of)
    assert problem.reason == Reason.APPLY_FAILED
    assert "denied by webhook" in problem.message


def test_the_status_says_what_is_lost_without_the_plugin_and_has_no_address_of_ours() -> None:
    told = status_told(part())
    assert "url" not in told
    assert told["selector"] == "app=my-vllm"
    lost = condition(told, "FastLoopActive")
    assert (lost["status"], lost["reason"]) == ("False", "NotOurEngines")
    assert "without Holdfast's plugin" in lost["message"]


def test_another_autoscaler_is_told_as_the_reason_to_hold() -> None:
    held = condition(status_told(part("ScaledObject web")), "ScalingActive")
    assert (held["status"], held["reason"]) == ("False", "OtherAutoscaler")
    assert "ScaledObject web sizes Deployment my-vllm" in held["message"]
    assert condition(status_told(part()), "ScalingActive")["status"] == "True"


def status_told(of: ServiceParts) -> dict[str, Any]:
    active = ConditionValue("ScalingActive", True, Reason.FOLLOWING_SLO, "sizes follow the SLO")
    made = dataclasses.replace(sized(of, Action.HOLD, 3), conditions=(active,))
    return status_of(of, made, BatchingStatus(), {}, now=0.0)


def condition(told: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for each in told["conditions"] if each["type"] == kind]
    return dict(found)


def _without_version(body: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in body["metadata"].items() if key not in ("resourceVersion", "uid")}
    return {**body, "metadata": meta}
