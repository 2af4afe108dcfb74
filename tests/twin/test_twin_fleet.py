"""Services that share too few GPUs in the twin: who gets them, what the others are told, and that all is well after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.tools.reports import table
from holdfast.twin.policies import Apart, Holdfast, Static
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.results import good, summary
from holdfast.twin.runs.run import Finished, SizeChange
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import play, small_scenario

SHIPPED = Path(__file__).parents[2] / "benchmarks" / "scenarios" / "fleet.yaml"
PEAK = (370.0, 420.0)
AFTER = (690.0, 780.0)
L40S, A100 = {"name": "l40s", "costPerHour": 1.55}, {"name": "a100", "costPerHour": 3.0}


def contender(name: str, priority: int, steps: list[tuple[str, float]], first: int) -> dict[str, Any]:
    """A service of which an L40S carries about five requests a second."""
    return {
        "name": name,
        "spec": {
            "model": {"uri": "meta-llama/Llama-3.1-8B"},
            "priority": priority,
            "slo": {"ttft": "1s", "tpot": "80ms", "objective": "95%", "window": "1h"},
            "accelerators": [L40S],
            "scaling": {"min": 1, "max": 6},
        },
        "workload": {
            "arrivals": {"poisson": [{"at": at, "rps": rps} for at, rps in steps]},
            "lengths": {"fixed": {"promptTokens": 1000, "outputTokens": 200}},
        },
        "initialReplicas": {"l40s": first},
    }


def contest(minutes: int = 13, spare: int = 0) -> dict[str, Any]:
    """Some minutes in which the first of two services needs what the second one has, from the third to the seventh.

    With `spare` A100s the second one could run there.
    """
    chat = contender("chat", 10, [("0s", 4), ("3m", 13), ("7m", 4)], first=1)
    batch = contender("batch", 0, [("0s", 7)], first=2)
    entry = {"system": "l40s", "gpus": 4, "coldStart": "30s"}
    accelerators = {"l40s": entry}
    if spare:
        batch["spec"]["accelerators"] = [L40S, A100]
        accelerators["a100"] = entry | {"system": "a100_sxm", "gpus": spare}
    cluster = {"nodeProvisioningTime": "30s", "accelerators": accelerators}
    timing = {"duration": f"{minutes}m", "warmup": "30s"}
    return {"name": "contest", **timing, "services": [chat, batch], "cluster": cluster}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return play(contest(), tmp_path_factory.mktemp("short"), Holdfast(fast_loop=False))


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return play(contest(8, spare=2), tmp_path_factory.mktemp("roomy"), Holdfast(fast_loop=False))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return play(contest(8), tmp_path_factory.mktemp("apart"), Apart())


def share(run: Finished, place: int, during: tuple[float, float]) -> float:
    """Good requests of those that came in these seconds."""
    service = run.services[place]
    at = service.fleet.requests["at"]
    return float(good(service)[(at >= during[0]) & (at < during[1])].mean())


def held(run: Finished, accelerator: str) -> list[tuple[float, int]]:
    """GPUs that all services hold together, whenever that changes."""
    pods = [pod for service in run.services for pod in service.everything if pod.accelerator == accelerator]
    events = [(pod.placed_at, pod.gpus) for pod in pods if pod.placed_at is not None]
    events += [(pod.gone_at, -pod.gpus) for pod in pods if pod.placed_at is not None and pod.gone_at is not None]
    ordered = sorted(events)
    return list(zip((at for at, _ in ordered), np.cumsum([gpus for _, gpus in ordered]).tolist(), strict=True))


def gpus(run: Finished, place: int, at: float) -> int:
    """GPUs of a service at a time."""
    sizes = run.sizes[place]
    return next(count for moment, count in zip(sizes.at, sizes.gpus, strict=True) if moment >= at)


def turns(run: Finished, place: int) -> int:
    """How often a service that gained GPUs loses some, or the other way round."""
    steps = [after - before for before, after in pairwise(run.sizes[place].gpus) if after != before]
    return sum((before > 0) != (after > 0) for before, after in pairwise(steps))


def changes(run: Finished, service: str, reason: str) -> list[SizeChange]:
    return [change for change in run.changes if (change.service, change.reason) == (service, reason)]


@pytest.mark.parametrize("name", ["short", "roomy", "apart"])
def test_no_gpu_is_held_twice(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    for accelerator, entry in run.scenario.cluster.accelerators.items():
        used = [count for _, count in held(run, accelerator)]
        assert max(used, default=0) <= entry.gpus
        assert min(used, default=0) >= 0
    everybody = [sum(counts) for counts in zip(*(sizes.gpus for sizes in run.sizes), strict=True)]
    assert max(everybody) <= sum(entry.gpus for entry in run.scenario.cluster.accelerators.values())


def test_while_gpus_are_short_the_higher_priority_is_served_and_the_lower_keeps_its_minimum(short: Finished) -> None:
    assert [gpus(short, place, PEAK[0]) for place in (0, 1)] == [3, 1]
    assert share(short, 0, PEAK) >= 0.95 > share(short, 1, PEAK)


def test_who_gives_way_is_told_what_one_more_gpu_would_give_and_who_has_them(short: Finished) -> None:
    (told,) = changes(short, "batch", "CapacityLimited")
    assert "GPUs went to simulated/chat (priority 10)" in told.message
    assert "one more GPU would add" in told.message
    assert told.replicas == 1


def test_after_the_peak_everybody_has_what_the_objective_takes(short: Finished) -> None:
    assert [share(short, place, AFTER) >= 0.95 for place in (0, 1)] == [True, True]


def test_nothing_goes_back_and_forth(short: Finished, roomy: Finished) -> None:
    assert [turns(short, place) for place in (0, 1)] == [1, 1]
    batch = roomy.services[1]
    assert not [pod for pod in batch.everything if pod.accelerator == "l40s" and pod.created_at > 0.0]


def test_who_finds_room_on_another_accelerator_moves_there_and_keeps_its_objective(roomy: Finished) -> None:
    batch = roomy.services[1]
    assert batch.sizes["l40s"] == 0
    assert batch.sizes["a100"] > 0
    assert [share(roomy, place, PEAK) >= 0.95 for place in (0, 1)] == [True, True]


def test_apart_nobody_gives_way_and_who_came_first_has_the_gpus(apart: Finished, short: Finished) -> None:
    assert gpus(apart, 1, PEAK[0]) == 2
    assert share(apart, 0, PEAK) < share(short, 0, PEAK)
    assert not changes(apart, "batch", "CapacityLimited")


class Orders:
    """Sizes by service and second, on each service's first accelerator."""

    name = "orders"
    tick_seconds = 5.0
    admission = False
    fast_loop = False
    start: int | None = None

    def __init__(self, orders: Mapping[tuple[str, float], int]) -> None:
        self._orders = orders
        self._began: float | None = None

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        self._began = snapshot.now if self._began is None else self._began
        moves = {}
        for service in snapshot.services:
            size = self._orders.get((service.spec.key.name, snapshot.now - self._began))
            if size is not None:
                moves[service.spec.key] = Move((PlacementTarget(service.spec.accelerators[0].name, size),), "Orders")
        return moves


def pair(gpus: int) -> dict[str, Any]:
    """Two small services, one replica of each to begin with."""
    content = small_scenario()
    content["services"].append(json.loads(json.dumps(content["services"][0])) | {"name": "code"})
    content["cluster"]["accelerators"]["h100"]["gpus"] = gpus
    return content


def test_who_has_waited_longest_gets_the_next_gpu_whatever_service_it_is_of(tmp_path: Path) -> None:
    orders = Orders({("code", 20.0): 2, ("chat", 40.0): 2, ("chat", 60.0): 1, ("chat", 80.0): 2, ("chat", 100.0): 0})
    run = play(pair(gpus=2), tmp_path, orders)
    chat, code = (sorted(service.everything, key=lambda pod: pod.created_at) for service in run.services)
    assert code[1].placed_at == pytest.approx(100.0, abs=5.0)
    assert [pod.placed_at for pod in chat[1:]] == [None, None]


def test_replicas_without_a_node_go_first(tmp_path: Path) -> None:
    run = play(pair(gpus=3), tmp_path, Orders({("chat", 20.0): 3, ("chat", 40.0): 2}))
    gone = [pod.placed_at for pod in run.services[0].gone]
    assert gone == [None]


def test_a_first_replica_that_finds_its_gpu_later_starts_then(tmp_path: Path) -> None:
    run = play(pair(gpus=1), tmp_path, Orders({("chat", 60.0): 0}))
    (late,) = run.services[1].pods
    assert late.placed_at == pytest.approx(60.0, abs=5.0)
    assert late.ready_at == pytest.approx(90.0, abs=5.0)
    told: Any = summary(run, 0.0)
    assert told["services"]["code"]["gpu_hours"] == pytest.approx(120.0 / 3600.0, rel=0.05)


def test_what_services_cost_adds_up(short: Finished) -> None:
    told: Any = summary(short, 0.0)
    for name in ("gpu_hours", "cost_dollars", "scale_actions", "goodput_rps"):
        together = sum(service[name] for service in told["services"].values())
        assert together == pytest.approx(told.get(name, together))
    assert told["services"]["chat"]["cost_dollars"] == pytest.approx(1.55 * told["services"]["chat"]["gpu_hours"])


def test_the_table_has_a_line_for_each_service_by_priority(short: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    table.write("contest", [summary(short, 0.0)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["chat", "10", "95"], ["batch", "0", "95"]]
    assert lines[-3].split()[:3] == ["holdfast-slow", "1", "all"]


def test_of_one_service_the_table_has_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write("small", [summary(play(small_scenario(), tmp_path, Static(1)), 0.0)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[:2] == ["static:1", "1"]
    assert "priority" not in lines[-2]


@pytest.mark.parametrize(("given", "seconds"), [({}, 300.0), ({"nodeProvisioningTime": "20s"}, 20.0)])
def test_holdfast_is_told_how_long_nodes_take_to_come(given: dict[str, str], seconds: float, tmp_path: Path) -> None:
    content, policy = small_scenario() | {"duration": "40s"}, Holdfast(fast_loop=False)
    content["cluster"] |= given
    play(content, tmp_path, policy)
    assert policy.provisioning_seconds == seconds


def test_the_shipped_scenario_has_five_services_that_may_run_on_several_accelerators() -> None:
    scenario = Scenario.read(SHIPPED)
    specs = [entry.spec for entry in scenario.services if entry.spec is not None]
    assert len({spec.priority for spec in specs}) == len(specs) == 5
    assert all(len(spec.accelerators) >= 2 for spec in specs)
    assert {option.name for spec in specs for option in spec.accelerators} == set(scenario.cluster.accelerators)
    assert len(scenario.cluster.accelerators) == 3
