"""A set-back is a size that somebody else wrote after ours; no failure, no delay and no write of ours is one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.act.scale import StaleDecision
from holdfast.control.tick.loop import Loop
from holdfast.control.tick.targets import Targets
from holdfast.control.writes.size_writes import SizeWrites
from holdfast.domain.cluster import NodeOffer, Workload
from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Timing
from holdfast.observe.objects.cluster import Invalid, ObservedDeployment, ServiceParts
from holdfast.observe.objects.mapping import placement_from_deployment, version_of
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, traffic
from tests.control.parts import parts
from tests.control.test_actuator import SERVICES, actuator
from tests.control.test_actuator import Metrics as RunningMetrics
from tests.control.test_loop import NoMetrics, Telemetry
from tests.control.test_targets import DEPLOYMENT, cluster
from tests.fakes import FakeApi, ListingApi
from tests.observe.foreign import node, service

KEY = ServiceKey("prod", "chat")


async def write(sizes: SizeWrites, replicas: int, observed: int = 2) -> None:
    await sizes.write(KEY, Workload("my-vllm"), PlacementTarget("h100", replicas, observed), ())


def shown(api: FakeApi) -> ServiceParts:
    """The service as the API server has its Deployment now."""
    body = api.objects[DEPLOYMENT]
    placement = dataclasses.replace(placement_from_deployment(body), accelerator="h100")
    return dataclasses.replace(parts(), deployed=(ObservedDeployment(placement, version=version_of(body)),))


async def test_a_size_that_somebody_else_sets_back_is_told_once_a_write() -> None:
    sizes = SizeWrites(api := cluster())
    for _ in range(2):
        await write(sizes, 4)
        assert sizes.set_back(shown(api)) == ()
        api.edit(DEPLOYMENT, {"spec": {"replicas": 2}})
        assert [sizes.set_back(shown(api)) for _ in range(3)] == [("h100",), (), ()]


async def test_a_size_that_the_watch_does_not_show_yet_is_no_set_back() -> None:
    sizes = SizeWrites(api := cluster())
    before = shown(api)
    await write(sizes, 4)
    assert [sizes.set_back(before), sizes.set_back(shown(api))] == [(), ()]
    api.edit(DEPLOYMENT, {"spec": {"replicas": 3}})
    assert sizes.set_back(shown(api)) == ("h100",)


async def test_other_changes_of_the_deployment_are_none() -> None:
    sizes = SizeWrites(api := cluster())
    await write(sizes, 4)
    api.edit(DEPLOYMENT, {"status": {"replicas": 3}})
    api.edit(DEPLOYMENT, {"spec": {"replicas": 4}})
    assert sizes.set_back(shown(api)) == ()


async def test_what_was_never_written_cannot_be_set_back() -> None:
    sizes = SizeWrites(api := cluster())
    api.edit(DEPLOYMENT, {"spec": {"replicas": 1}})
    assert sizes.set_back(shown(api)) == ()


@pytest.mark.parametrize("error", [ApiError(403, "denied"), ApiError(504, "timeout"), ApiUnreachable("away")])
async def test_a_write_that_failed_is_none(error: Exception) -> None:
    sizes = SizeWrites(api := cluster())
    api.fail_with = error
    with pytest.raises((ApiError, ApiUnreachable)):
        await write(sizes, 4)
    api.fail_with = None
    assert sizes.set_back(shown(api)) == ()


async def test_a_lost_answer_hides_what_became_of_the_size() -> None:
    """It may have been written: what is seen then may be ours."""
    sizes = SizeWrites(api := cluster())
    await write(sizes, 4)
    api.fail_with = ApiError(504, "timeout")
    with pytest.raises(ApiError):
        await write(sizes, 6, observed=4)
    api.fail_with = None
    api.edit(DEPLOYMENT, {"spec": {"replicas": 6}})
    assert sizes.set_back(shown(api)) == ()


async def test_a_size_that_changed_just_before_the_next_write_is_told_all_the_same() -> None:
    sizes = SizeWrites(api := cluster())
    await write(sizes, 4)
    api.edit(DEPLOYMENT, {"spec": {"replicas": 2}})
    with pytest.raises(StaleDecision):
        await write(sizes, 6, observed=4)
    assert sizes.set_back(shown(api)) == ("h100",)


async def test_a_deployment_that_is_gone_may_come_back_with_any_size() -> None:
    sizes = SizeWrites(api := cluster())
    await write(sizes, 4)
    assert sizes.set_back(parts()) == ()
    api.put_object(DEPLOYMENT, {**api.objects[DEPLOYMENT], "spec": {"replicas": 1}})
    assert sizes.set_back(shown(api)) == ()


async def test_a_deleted_service_is_forgotten() -> None:
    sizes = SizeWrites(api := cluster())
    await write(sizes, 4)
    sizes.forget([KEY])
    api.edit(DEPLOYMENT, {"spec": {"replicas": 2}})
    assert sizes.set_back(shown(api)) == ()


class Busy(NoMetrics):
    """More load than two replicas carry."""

    async def observe(self, requests: Any, now: float) -> dict[ServiceKey, Traffic]:
        load = traffic(60.0, on="nvidia-h100-80gb-hbm3", good=0.2, waiting=60.0, running=64.0)
        return {request.key: load for request in requests}

    running_by_pod = RunningMetrics().running_by_pod


class OneService:
    """An LLMService whose target somebody else made."""

    def services(self) -> tuple[ServiceParts, ...]:
        return (dataclasses.replace(service(mode="Auto"), born="2026-01-01T00:00:00Z"),)

    def invalid(self) -> tuple[Invalid, ...]:
        return ()

    def nodes(self) -> tuple[NodeOffer, ...]:
        return (node("n1"), node("n2"), node("n3"))


class Operator:
    """The whole loop against an API server in memory; a tick every five seconds."""

    def __init__(self, api: ListingApi) -> None:
        self.api, self.now = api, NOW
        meta = {"name": "chat", "namespace": "prod", "uid": "uid-chat", "generation": 1}
        api.put_object(f"{SERVICES}/chat", {"metadata": meta})
        self.loop = Loop(
            cluster=OneService(),  # type: ignore[arg-type]
            metrics=Busy(),
            actuator=actuator(api),
            telemetry=Telemetry(),
            timing=Timing(5.0, 5.0),
            policy_settings=PolicySettings(),
            monotonic=lambda: self.now,
            wall=lambda: self.now,
            targets=Targets(api),
        )

    async def tick(self) -> None:
        await self.loop.run_once()
        self.now += 5.0

    @property
    def active(self) -> dict[str, str]:
        told = self.api.objects[f"{SERVICES}/chat"]["status"]["conditions"]
        return next(each for each in told if each["type"] == "ScalingActive")

    @property
    def writes(self) -> int:
        return sum(path.endswith("/scale") for _, path in self.api.writes())


class Refusing(ListingApi):
    """A rule of the cluster is against every size."""

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == "PATCH" and path.endswith("/scale"):
            raise ApiError(403, "denied by a rule")
        return await super().request(method, path, **more)


def set_back(api: ListingApi) -> None:
    """What an operator does that renders its replicas again."""
    owner = {"manager": "llmkube", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    if api.objects[DEPLOYMENT]["spec"]["replicas"] != 2:
        api.edit(DEPLOYMENT, {"spec": {"replicas": 2}})
        api.edit(DEPLOYMENT, {"metadata": {"managedFields": [owner]}})


async def test_the_operator_leaves_a_size_alone_that_is_set_back_three_times_and_names_who_did_it() -> None:
    operator = Operator(api := cluster())
    for _ in range(8):
        await operator.tick()
        set_back(api)
    assert operator.writes == 3
    assert (operator.active["status"], operator.active["reason"]) == ("False", "OtherAutoscaler")
    assert "llmkube sets the size of Deployment my-vllm back each time" in operator.active["message"]


async def test_a_size_that_nobody_sets_back_follows_the_load() -> None:
    operator = Operator(api := cluster())
    for _ in range(8):
        await operator.tick()
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] > 2
    assert operator.active["reason"] != "OtherAutoscaler"


async def test_sizes_that_are_refused_are_no_fight() -> None:
    api = Refusing()
    api.objects = cluster().objects
    operator = Operator(api)
    for _ in range(8):
        await operator.tick()
    assert operator.active["reason"] != "OtherAutoscaler"
