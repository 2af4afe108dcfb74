"""A service that may run no replica, where nobody could hold its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.simulate import declare
from holdfast.twin.policies import Holdfast
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import scenario_file, small_scenario


@pytest.mark.parametrize("begins", [{"h100": 1}, {}])
def test_a_minimum_of_nothing_is_played_as_one_replica(begins: dict[str, int], tmp_path: Path) -> None:
    content = small_scenario() | {"duration": "20m"}
    content["services"][0]["spec"]["scaling"]["min"] = 0
    content["services"][0]["workload"]["arrivals"] = {"poisson": [{"at": "0s", "rps": 1}, {"at": "2m", "rps": 0}]}
    content["services"][0]["initialReplicas"] = begins
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    declared = [declare(scenario, each, path, tmp_path, 1) for each in scenario.services]
    finished = simulate(scenario, declared, Holdfast(fast_loop=False), 1)
    assert min(finished.sizes[0].ready[1:]) == 1
