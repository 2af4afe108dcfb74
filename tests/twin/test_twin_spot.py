"""Spot nodes that are reclaimed in the twin: the floor serves on, and regular replicas take over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.twin.policies import Holdfast
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import play, ready, small_scenario

SHIPPED = Path(__file__).parents[2] / "benchmarks" / "scenarios" / "spot.yaml"


def reclaimed(**fault: object) -> dict[str, Any]:
    """Six minutes of a service with one regular replica and one on a spot node that goes after two of them."""
    content = small_scenario() | {"duration": "6m"}
    (service,) = content["services"]
    service["spec"]["accelerators"] = [
        {"name": "h100-spot", "spot": True, "costPerHour": 1.0},
        {"name": "h100", "costPerHour": 3.0},
    ]
    service["spec"]["scaling"] = {"min": 2, "max": 6, "minOnDemand": 1}
    service["initialReplicas"] = {"h100": 1, "h100-spot": 1}
    there = content["cluster"]["accelerators"]
    there["h100-spot"] = dict(there["h100"])
    return content | {"faults": [{"at": "2m", "kind": "spot-reclaim", "accelerator": "h100-spot", **fault}]}


def test_reclaimed_nodes_are_replaced_within_a_cold_start_and_two_ticks(tmp_path: Path) -> None:
    finished = play(reclaimed(), tmp_path, Holdfast(fast_loop=False))
    assert [ready(finished, at) for at in (115.0, 125.0, 165.0)] == [2, 1, 2]
    assert finished.services[0].sizes == {"h100-spot": 0, "h100": 2}
    (moved,) = finished.changes
    assert "h100-spot was unavailable" in moved.message


def test_nodes_that_are_given_back_wait_for_the_pause_to_end(tmp_path: Path) -> None:
    finished = play(reclaimed(**{"for": "1m"}), tmp_path, Holdfast(fast_loop=False))
    assert len(finished.changes) == 1


def test_the_shipped_scenario_reads() -> None:
    scenario = Scenario.read(SHIPPED)
    assert [fault.kind for fault in scenario.faults] == ["spot-reclaim", "spot-reclaim"]
