"""A claim that one node can use, and replicas on several: named, with the remedy, and read rarely."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.act.api import ApiError
from holdfast.control.claims import Claims
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.observe.cluster import ServiceParts
from holdfast.observe.mapping import WAITS_FOR_VOLUMES
from holdfast.render.context import Deployed
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
