"""Whole runs: pods, what policies see, and what comes out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli.main import main
from holdfast.cli.simulate import declare
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import PlacementTarget
from holdfast.domain.engine import EngineFacts
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.enginetimer import gpu_of
from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.twin.arrays import state_arrays
from holdfast.twin.policies import Holdfast, Static, make_policy, without_argument
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.results import budget_left, cost_dollars, good, summary
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import engine_kind
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import scenario_file, small_scenario


class Script:
    """Sizes by second, and everything that was seen on the way."""

    name = "script"
    tick_seconds = 5.0
    admission = False
    fast_loop = False
    start: int | None = None

    def __init__(self, sizes: Mapping[float, int]) -> None:
        self._sizes = dict(sizes)
        self.seen: list[tuple[float, Traffic, tuple[ReplicaPhase, ...]]] = []
        self._began: float | None = None

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        self._began = snapshot.now if self._began is None else self._began
        at, service = snapshot.now - self._began, snapshot.services[0]
        self.seen.append((at, service.traffic, tuple(replica.phase for replica in service.replicas)))
        if at in self._sizes:
            return {service.spec.key: Move((PlacementTarget("h100", self._sizes[at]),), "Script")}
        return {}

    def at(self, second: float) -> tuple[Traffic, tuple[ReplicaPhase, ...]]:
        return next((traffic, phases) for at, traffic, phases in self.seen if at == second)


OF_A_RUN = {"policy", "seed", "services", "attainment", "gpu_hours", "cost_dollars", "scale_actions", "wall_seconds"}
OF_A_SERVICE = {"arrivals", "good", "attainment", "goodput_rps"} | {
    f"{latency}_p{share}_seconds" for latency in ("ttft", "tpot") for share in (50, 95, 99)
}
"""What others read of `--json`: may grow, must not shrink."""


def _run(policy: Any, tmp_path: Path, content: dict[str, Any] | None = None, seed: int = 1) -> Finished:
    path = scenario_file(tmp_path, content or small_scenario())
    scenario = Scenario.read(path)
    return simulate(
        scenario, [declare(scenario, each, path, tmp_path, seed) for each in scenario.services], policy, seed
    )


def test_a_replica_serves_after_its_cold_start_and_drains_without_loss(tmp_path: Path) -> None:
    policy = Script({60.0: 2, 120.0: 1})
    run = _run(policy, tmp_path)
    assert policy.at(65.0)[1].count(ReplicaPhase.STARTING) == 1
    assert policy.at(90.0)[1] == (ReplicaPhase.READY, ReplicaPhase.READY)
    service = run.services[0]
    (gone,) = service.gone
    assert gone.created_at == 60.0 or gone.created_at < 0.0
    assert gone.leaving_at == 120.0
    assert gone.gone_at is not None
    assert 120.0 <= gone.gone_at < 125.0
    assert (service.fleet.requests["state"] == state_arrays.FINISHED).all()
    told: Any = summary(run, 0.0)
    expected = (180.0 + 60.0 + gone.gone_at - 120.0) / 3600.0
    assert told["gpu_hours"] == pytest.approx(expected)
    assert told["cost_dollars"] == pytest.approx(3.0 * expected)
    assert told["scale_actions"] == 2


def test_engines_may_really_be_another_model_on_a_part_of_a_gpu(tmp_path: Path) -> None:
    """The policy is told what the spec says; steps and the KV cache are those of what there is."""

    def engine(**real: object) -> tuple[float, int]:
        content = small_scenario()
        content["cluster"]["accelerators"]["h100"] |= real
        service = _run(Script({}), tmp_path, content).services[0]
        assert service.spec.model_uri == content["services"][0]["spec"]["model"]["uri"]
        kind = service.fleet.kinds[0]
        return gpu_of(kind.timer).step_seconds(((300, 0),), 8, 500.0), kind.limits.kv_tokens

    whole, half, larger = engine(), engine(share=0.5), engine(model="Qwen/Qwen3-32B")
    assert half[0] == pytest.approx(2.0 * whole[0])
    assert half[1] < 0.5 * whole[1]
    assert larger[0] > 2.0 * whole[0]
    assert larger[1] < whole[1]


def test_engines_say_what_kv_cache_they_really_have_once_they_are_scraped(tmp_path: Path) -> None:
    content = small_scenario() | {"faults": [{"at": "60s", "lasts": "30s", "kind": "metrics-gone"}]}
    policy = Script({})
    run = _run(policy, tmp_path, content)
    held = run.services[0].fleet.kinds[0].limits.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert policy.at(0.0)[0].facts == (("h100", EngineFacts(kv_tokens=held, block_tokens=BLOCK_TOKENS)),)
    assert held > 100_000
    assert policy.at(75.0)[0].facts == (), "Prometheus does not answer"
    assert policy.at(150.0)[0].facts == policy.at(0.0)[0].facts


def test_an_accelerator_without_a_scraped_engine_says_nothing(tmp_path: Path) -> None:
    content = small_scenario()
    content["services"][0]["initialReplicas"] = {"h100": 0}
    policy = Script({30.0: 1, 65.0: 0})  # ready at 60 s, removed within 5 s
    _run(policy, tmp_path, content | {"duration": "5m"})
    said = [at for at, traffic, _ in policy.seen if traffic.facts]
    assert said[0] == 60.0
    assert said[-1] < 240.0, "what nobody says any more is asked again a minute later"


def test_nodes_have_the_labels_that_a_service_selects_them_by(tmp_path: Path) -> None:
    label, content = ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"), small_scenario()
    content["services"][0]["spec"]["accelerators"][0]["nodeSelector"] = dict([label])
    rooms: list[int] = []

    class Looking(Script):
        def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
            rooms.append(Inventory(snapshot.nodes).room(snapshot.services[0].spec.accelerators[0]).free_replicas)
            assert label in snapshot.nodes[0].labels
            return super().decide(snapshot)

    _run(Looking({}), tmp_path, content)
    assert set(rooms) == {5}


def test_pods_beyond_the_gpus_wait_for_one(tmp_path: Path) -> None:
    content = small_scenario()
    content["cluster"]["accelerators"]["h100"]["gpus"] = 2
    policy = Script({30.0: 3, 90.0: 2})
    _run(policy, tmp_path, content)
    assert policy.at(35.0)[1].count(ReplicaPhase.UNSCHEDULABLE) == 1
    assert policy.at(95.0)[1] == (ReplicaPhase.READY, ReplicaPhase.READY)


def test_what_is_seen_is_what_happened_over_the_last_scrapes(tmp_path: Path) -> None:
    policy = Script({})
    run = _run(policy, tmp_path)
    traffic, _ = policy.at(150.0)
    ((name, seen),) = traffic.by_accelerator
    requests = run.services[0].fleet.requests
    # Three scrapes lie in the interval; what lies between them is stretched to all of it, as increase() does.
    inside = (requests["last_at"] > 120.0) & (requests["last_at"] <= 150.0)
    assert (name, traffic.state, traffic.interval_seconds) == ("h100", SignalState.FRESH, 45.0)
    assert seen.finished == pytest.approx(1.5 * inside.sum())
    assert seen.running == ((requests["at"] < 150.0) & (requests["last_at"] > 150.0)).sum()
    assert seen.prompt_length_sum == pytest.approx(500.0 * seen.finished)
    # Lengths are asked for once a minute.
    assert traffic.output_lengths.cumulative[-1] == (requests["last_at"] <= 120.0).sum()
    assert policy.at(145.0)[0].by_accelerator[0][1].finished == pytest.approx(
        1.5 * ((requests["last_at"] > 105.0) & (requests["last_at"] <= 135.0)).sum()
    )


def test_a_new_engine_counts_whole_and_one_that_left_counts_still(tmp_path: Path) -> None:
    policy = Script({30.0: 2, 120.0: 1})
    run = _run(policy, tmp_path)
    requests = run.services[0].fleet.requests
    for second in (75.0, 90.0, 150.0):
        (_, seen) = policy.at(second)[0].by_accelerator[0]
        ended = ((requests["last_at"] > second - 45.0) & (requests["last_at"] <= second)).sum()
        assert seen.finished == pytest.approx(ended, rel=0.3)


def test_nothing_is_seen_while_prometheus_is_gone(tmp_path: Path) -> None:
    content = small_scenario() | {"faults": [{"at": "60s", "kind": "metrics-gone", "for": "40s"}]}
    policy = Script({})
    _run(policy, tmp_path, content)
    assert policy.at(65.0)[0].state is SignalState.UNREACHABLE
    assert policy.at(55.0)[0].state is SignalState.FRESH
    assert policy.at(105.0)[0].state is SignalState.PARTIAL, "one sample counts nothing"
    assert policy.at(120.0)[0].state is SignalState.FRESH


@pytest.mark.parametrize("kind", ["replica-hang", "replica-slow", "node-loss"])
def test_faults_cost_requests_and_end(kind: str, tmp_path: Path) -> None:
    fault = (
        {"at": "60s", "kind": kind, "for": "30s", "factor": 20} if kind != "node-loss" else {"at": "60s", "kind": kind}
    )
    run = _run(Static(1), tmp_path, small_scenario() | {"faults": [fault]})
    told: Any = summary(run, 0.0)
    assert told["attainment"] < 0.9
    if kind == "node-loss":
        assert told["services"]["chat"]["lost"] > 0
        assert told["services"]["chat"]["unserved"] == pytest.approx(3.0 * 30.0, rel=0.3)
    late = run.services[0].fleet.requests["at"] > 170.0
    assert (run.services[0].fleet.requests["state"][late] == state_arrays.FINISHED).all() == (kind != "replica-hang")


def test_the_controllers_own_policy_follows_a_step_and_lets_go_again(tmp_path: Path) -> None:
    content = small_scenario()
    content["duration"] = "35m"
    content["services"][0]["workload"]["arrivals"]["poisson"] = [
        {"at": "0s", "rps": 6},
        {"at": "5m", "rps": 120},
        {"at": "12m", "rps": 6},
    ]
    run = _run(Holdfast(fast_loop=False), tmp_path, content)
    sizes = run.sizes[0]
    ready = dict(zip(sizes.at, sizes.ready, strict=True))
    assert ready[290.0] == 1
    assert max(sizes.ready) >= 3
    assert ready[2090.0] < max(sizes.ready)
    assert run.changes[0].reason == "ForecastAboveCapacity"
    assert 300.0 < run.changes[0].at <= 345.0


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, again, other = (_run(make_policy("holdfast-slow", {}), tmp_path, seed=seed) for seed in (1, 1, 2))
    assert first.services[0].fleet.requests.tobytes() == again.services[0].fleet.requests.tobytes()
    assert first.services[0].fleet.requests.tobytes() != other.services[0].fleet.requests.tobytes()
    assert first.changes == again.changes


def test_services_share_the_gpus(tmp_path: Path) -> None:
    content = small_scenario()
    second = json.loads(json.dumps(content["services"][0])) | {"name": "code"}
    content["services"].append(second)
    content["cluster"]["accelerators"]["h100"]["gpus"] = 1
    run = _run(Static(1), tmp_path, content)
    states = [np.unique(service.fleet.requests["state"]).tolist() for service in run.services]
    assert states == [[state_arrays.FINISHED], [state_arrays.UNSERVED]]


def test_the_budget_falls_with_misses_and_comes_back_as_the_window_passes(tmp_path: Path) -> None:
    content = small_scenario() | {"duration": "10m", "faults": [{"at": "60s", "kind": "replica-slow", "factor": 40}]}
    content["faults"][0]["for"] = "10s"
    content["services"][0]["spec"]["slo"]["window"] = "5m"
    (service,) = _run(Static(1), tmp_path, content).services
    before, after, passed = budget_left(service, np.array([50.0, 120.0, 590.0]))
    assert before == passed == 1.0
    late = service.fleet.requests["at"] < 120.0
    assert after == pytest.approx(1.0 - (~good(service)[late]).sum() / (0.01 * late.sum()))
    assert after < 0.0
    assert np.isnan(budget_left(service, np.array([-1.0]))).all()


def test_costs_add_up_to_what_the_run_cost(tmp_path: Path) -> None:
    run = _run(Script({60.0: 2, 120.0: 1}), tmp_path)
    (service,) = run.services
    costs = [cost_dollars(service, second) for second in (0.0, 60.0, 120.0, 180.0)]
    assert costs[:3] == pytest.approx([0.0, 3.0 * 60.0 / 3600.0, 3.0 * 180.0 / 3600.0])
    assert costs[3] == summary(run, 0.0)["cost_dollars"]


@pytest.mark.slow
def test_the_command_writes_the_results_and_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page, numbers = scenario_file(tmp_path, small_scenario()), tmp_path / "report.html", tmp_path / "out.json"
    words = ["simulate", str(path), "--policy", "static:1", "--policy", "hpa", "--seeds", "2"]
    assert main([*words, "--json", str(numbers), "--plot", str(page)]) == 0
    assert "static:1" in capsys.readouterr().out
    told = json.loads(numbers.read_text())
    assert told["scenario"] == "small"
    assert [(run["policy"], run["seed"]) for run in told["runs"]] == [
        ("static:1", 1),
        ("hpa", 1),
        ("static:1", 2),
        ("hpa", 2),
    ]
    chat = told["runs"][0]["services"]["chat"]
    assert {"arrivals", "good", "attainment", "goodput_rps", "ttft_p99_seconds", "tpot_p50_seconds"} <= set(chat)
    assert chat["attainment"] > 0.95
    assert math.isclose(chat["goodput_rps"], chat["good"] / 150.0)
    assert {"gpu_hours", "cost_dollars", "scale_actions", "wall_seconds"} <= set(told["runs"][0])
    assert "data:image/png;base64," in page.read_text()


def test_results_go_to_standard_output_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario_file(tmp_path, small_scenario())
    assert main(["simulate", str(path), "--policy", "static:1", "--json", "-"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["policy"], run["seed"]) for run in runs] == [("static:1", seed) for seed in (1, 2, 3, 4, 5)]
    for run in runs:
        assert run.keys() >= OF_A_RUN
        assert run["services"]["chat"].keys() >= OF_A_SERVICE


@pytest.mark.parametrize(("alias", "meant"), [("dynamo-load", "dynamo-sla"), ("forecast-hourly", "sageserve")])
def test_a_second_name_is_the_same_policy_and_stands_in_the_results(
    alias: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(scenario_file(tmp_path, small_scenario()))
    assert main(["simulate", path, "--policy", alias, "--policy", meant, "--seeds", "1", "--json", "-"]) == 0
    one, other = json.loads(capsys.readouterr().out)["runs"]
    assert (one.pop("policy"), other.pop("policy")) == (alias, meant)
    assert one | {"wall_seconds": 0.0} == other | {"wall_seconds": 0.0}


def test_all_compares_every_policy_that_can_play_the_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = small_scenario() | {"duration": "90s"}
    assert _told(["--policy", "hpa", "--policy", "all"], content, tmp_path, capsys) == [
        "hpa",
        *(name for name in without_argument() if name != "hpa"),
        "static-peak:1",
        "oracle",
    ]
    content["services"].append(json.loads(json.dumps(content["services"][0])) | {"name": "code"})
    assert _told(["--policy", "all"], content, tmp_path, capsys) == without_argument()


def test_a_sweep_runs_each_policy_with_its_knob_around_what_is_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--policy", "static:1", "--policy", "hpa", "--sweep-knob"]
    assert _told(words, small_scenario(), tmp_path, capsys) == [
        "static:1",
        *(f"hpa:waiting={value}" for value in ("1.25", "2.5", "5", "10", "20")),
    ]


def _told(words: list[str], content: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The policies of the runs that the command made."""
    path = str(scenario_file(folder, content))
    assert main(["simulate", path, *words, "--seeds", "1", "--json", "-"]) == 0
    return [run["policy"] for run in json.loads(capsys.readouterr().out)["runs"]]


def test_the_static_peak_is_the_smallest_size_that_attains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_scenario()
    content["services"][0]["workload"]["arrivals"]["poisson"] = [{"at": "0s", "rps": 120}]
    path = scenario_file(tmp_path, content)
    words = ["simulate", str(path), "--policy", "static-peak", "--policy", "static:2", "--seeds", "1", "--json", "-"]
    assert main(words) == 0
    peak, two = json.loads(capsys.readouterr().out)["runs"]
    assert peak["policy"] == "static-peak:3"
    assert peak["attainment"] >= 0.99 > two["attainment"]


def test_the_static_peak_is_of_one_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_scenario()
    content["services"].append(json.loads(json.dumps(content["services"][0])) | {"name": "code"})
    assert main(["simulate", str(scenario_file(tmp_path, content)), "--policy", "static-peak"]) == 2
    assert "one service" in capsys.readouterr().err


@pytest.mark.parametrize("overhead_seconds", [0.0, 0.01])
def test_a_constant_overhead_stands_in_for_the_usual_host(overhead_seconds: float, tmp_path: Path) -> None:
    content = small_scenario()
    content["cluster"]["accelerators"]["h100"]["overhead"] = f"{1e3 * overhead_seconds:g}ms"
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    (service,) = [declare(scenario, each, path, tmp_path, 1) for each in scenario.services]
    (option,), entry = service.spec.accelerators, scenario.cluster.accelerators["h100"]
    timer = engine_kind(service, option, entry, admission=False).timer
    for step in (((), 10, 500.0), (((600, 0),), 10, 500.0)):
        assert timer.step_seconds(*step) == pytest.approx(gpu_of(timer).step_seconds(*step) + overhead_seconds)
