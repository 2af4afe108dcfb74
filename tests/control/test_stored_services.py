"""What the API server stores today gives the same decisions and the same manifests in every later version.

tests/golden/stored-services.json holds the objects, as Kubernetes 1.36 returned them with the status that an operator
wrote: they stay as they are. `python -m tests.control.test_stored_services` writes anew what becomes of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from holdfast.control.objects.plan import plan
from holdfast.domain.cluster import Placement
from holdfast.domain.decision import Action, Decision
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.mapping import epoch
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.render import render
from tests.builders import counts, replicas, sizes
from tests.observe.test_cluster_view import Cluster
from tests.render.scenes import SETTINGS

GOLDEN = Path(__file__).parents[1] / "golden" / "stored-services.json"
STORED: dict[str, Any] = json.loads(GOLDEN.read_text())
SECONDS, BEGIN = 15.0, 1_800_000_000.0
RATES_RPS = (0.0,) * 2 + (3.0,) * 8 + (12.0,) * 12 + (70.0,) * 12 + (4.0,) * 90
DECISIONS = TypeAdapter(Decision)
RENDERING = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")


async def outcome(body: dict[str, Any]) -> dict[str, Any]:
    """All changes in half an hour of load, the last decision whole, and a digest of each manifest."""
    world = await Cluster().start()
    await world.put("services", body)
    (part,) = world.view.services()
    decided = list(decisions(part))
    changes = [
        f"{at * SECONDS:g} s: {each.verdict.action} {each.verdict.reason} {sizes(each)}"
        for at, each in enumerate(decided)
        if each.verdict.action is not Action.HOLD
    ]
    last = _rounded(DECISIONS.dump_python(decided[-1], mode="json"))
    return {"changes": changes, "decision": last, "manifests": manifests(part, decided[-1])}


def decisions(part: ServiceParts) -> Iterator[Decision]:
    """One a tick; the size of one tick serves in the next."""
    memory, now_there = Memory(), dict[str, int]()
    for tick, rate in enumerate(RATES_RPS):
        total = sum(now_there.values())
        loads = [(name, counts(rate * size / total, SECONDS, good=0.995)) for name, size in now_there.items() if size]
        seen = Traffic(SignalState.FRESH, "", SECONDS, 1.0, tuple(loads))
        service = ServiceSnapshot(
            part.spec,
            seen if loads else Traffic(SignalState.ABSENT, "no replica is ready yet"),
            tuple(pod for name, size in now_there.items() for pod in replicas(size, on=name, now=BEGIN)),
            tuple(Placement(name, size) for name, size in now_there.items()),
            recalled=part.recalled,
            born_at=epoch(part.born),
        )
        snapshot = Snapshot(BEGIN + tick * SECONDS, (service,), (), Timing(SECONDS, SECONDS))
        (decision,), memory = decide(snapshot, memory)
        now_there = sizes(decision)
        yield decision


def manifests(part: ServiceParts, decision: Decision) -> dict[str, str]:
    """Kind and name of each object, with the digest of its content."""
    made = plan(part, decision, Inventory(()), pod_monitor=True, admission=lambda *_: 5600)
    found = render(part.service, made.accelerators, RENDERING, made.context)
    return {f"{each['kind']}/{each['metadata']['name']}": _digest(each) for each in found}


def _digest(manifest: Any) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]


def _rounded(part: Any) -> Any:
    """With nine digits: the last bits of exponential functions and of matrix products differ from CPU to CPU."""
    if isinstance(part, dict):
        return {name: _rounded(each) for name, each in part.items()}
    if isinstance(part, list):
        return [_rounded(each) for each in part]
    return float(f"{part:.9g}") if isinstance(part, float) else part


@pytest.mark.parametrize("name", STORED)
async def test_a_stored_service_is_decided_on_and_rendered_as_when_it_was_stored(name: str) -> None:
    stored = STORED[name]
    assert await outcome(stored["object"]) == stored["outcome"], (
        "if this is meant: python -m tests.control.test_stored_services, then read the diff"
    )


def test_the_stored_services_were_decided_on_when_they_were_stored_and_sizes_move_in_the_load() -> None:
    assert STORED.keys() == {"accelerators", "chat", "full", "office-hours", "scale-to-zero"}
    assert all("lastDecision" in stored["object"]["status"] for stored in STORED.values())
    actions = {change.split()[2] for stored in STORED.values() for change in stored["outcome"]["changes"]}
    assert actions >= {"Create", "ScaleUp", "ScaleDown"}


if __name__ == "__main__":
    for entry in STORED.values():
        entry["outcome"] = asyncio.run(outcome(entry["object"]))
    GOLDEN.write_text(json.dumps(STORED, indent=1) + "\n")
