"""The demo's scenario fits its promises."""

import pathlib

from e2e.demo.scenario import Scenario
from e2e.load import trace

EXCERPT = pathlib.Path(__file__).parents[2] / "examples/traces/azure-conv-excerpt.csv"


def test_the_shipped_trace_carries_the_default_scenario() -> None:
    scenario = Scenario()
    arrivals = trace.stepped(trace.read(EXCERPT), scenario.load(), scenario.seed)
    tokens = sum(arrival.output_tokens for arrival in trace.window(arrivals, 90, 210)) / 120
    assert 2000 < tokens < 3400


def test_load_set_up_and_two_cold_starts_fit_into_ten_minutes() -> None:
    scenario = Scenario()
    assert scenario.duration_seconds + 2 * scenario.cold_start_seconds + 120 <= 600
    assert scenario.cold_start_seconds >= 30


def test_forgiven_is_one_cold_start_and_two_ticks_and_not_more() -> None:
    span = Scenario().excused(start=1000.0, cold_start_seconds=36.0)
    assert (span.start, span.end) == (1090.0, 1136.0)


def test_two_whole_windows_at_the_peak_are_judged() -> None:
    scenario = Scenario()
    judged_from = scenario.excused(0.0, scenario.cold_start_seconds + 10).end
    assert scenario.step_end_seconds - judged_from >= 2 * scenario.window_seconds


def test_every_moment_has_a_phase_and_the_peak_stands_out() -> None:
    scenario = Scenario()
    phases = [scenario.phase(second, 36.0) for second in (-1, 0, 89, 90, 135, 136, 209, 210, 359, 360)]
    assert [phase.startswith("LOAD x3") for phase in phases] == [False] * 3 + [True] * 4 + [False] * 3
    assert "cold start" in phases[3]
    assert "cold start" not in phases[5]
