"""The ports of the real leader: its status page, through the API server's pod proxy, and connections that never ask."""

from __future__ import annotations

import contextlib
import json
import pathlib
import resource
import socket
import time
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Kubectl, KubectlError

pytestmark = pytest.mark.cluster

HTTP_PORT = 8080
HALF_A_HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
CONNECTIONS = 2_000
BETWEEN_SECONDS = 0.001
"""As many connections on every machine: without a pause this test takes the processor that the leader needs."""
MOST_GROWTH_BYTES = 64 * 2**20


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


def test_half_open_connections_end_no_leader(operator: None) -> None:
    system, (leader, process) = Kubectl(stack.NAMESPACE), stack.leading()
    address = system.get_json("pod", leader)["status"]["podIP"]
    transitions, memory_bytes = _transitions(system), _memory_bytes(process)
    held: list[socket.socket] = []
    ends_at = time.monotonic() + 1.5 * stack.LEASE_SECONDS
    while time.monotonic() < ends_at:
        time.sleep(BETWEEN_SECONDS)
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((address, HTTP_PORT), timeout=1.0))
            held[-1].sendall(HALF_A_HEAD)
        if len(held) > CONNECTIONS:
            held.pop(0).close()
    assert len(held) >= CONNECTIONS / 4
    assert "holdfast_leader 1.0" in system.run(
        "get", "--raw", f"/api/v1/namespaces/{stack.NAMESPACE}/pods/{leader}:{HTTP_PORT}/proxy/metrics"
    )
    assert stack.leading() == (leader, process)
    assert _transitions(system) == transitions
    assert _memory_bytes(process) - memory_bytes < MOST_GROWTH_BYTES
    for each in held:
        each.close()


def _transitions(system: Kubectl) -> int:
    return int(system.get_json("lease", "holdfast")["spec"]["leaseTransitions"])


def _memory_bytes(process: int) -> int:
    pages = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
