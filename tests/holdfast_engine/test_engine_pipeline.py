"""The step law of an engine that launches steps ahead, through the fast loop on a virtual clock."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine import steptimes
from holdfast_engine.arithmetic import Law, linear_seconds
from holdfast_engine.fastloop import Graphs
from tests.holdfast_engine.pipelined_engine import Load, PipelinedEngine, scaled

TRUTH = Law(0.0042, 20e-6, 42e-6, 2e-8, 0.0)
H200_LAUNCHES = (0.001, 0.0095, 0.021)
# Prompts and answers as in a chat service: each step decodes 64 sequences of 600 tokens.
STEPS = {"decodes": (0, 64, 38_400, 0), "short prompt": (300, 64, 38_400, 45e3), "long": (2000, 64, 38_400, 2e6)}


def chat(share: float, shortest: int = 100, longest: int = 900) -> Load:
    """So many of the steps compute prompt tokens."""

    def step(draw: random.Random) -> tuple[int, int]:
        return (draw.randint(shortest, longest) if draw.random() < share else 0), draw.randint(40, 80)

    return step


def errors(law: Law, truth: Law = TRUTH) -> dict[str, float]:
    return {name: linear_seconds(law, *work) / linear_seconds(truth, *work) - 1.0 for name, work in STEPS.items()}


def assert_right(law: Law, truth: Law = TRUTH, tolerance: float = 0.1) -> None:
    found = errors(law, truth)
    assert max(map(abs, found.values())) < tolerance, found


@pytest.mark.parametrize("share", [0.15, 0.7])
@pytest.mark.parametrize("launches", [(0.0, 0.0, 0.0), H200_LAUNCHES])
def test_a_prompts_time_is_booked_on_its_own_step(
    launches: tuple[float, float, float], share: float, tmp_path: Path
) -> None:
    law = PipelinedEngine(TRUTH, launches, tmp_path).run(60.0, chat(share))
    assert law.c1 == pytest.approx(TRUTH.c1, rel=0.1)
    assert law.c2 + 600 * law.c3 == pytest.approx(54e-6, rel=0.1)  # lengths are constant: only their sum is known


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_a_prior_that_is_far_off_is_overruled(factor: float, tmp_path: Path) -> None:
    engine = PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path, prior=scaled(TRUTH, factor))
    assert_right(engine.run(60.0, chat(0.3)))


def test_a_synchronous_engine_is_timed_step_by_step(tmp_path: Path) -> None:
    assert_right(PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path, depth=1).run(60.0, chat(0.3)))


def test_launches_are_a_floor_and_no_part_of_the_gpus_time(tmp_path: Path) -> None:
    law = PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path).run(120.0, chat(0.3))
    assert law.launch_mixed == pytest.approx(0.0095, rel=0.2)
    assert law.launch_large == pytest.approx(0.021, rel=0.2)
    assert law.seconds(500, 64, 38_400, 0.0) == law.launch_large
    assert law.seconds(2000, 64, 38_400, 0.0) == linear_seconds(law, 2000, 64, 38_400, 0.0)


def test_an_engine_without_graphs_is_bound_by_its_launches(tmp_path: Path) -> None:
    eager = Graphs(0.0, whole_decodes=False)
    engine = PipelinedEngine(TRUTH, (0.02, 0.02, 0.02), tmp_path, TRUTH, edge_tokens=0.0, graphs=eager)
    law = engine.run(60.0, chat(0.3))
    assert law.seconds(*STEPS["decodes"]) == pytest.approx(0.0205, rel=0.1)
    assert_right(law, tolerance=0.15)


def test_where_the_edge_is_not_reported_there_is_none(tmp_path: Path) -> None:
    law = PipelinedEngine(TRUTH, (0.001, 0.0095, 0.0095), tmp_path, graphs=Graphs()).run(60.0, chat(0.3))
    assert law.launch_large == 0.0
    assert_right(law)


@pytest.mark.parametrize("gpu", [1.0, 1.5, 1 / 1.5])
@pytest.mark.parametrize("host", [1.0, 1.5])
def test_another_speed_is_followed_within_30_seconds(gpu: float, host: float, tmp_path: Path) -> None:
    engine = PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path, TRUTH)
    engine.run(120.0, chat(0.3))
    engine.law = scaled(TRUTH, gpu)
    engine.launches = (0.001 * host, 0.0095 * host, 0.021 * host)
    law = engine.run(30.0, chat(0.3))
    found = errors(law, engine.law)
    far = found.pop("long")
    assert max(map(abs, found.values())) < 0.1, found
    assert abs(far) < 0.2  # no step of 2,000 tokens was ever seen
    assert law.launch_large == pytest.approx(0.021 * host, rel=0.15)


def test_steady_load_does_not_wipe_out_what_varied_steps_have_taught(tmp_path: Path) -> None:
    engine = PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path, scaled(TRUTH, 1.5))
    assert_right(engine.run(60.0, chat(0.3, longest=3000)))
    law = engine.run(600.0, lambda draw: (400, 60) if draw.random() < 0.2 else (0, 60))
    assert_right(law)


def test_a_stalled_step_does_not_bend_the_law(tmp_path: Path) -> None:
    engine = PipelinedEngine(TRUTH, H200_LAUNCHES, tmp_path)
    engine.run(60.0, chat(0.3))
    engine.now += 60.0
    assert_right(engine.run(5.0, chat(0.3)))


MOMENTS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.floats(0, 1e9), MOMENTS, st.integers(-1, 2), st.booleans(), MOMENTS, MOMENTS), max_size=30)
)
def test_no_clock_and_no_step_leaves_anything_but_a_possible_window(
    calls: list[tuple[float, float, int, bool, float, float]],
) -> None:
    row = [0.0] * steptimes.PLACES
    for amount, gpu_seconds, ahead, replayed, launched_at, now in calls:
        if steptimes.came(row, (1.0, amount, amount, amount, amount), gpu_seconds, ahead, replayed, launched_at, now):
            assert 0.0 < row[steptimes.WINDOW_SECONDS] < float("inf")
            assert 1 <= row[steptimes.STEPS] <= steptimes.MOST_STEPS
