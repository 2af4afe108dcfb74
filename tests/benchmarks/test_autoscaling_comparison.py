"""The comparison of autoscalers: which knobs are tried, what counts, and what is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.autoscaling.campaign import HIGHEST, LOWEST, cheapest, knob_value, leanest
from benchmarks.autoscaling.cases import CASES
from benchmarks.autoscaling.compare import PEERS, geometric_mean
from benchmarks.autoscaling.journal import Journal, Key, Row
from benchmarks.autoscaling.requests import shifted
from holdfast.simulator.twin.fleet import Workload
from holdfast.simulator.twin.policies import POLICIES, make_policy


def row(attainment: float, gpu_hours: float) -> Row:
    return Row(attainment, gpu_hours, 1.0, 1.0, 1.0, 0.1, 2, 0.5, "hpa")


def key(seed: int = 1) -> Key:
    return Key("step", "abc", "hpa", 5.0, seed, "def")


@pytest.mark.parametrize("edge", range(LOWEST, HIGHEST + 1))
def test_the_leanest_knob_that_attains_is_found_in_few_runs(edge: int) -> None:
    tried: list[int] = []

    def attains(place: int) -> bool:
        tried.append(place)
        return place <= edge

    assert leanest(attains) == edge
    assert len(tried) <= 8
    assert len(set(tried)) == len(tried)
    assert all(LOWEST <= place <= HIGHEST for place in tried)


def test_no_knob_is_told_where_none_attains() -> None:
    assert leanest(lambda place: False) is None


def test_the_cheapest_run_that_attains_counts_even_where_a_leaner_knob_costs_more() -> None:
    front = {-2: row(0.999, 3.0), 0: row(0.995, 2.0), 2: row(0.991, 2.5), 4: row(0.98, 1.0)}
    assert cheapest(front, 0.99) == (0, front[0])
    assert cheapest(front, 0.9999) is None


def test_every_peer_takes_its_knob() -> None:
    for peer in PEERS:
        (knob,) = POLICIES[peer][0]
        assert make_policy(peer, {knob: knob_value(peer, LOWEST)}).name == peer


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_a_run_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "runs.jsonl"
    Journal(path).add(key(1), row(0.99, 2.0))
    Journal(path).add(key(2), row(0.98, 2.5))
    content = path.read_text()
    path.write_text(content[:-5])
    again = Journal(path)
    assert again.get(key(1)) == row(0.99, 2.0)
    assert again.get(key(2)) is None
    again.add(key(2), row(0.97, 2.6))
    assert Journal(path).get(key(2)) == row(0.97, 2.6)


def test_every_scenario_reads_and_names_one_service() -> None:
    for case in CASES.values():
        scenario = case.scenario()
        assert scenario.name == case.name
        assert len(scenario.services) == 1


def test_lengths_turn_within_ten_minutes_at_half_time(tmp_path: Path) -> None:
    (tmp_path / "azure2023").mkdir()
    trace = tmp_path / "azure2023" / "AzureLLMInferenceTrace_code.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4000,9\n")
    scenario = CASES["shift"].scenario()
    at = np.arange(0.0, 3600.0)
    same = np.full(len(at), 100, np.int64)
    found = shifted(Workload(at, same, same, np.zeros_like(same)), scenario, tmp_path, seed=1)
    assert (found.prompt_tokens[at < 1500.0] == 100).all()
    assert (found.prompt_tokens[at > 2100.0] == 4000).all()
    assert (found.output_tokens[at > 2100.0] == 9).all()
    between = found.prompt_tokens[(at >= 1500.0) & (at <= 2100.0)]
    assert 0.4 < (between == 4000).mean() < 0.6
