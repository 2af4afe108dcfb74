"""A claim that one node can use, and replicas on several: named, with the remedy, and read rarely."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.act.api import ApiError
from holdfast.control.writes.claims import Claims
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.mapping import WAITS_FOR_VOLUMES
from holdfast.rendered.context import Deployed
from tests.control.parts import parts
from tests.fakes import FakeApi

CLAIM = "/api/v1/namespaces/prod/persistentvolumeclaims/weights"
NOW = 1_000_000.0
WAITS = f"{WAITS_FOR_VOLUMES}; see kubectl describe pod"


def waiting(*, node: str = "n2", age: float = 60.0, detail: str = WAITS, **more: Any) -> Replica:
    return replace(
        Replica("h100-new", "h100", ReplicaPhase.STARTING, NOW - age, NOW - age, detail=detail, node=node), **more
    )


def seen(*more: Replica, claims: tuple[str, ...] = ("weights",)) -> ServiceParts:
    """A replica that serves on node n1, and others."""
    part = parts(ready={"h100": 1}, sizes={"h100": 2})
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    rendered = Deployed("i", json.dumps({"spec": {"volumes": [{"name": "tmp", "emptyDir": {}}, *volumes]}}), 1)
    deployed = tuple(replace(item, rendered=rendered) for item in part.deployed)
    return replace(part, deployed=deployed, replicas=(replace(part.replicas[0], node="n1"), *more))


def with_modes(*modes: str) -> FakeApi:
    api = FakeApi()
    api.put_object(CLAIM, {"metadata": {"name": "weights"}, "spec": {"accessModes": list(modes)}})
    return api


async def told(api: FakeApi, part: ServiceParts) -> list[str]:
    claims = Claims(api)
    await claims.look([part], NOW)
    return [f"{problem.reason}: {problem.message}" for problem in claims.problems(part)]


async def test_a_claim_for_one_node_is_named_with_the_replicas_and_the_remedy() -> None:
    assert await told(with_modes("ReadWriteOnce"), seen(waiting())) == [
        "VolumeNotShared: claim weights is ReadWriteOnce, but 2 replicas on 2 nodes use it, so h100-new cannot start; "
        "use a ReadWriteMany claim, or emptyDir for model.cache"
    ]


async def test_a_claim_for_one_pod_is_named_where_the_scheduler_finds_no_place() -> None:
    detail = "0/2 nodes are available: node has pod using PersistentVolumeClaim with ReadWriteOncePod access mode"
    (message,) = await told(
        with_modes("ReadWriteOncePod"), seen(waiting(phase=ReplicaPhase.UNSCHEDULABLE, detail=detail, node=""))
    )
    assert "claim weights is ReadWriteOncePod" in message


@pytest.mark.parametrize(
    ("modes", "part"),
    [
        (("ReadWriteMany",), seen(waiting())),
        (("ReadOnlyMany",), seen(waiting())),
        (("ReadWriteOnce", "ReadWriteMany"), seen(waiting())),
        ((), seen(waiting())),
        (("ReadWriteOnce",), seen(waiting(node="n1"))),
        (("ReadWriteOnce",), seen(waiting(age=5.0))),
        (("ReadWriteOnce",), seen(waiting(detail="see its log"))),
        (("ReadWriteOnce",), seen(waiting(), claims=())),
        (("ReadWriteOnce",), seen()),
    ],
    ids=["many", "read only", "both", "none", "one node", "just placed", "another wait", "no claim", "nobody waits"],
)
async def test_nothing_is_said_where_the_claim_is_not_the_cause(modes: tuple[str, ...], part: ServiceParts) -> None:
    assert await told(with_modes(*modes), part) == []


async def test_what_may_not_be_read_or_is_not_there_is_unknown() -> None:
    class Forbidden(FakeApi):
        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            raise ApiError(403, "no")

    assert await told(Forbidden(), seen(waiting())) == []
    assert await told(FakeApi(), seen(waiting())) == []


async def test_a_claim_is_read_once_a_minute_and_only_while_a_replica_waits() -> None:
    api = with_modes("ReadWriteOnce")
    claims = Claims(api)
    for at in range(0, 120, 5):
        await claims.look([seen(waiting())], NOW + at)
    assert len(api.requests) == 2
    await claims.look([seen()], NOW + 300.0)
    assert len(api.requests) == 2
    assert claims.problems(seen()) == ()


class SlowApi(FakeApi):
    """Answers when told, and counts the requests under way."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = asyncio.Event()
        self.most, self._under_way = 0, 0

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        try:
            await self.answering.wait()
            await asyncio.sleep(0.0)
            return {"spec": {"accessModes": ["ReadWriteOnce"]}}
        finally:
            self._under_way -= 1
            self.requests.append((method, path, {}, None))


def many(count: int) -> list[ServiceParts]:
    """Services, each with a claim of its own for which a replica waits."""
    found = []
    for index in range(count):
        part = seen(waiting(), claims=(f"weights-{index:03}",))
        found.append(replace(part, spec=replace(part.spec, key=ServiceKey("prod", f"s{index}"))))
    return found


async def test_claims_are_read_some_at_a_time() -> None:
    api, services = SlowApi(), many(20)
    api.answering.set()
    claims = Claims(api)
    await claims.look(services, NOW)
    assert (api.most, len(api.requests)) == (8, 20)
    assert all(claims.problems(part) for part in services)


async def test_slow_answers_do_not_hold_the_tick_and_later_ticks_read_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.control.writes.claims._MOST_SECONDS", 0.01)
    api, services = SlowApi(), many(10)
    claims = Claims(api)
    await claims.look(services, NOW)
    assert (len(api.requests), [claims.problems(part) for part in services]) == (8, [()] * 10)
    monkeypatch.undo()
    api.answering.set()
    await claims.look(services, NOW + 5.0)
    assert len(api.requests) == 8 + 10
    assert all(claims.problems(part) for part in services)


async def test_claims_that_were_not_read_yet_come_before_those_to_be_read_again() -> None:
    api, services = SlowApi(), many(3)
    api.answering.set()
    claims = Claims(api)
    await claims.look(services[:2], NOW)
    await claims.look(services, NOW + 60.0)
    names = [path[-3:] for _, path, *_ in api.requests]
    assert names == ["000", "001", "002", "000", "001"]
