"""The status page of the real operator, through the API server's pod proxy: the leader shows what its loop sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Kubectl, KubectlError

pytestmark = pytest.mark.cluster


def asked(path: str) -> str:
    """Ask the leader's page, as `kubectl proxy` would."""
    system = Kubectl(stack.NAMESPACE)
    leader = system.get_json("lease", "holdfast")["spec"]["holderIdentity"].rpartition("_")[0]
    proxy = f"/api/v1/namespaces/{stack.NAMESPACE}/pods/{leader}:{stack.STATUS_PORT}/proxy"
    return system.run("get", "--raw", f"{proxy}/{path}")


def test_a_service_appears_with_what_was_decided(operator: None, place: Kubectl) -> None:
    place.apply(stack.small_service("looked-at"))
    where = f"api/services/{place.namespace}/looked-at"
    found: dict[str, Any] = {}

    def is_ready() -> bool:
        try:
            found.update(json.loads(asked(where)))
        except KubectlError:  # not decided on yet
            return False
        return bool(found["ready_replicas"])

    place.wait_until(is_ready, 120, "a Ready replica on the status page")
    assert [change["reason"] for change in found["changes"]][:1] == ["FirstSize"]
    assert found["series"]["ready_replicas"][-1] == found["ready_replicas"]
    assert found["series"]["arrival_rps"][0] is None
    rows = json.loads(asked("api/services"))["services"]
    assert (place.namespace, "looked-at") in {(each["namespace"], each["name"]) for each in rows}
    assert "<title>Holdfast</title>" in asked("")
