"""What capacities from elsewhere are, and that they are what sizes are made from."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.refined_capacity import CLOSED, STEP_LAW, Outcome, Refined, Trial, apart, beside_factors, factor_of
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.twin.arrays.fleet import EngineSpec
from holdfast.twin.replica.capacity import Bench, LengthPairs
from tests.builders import service
from tests.twin.twin_builders import SLO

KIND = EngineSpec(StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9), SchedulerLimits(64, 2048, 60_000))
LENGTHS = LengthPairs(np.full(10, 600), np.full(10, 100))


@pytest.mark.slow
def test_a_trial_of_one_stock_engine_carries_what_the_bench_finds() -> None:
    found = Trial(KIND, SLO, LENGTHS).rate(5.0, draws=2)
    assert found.rate_rps == pytest.approx(Bench(KIND, SLO, LENGTHS, draws=2).rate(5.0).rate_rps, rel=0.1)


@pytest.mark.slow
def test_slower_steps_carry_less() -> None:
    at_once, slower = (Trial(KIND, SLO, LENGTHS, stretch=stretch).rate(5.0, draws=1).rate_rps for stretch in (1.0, 1.5))
    assert slower < 0.9 * at_once


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_the_models_rate_is_replaced_and_what_it_was_is_kept(factor: float) -> None:
    spec = service().spec
    option, mix = spec.accelerators[0], LengthMix.from_means(1000.0, 200.0)
    model = Refined(lambda spec, option, mix, slowness, closed_rps: factor * closed_rps)
    found, closed = (each.rate(spec, option, mix, 1.0) for each in (model, STEP_LAW))
    assert found.rate_rps == pytest.approx(factor * closed.rate_rps)
    assert model.ratios == [pytest.approx(factor)]


def test_histograms_keep_lengths_but_not_which_go_together() -> None:
    lengths = LengthPairs(np.arange(1000), np.arange(1000))
    found = apart(lengths)
    assert sorted(found.output_tokens) == list(lengths.output_tokens)
    assert abs(np.corrcoef(found.prompt_tokens, found.output_tokens)[0, 1]) < 0.1


def test_a_source_is_held_against_the_factor_that_attains_as_much() -> None:
    def runs(attainment: float, gpu_hours: float) -> list[Outcome]:
        return [Outcome(attainment, gpu_hours, 1.0, (), ())]

    outcomes = {CLOSED: runs(0.99, 2.0), "x 0.8": runs(0.995, 2.4), "loop": runs(0.9925, 1.98)}
    assert [factor_of(source) for source in outcomes] == [1.0, 0.8, None]
    assert beside_factors(outcomes["loop"], outcomes) == "0.900"
    assert beside_factors(runs(0.98, 1.0), outcomes) == "-"
