"""The twin against vLLM on an H200: step times, and latencies at 0.8 C; skips without the data."""

from __future__ import annotations

import pytest

from benchmarks import h200_data, twin_h200
from tests.shared_data import shared_data


@pytest.fixture(scope="module")
def recorded() -> h200_data.Recorded:
    return h200_data.read(shared_data(h200_data.FOLDER).parent)


@pytest.mark.data
def test_engine_time_of_recorded_steps_is_met_with_one_host_factor_per_call(recorded: h200_data.Recorded) -> None:
    factors, steps = twin_h200.compare_steps(recorded)
    assert {call: pytest.approx(factor, abs=0.15) for call, factor in factors.items()} == dict.fromkeys((2, 3, 4), 1.05)
    assert all(abs(each.error) <= twin_h200.STEPS_LIMIT for each in steps.values()), steps


@pytest.mark.data
def test_latencies_below_capacity_are_met_on_the_usual_host(recorded: h200_data.Recorded) -> None:
    # Only without the plugin: what the plugin does changes, and the record does not.
    name = twin_h200.CALM[0]
    found = twin_h200.compare(recorded, name, twin_h200.play_stock(recorded, name, twin_h200.usual_timer()))
    assert twin_h200.calm_held({name: found}), found
