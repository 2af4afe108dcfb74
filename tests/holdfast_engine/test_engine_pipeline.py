"""The step law of an engine that launches steps ahead, through the fast loop on a virtual clock."""

from __future__ import annotations

import enum
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.law import arithmetic, steptimes
from holdfast_engine.law.arithmetic import Law, linear_seconds
from holdfast_engine.law.captured_graphs import CapturedGraphs, captured_graphs
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
    eager = CapturedGraphs(0.0, whole_decodes=False)
    engine = PipelinedEngine(TRUTH, (0.02, 0.02, 0.02), tmp_path, TRUTH, edge_tokens=0.0, graphs=eager)
    law = engine.run(60.0, chat(0.3))
    assert law.seconds(*STEPS["decodes"]) == pytest.approx(0.0205, rel=0.1)
    assert_right(law, tolerance=0.15)


def test_where_the_edge_is_not_reported_there_is_none(tmp_path: Path) -> None:
    law = PipelinedEngine(TRUTH, (0.001, 0.0095, 0.0095), tmp_path, graphs=CapturedGraphs()).run(60.0, chat(0.3))
    assert law.launch_large == 0.0
    assert_right(law)


@pytest.mark.parametrize("graphs", [CapturedGraphs(), CapturedGraphs(512.0)], ids=["unreported", "reported"])
def test_a_long_launch_beyond_an_edge_that_nobody_reported_is_no_wait_for_the_gpu(
    graphs: CapturedGraphs, tmp_path: Path
) -> None:
    engine = PipelinedEngine(TRUTH, (0.001, 0.0108, 0.0288), tmp_path, graphs=graphs)
    law = engine.run(120.0, chat(0.1, longest=1200))
    assert law.c1 == pytest.approx(TRUTH.c1, rel=0.25)
    assert law.launch_large == pytest.approx(0.0288, rel=0.2)


def test_the_first_prompts_launch_is_not_what_its_tokens_cost(tmp_path: Path) -> None:
    eager = CapturedGraphs(512.0)
    engine = PipelinedEngine(TRUTH, (0.001, 0.06, 0.06), tmp_path, graphs=eager)
    law = engine.run(30.0, lambda draw: (400, 0) if engine.now == 0.0 else (0, draw.randint(40, 80)))
    assert law.c1 < 2.0 * TRUTH.c1


@pytest.mark.parametrize(("prompt_seconds", "launch_seconds"), [(0.03, 0.03), (0.012, 0.0)])
def test_a_synchronous_engine_tells_a_launch_from_the_gpus_time(prompt_seconds: float, launch_seconds: float) -> None:
    row, now = [0.0] * steptimes.PLACES, 0.0
    for prefill, seconds in [(0.0, 0.008), (0.1, prompt_seconds)] * 20:
        now += seconds
        lone = steptimes.MIXED if prefill else -1
        steptimes.came(row, (1.0, prefill, 0.6, 0.4, 0.0), 0.01, -1, True, now - seconds, now, lone)
    assert row[steptimes.LAUNCHES + steptimes.MIXED] == pytest.approx(launch_seconds, rel=0.1)


@given(st.lists(st.floats(-1.0, 1e9) | st.just(float("inf")), max_size=200))
def test_how_slow_steps_are_stays_between_nothing_and_its_bound(seconds: list[float]) -> None:
    slowness = 1.0
    for each in seconds:
        slowness = arithmetic.moved_slowness(slowness, TRUTH, 100.0, 10.0, 1e3, 0.0, each)
        assert 0.0 <= slowness <= arithmetic.SLOWEST


def test_steps_that_take_longer_than_by_the_law_are_believed_and_one_stall_is_not() -> None:
    expected, slowness = TRUTH.seconds(100.0, 10.0, 1e3, 0.0), 1.0
    assert arithmetic.moved_slowness(slowness, TRUTH, 100.0, 10.0, 1e3, 0.0, 100.0) < 1.1
    for _ in range(100):
        slowness = arithmetic.moved_slowness(slowness, TRUTH, 100.0, 10.0, 1e3, 0.0, 1.2 * expected)
    assert slowness == pytest.approx(1.2, rel=0.01)
    assert arithmetic.moved_slowness(1.0, TRUTH, 1.0, 1.0, 1.0, 0.0, float("nan")) == 1.0


def test_prompt_tokens_that_the_gpu_computes_during_the_launch_are_not_cut() -> None:
    law = TRUTH._replace(launch_mixed=0.06, launch_large=0.06, edge_tokens=512.0)
    tokens = arithmetic.tokens_per_step(law, 0.03, 16, 9_600, 0.0, 8192)
    assert linear_seconds(law, tokens - 16, 16, 9_600, 0.0) == pytest.approx(0.06, rel=0.01)
    assert arithmetic.tokens_per_step(TRUTH, 0.03, 16, 9_600, 0.0, 8192) < tokens / 2


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


class Mode(enum.Enum):
    """vLLM's CUDAGraphMode as far as the plugin asks it."""

    NONE = ("NONE", "NONE")
    PIECEWISE = ("PIECEWISE", "PIECEWISE")
    FULL = ("FULL", "FULL")
    FULL_DECODE_ONLY = ("FULL", "NONE")
    FULL_AND_PIECEWISE = ("FULL", "PIECEWISE")

    def decode_mode(self) -> Mode:
        return Mode[self.value[0]]

    def mixed_mode(self) -> Mode:
        return Mode[self.value[1]]


@pytest.mark.parametrize(
    ("mode", "edge", "found"),
    [
        (Mode.FULL_AND_PIECEWISE, 512, CapturedGraphs(512.0)),
        (Mode.FULL_DECODE_ONLY, 256, CapturedGraphs(256.0)),
        (Mode.FULL, 512, CapturedGraphs(512.0, whole_mixed=True)),
        (Mode.PIECEWISE, 512, CapturedGraphs(512.0, whole_decodes=False)),
        (Mode.NONE, 0, CapturedGraphs(0.0, whole_decodes=False)),
        (Mode.FULL_AND_PIECEWISE, None, CapturedGraphs()),
        (None, 512, CapturedGraphs(512.0)),
        (None, None, CapturedGraphs()),
    ],
)
def test_graphs_are_those_of_vllms_configuration(mode: Mode | None, edge: int | None, found: CapturedGraphs) -> None:
    assert captured_graphs(SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=edge)) == found
    assert captured_graphs(object()) == CapturedGraphs()


EDGED = Law(0.0046, 20e-6, 18e-6, 3.5e-8, 0.0, 0.0, 0.0095, 0.024, 512.0)
"""Qwen3-8B on an H200, with its launches."""


def tokens(law: Law, tpot_seconds: float, most: int = 8192) -> int:
    return arithmetic.tokens_per_step(law, tpot_seconds, decodes=64, kv_tokens=38_400, pairs_per_prefill=0.0, most=most)


def test_a_step_stays_within_the_largest_graph_where_more_kernels_take_too_long_to_launch() -> None:
    assert tokens(EDGED, 0.025) == 512  # 22.5 ms would be enough for 800 tokens, but their launch takes 24 ms
    assert tokens(EDGED._replace(launch_large=0.0), 0.025) > 512


def test_a_step_goes_beyond_the_largest_graph_where_that_computes_more_per_second() -> None:
    assert tokens(EDGED, 0.040) > 1024
    # 26.1 ms would be enough for 980 tokens, 38 a millisecond; a graph of 512 computes 33.
    assert tokens(EDGED, 0.029) > 900
    # A slower host: with 40 ms for the launch 1,700 tokens take no less.
    slow = EDGED._replace(launch_large=0.040)
    assert tokens(slow, 0.029) == 512
    assert tokens(slow, 0.050) > 1024


@given(tpot=st.floats(0.001, 1.0), decodes=st.integers(1, 2000), edge=st.floats(0, 10_000), launch=st.floats(0, 1.0))
def test_the_edge_never_takes_prefill_below_its_least_nor_beyond_the_limit(
    tpot: float, decodes: int, edge: float, launch: float
) -> None:
    law = EDGED._replace(edge_tokens=edge, launch_large=launch)
    found = arithmetic.tokens_per_step(law, tpot, decodes, 600.0 * decodes, 0.0, 8192)
    assert min(8192, decodes + arithmetic.LEAST_PREFILL_TOKENS) <= found <= 8192


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
