"""Step laws, tables and fits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.catalog import ACCELERATORS, MODELS
from holdfast.enginemodel.fit import fit_law, usual_steps
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steplaw import Chunk, StepLaw
from holdfast.enginemodel.steptable import Curve, StepTable, Surface, step_tables

LAW = StepLaw(c0=0.01, c1=2e-5, c2=3e-5, c3=5e-8, c4=1e-9)
SYSTEMS = {shape.system: shape for _, shape in ACCELERATORS}
TABLED = {shape.table: shape for _, shape in MODELS if shape.table}

chunk_lists = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 16384)), max_size=4)


def test_a_step_costs_the_sum_of_its_terms() -> None:
    seconds = LAW.step_seconds([(100, 0), (200, 50)], 10, 1000.0)
    pairs = 100 * 50 + 200 * (50 + 100)
    assert seconds == pytest.approx(0.01 + 2e-5 * 300 + 3e-5 * 10 + 5e-8 * 10 * 1000 + 1e-9 * pairs)


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(0, 5_000))
def test_attention_pairs_do_not_depend_on_how_a_prompt_is_cut(first: int, second: int, prefix: int) -> None:
    whole = LAW.step_seconds([(first + second, prefix)], 0, 0.0)
    cut = LAW.step_seconds([(first, prefix), (second, prefix + first)], 0, 0.0)
    assert whole == pytest.approx(cut)


@pytest.mark.parametrize("timer", [LAW, step_tables()["Qwen/Qwen3-8B", "h100_sxm", 1]])
def test_a_parted_timer_changes_what_every_step_and_what_prompts_take_but_not_decodes(
    timer: StepLaw | StepTable,
) -> None:
    changed = timer.parted(1.5, 2.0)

    def seconds(of: StepLaw | StepTable, tokens: int, decodes: int) -> float:
        return of.step_seconds([(tokens, 0)] if tokens else [], decodes, 1000.0)

    for tokens, decodes in ((0, 64), (512, 0), (2048, 0)):
        assert seconds(changed, tokens, decodes) > seconds(timer, tokens, decodes)
    for more, few, many in ((1.0, (0, 1), (0, 64)), (2.0, (512, 0), (2048, 0))):
        added = seconds(timer, *many) - seconds(timer, *few)
        assert seconds(changed, *many) - seconds(changed, *few) == pytest.approx(more * added)


def test_a_scaled_law_scales_every_step() -> None:
    assert LAW.scaled(1.5).step_seconds([(7, 3)], 5, 9.0) == pytest.approx(1.5 * LAW.step_seconds([(7, 3)], 5, 9.0))


def test_a_curve_is_flat_below_linear_between_and_extrapolated_above() -> None:
    curve = Curve((10.0, 20.0, 40.0), (1.0, 2.0, 6.0))
    assert [curve.at(x) for x in (0, 10, 15, 20, 30, 40, 50)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_a_surface_is_bilinear() -> None:
    surface = Surface((0.0, 10.0), (0.0, 100.0), (0.0, 1.0, 2.0, 3.0))
    assert surface.at(5, 50) == pytest.approx(1.5)
    assert surface.at(-5, -5) == pytest.approx(0.0)
    assert surface.at(20, 200) == pytest.approx(6.0)


@given(chunk_lists, st.integers(0, 1500), st.floats(1.0, 60_000.0))
def test_table_steps_are_finite_and_take_time_where_anything_is_computed(
    chunks: list[Chunk], decodes: int, mean_kv: float
) -> None:
    table = step_tables()["Qwen/Qwen3-8B", "h100_sxm", 1]
    seconds = table.step_seconds(chunks, decodes, mean_kv)
    assert math.isfinite(seconds)
    assert seconds > 0.0 or not (chunks or decodes)


def test_a_fit_finds_the_law_it_was_given() -> None:
    assert fit_law(LAW).step_seconds([(512, 0)], 64, 900.0) == pytest.approx(LAW.step_seconds([(512, 0)], 64, 900.0))
    assert fit_law(LAW).c1 == pytest.approx(LAW.c1, rel=1e-6)


@pytest.mark.parametrize("key", sorted(step_tables()), ids=str)
def test_fitted_coefficients_are_finite_and_never_negative(key: tuple[str, str, int]) -> None:
    law = fit_law(step_tables()[key])
    assert all(math.isfinite(value) and value >= 0 for value in (law.c0, law.c1, law.c2, law.c3, law.c4))


@pytest.mark.parametrize(
    "key",
    [key for key in sorted(step_tables()) if key[0] in ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B") and key[2] <= 2],
    ids=str,
)
def test_the_law_of_a_dense_model_follows_its_table(key: tuple[str, str, int]) -> None:
    table = step_tables()[key]
    law = fit_law(table)
    errors = [
        law.step_seconds(step.chunks, step.decodes, step.mean_kv)
        / table.step_seconds(step.chunks, step.decodes, step.mean_kv)
        - 1.0
        for step in usual_steps()
    ]
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.12


@pytest.mark.parametrize("system", ["l40s", "a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "rtx_pro_6000_server"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"])
def test_the_roofline_is_within_a_third_of_the_tables(model: str, system: str) -> None:
    table = step_tables()[model, system, 1]
    law = roofline_law(TABLED[model], SYSTEMS[system])
    for chunks, decodes in (((), 1), ((), 64), (((2048, 0),), 64)):
        assert law.step_seconds(chunks, decodes, 1000.0) == pytest.approx(
            table.step_seconds(chunks, decodes, 1000.0), rel=0.35
        )
