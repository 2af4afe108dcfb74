"""The router of a service, among its Deployments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.observe.test_cluster_view import Cluster, service
from tests.observe.test_mapping import deployment


def of_router(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The Deployment of a router."""
    body = deployment()
    owners = [{"uid": "uid-chat", "controller": True}]
    labels = {"holdfast.dev/service": "chat"}
    meta = {"name": "chat-router", "labels": labels, "ownerReferences": owners, **metadata}
    body["metadata"] = {**body["metadata"], "creationTimestamp": "2026-01-01T00:00:10Z", **meta}
    body["status"] = status
    return body


START = 1_767_225_600.0
AWAY = {"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"}
HALF = {"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T00:02:00Z"}


@pytest.mark.parametrize(
    ("status", "since"),
    [
        pytest.param({}, 10.0, id="new: since it was made"),
        pytest.param({"conditions": [AWAY]}, 60.0, id="no pod is available"),
        pytest.param({"availableReplicas": 0, "conditions": [AWAY]}, 60.0, id="the same, spelt out"),
        pytest.param({"availableReplicas": 1, "conditions": [HALF]}, None, id="one of two is available"),
        pytest.param({"availableReplicas": 2}, None, id="all are available"),
    ],
)
async def test_a_router_is_away_while_none_of_its_pods_is_available(
    status: dict[str, Any], since: float | None
) -> None:
    world = Cluster()
    await world.start()
    await world.put("services", service(router={}))
    await world.put("deployments", of_router(status))
    (part,) = world.view.services()
    assert part.router is not None
    assert part.router.away_since == (None if since is None else START + since)
    assert part.placements == ()


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": []}, id="nobody owns it"),
        pytest.param({"ownerReferences": [{"uid": "uid-other"}]}, id="another service owns it"),
        pytest.param({"name": "chat-routers"}, id="it has another name"),
        pytest.param(
            {"labels": {"holdfast.dev/service": "chat", "holdfast.dev/accelerator": "router"}}, id="it has engines"
        ),
    ],
)
async def test_another_deployment_is_no_router(metadata: dict[str, Any]) -> None:
    world = Cluster()
    await world.start()
    await world.put("services", service())
    await world.put("deployments", of_router({"availableReplicas": 1}, **metadata))
    (part,) = world.view.services()
    assert part.router is None
