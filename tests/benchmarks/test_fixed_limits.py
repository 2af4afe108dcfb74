"""What hindsight gives to others: fixed limits, and a cap on queued prompts on top of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscaling.fixed_limits import ENOUGH, Limits, _bench, best_capped, carried_rps, with_limits
from holdfast.cli.simulate import declare
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import scenario_file, small_scenario

LIMITS = Limits(128, 2048)


@pytest.fixture
def played(tmp_path: Path) -> tuple[Scenario, Declared]:
    path = scenario_file(tmp_path, {**small_scenario(), "warmup": "0s"})
    scenario = Scenario.read(path)
    (each,) = [declare(scenario, entry, path, tmp_path, seed=1) for entry in scenario.services]
    return scenario, each


def overloaded(each: Declared, rate: float) -> Declared:
    """The same requests, faster, so that one replica gets 1.5 times what it carries."""
    load = each.workload
    return replace(each, workload=replace(load, at=load.at * (len(load) / load.at[-1]) / (1.5 * rate)))


@pytest.mark.parametrize("limits", [LIMITS, LIMITS._replace(max_num_queued_tokens=700)])
def test_engines_get_the_limits_that_are_asked_for(played: tuple[Scenario, Declared], limits: Limits) -> None:
    scenario, each = played
    option = each.spec.accelerators[0]
    entry = scenario.cluster.accelerators[option.name]
    kind = engine_kind(with_limits(each, limits), option, entry, admission=False)
    assert kind.limits.max_num_seqs == 128
    assert kind.limits.max_num_batched_tokens == 2048
    assert kind.limits.max_num_queued_tokens == limits.max_num_queued_tokens


@pytest.mark.slow
def test_the_best_cap_costs_nothing_where_capacity_suffices_and_keeps_requests_good_where_it_does_not(
    played: tuple[Scenario, Declared],
) -> None:
    scenario, each = played
    capped = best_capped(scenario, each, LIMITS)
    assert capped[:2] == LIMITS[:2]
    rate = carried_rps(scenario, each, LIMITS)
    ours, theirs = (_bench(scenario, each, limits, 2) for limits in (capped, LIMITS))
    assert ours.attainment(ENOUGH * rate) >= each.spec.slo.objective
    assert ours.attainment(1.7 * rate) > theirs.attainment(1.7 * rate) + 0.1


@pytest.mark.slow
def test_a_peers_engines_refuse_beyond_the_cap(played: tuple[Scenario, Declared]) -> None:
    scenario, each = played
    crowd = overloaded(each, carried_rps(scenario, each, LIMITS))
    attained = []
    for limits in (LIMITS, best_capped(scenario, each, LIMITS)):
        run = simulate(scenario, [with_limits(crowd, limits)], make_policy("static:1", {}), 1)
        attained.append(summary(run, 1.0)["attainment"])
    assert attained[1] > attained[0]
