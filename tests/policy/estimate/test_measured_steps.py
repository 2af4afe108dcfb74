"""How slow engines are, told from what the plugin's own code measures of emulated steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdfast.domain.engine import StepSums
from holdfast.domain.valid_traffic import judge
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.enginetimer import slowed
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, ReplayClock, replay_on
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.policy.estimate.capacity_evidence import StepEvidence, measure_steps
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, believe
from holdfast_engine.law.leastsquares import TERMS, UNITS
from holdfast_engine.objectives.rules import Limits, Objectives
from tests.builders import OUTPUT_TOKENS, PROMPT_TOKENS, QWEN, accelerator, service, traffic
from tests.fakes import GivenLimits

SECONDS = 30.0


def measured(name: str, rate_rps: float, slowness: float) -> StepSums:
    """Half a minute of an engine whose steps take `slowness` times as long as the prior says."""
    prior, draw, clock = engine_prior(QWEN, name), np.random.default_rng(0), ReplayClock()
    count = int(rate_rps * SECONDS)
    lengths = (draw.lognormal(np.log(mean) - 0.3, 0.77, count) + 2.0 for mean in (PROMPT_TOKENS, OUTPUT_TOKENS))
    moments = np.cumsum(draw.exponential(1.0 / rate_rps, count))
    arrivals = [Arrival(at, int(prompt), int(output)) for at, prompt, output in zip(moments, *lengths, strict=True)]
    limits = SchedulerLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default, prior.kv_tokens)
    scheduler = FastLoopScheduler(limits, GivenLimits(Limits(1, Objectives(0.5, 0.03))), clock)
    replay_on(scheduler, arrivals, slowed(prior.timer, slowness), clock)
    numbers = scheduler.numbers()
    return StepSums(*(numbers[f"steps_{term}"] * unit for term, unit in zip(TERMS, UNITS, strict=True)))


@pytest.mark.parametrize("slowness", [0.8, 1.0, 1.4])
@pytest.mark.parametrize(("name", "rate_rps"), [("h100", 1.0), ("h100", 12.0), ("l40s", 9.0)])
def test_slowness_shows_at_any_load_and_also_where_no_time_per_token_is_predicted(
    name: str, rate_rps: float, slowness: float
) -> None:
    steps, option = measured(name, rate_rps, slowness), accelerator(name)
    spec, mix = service().with_accelerators(option).spec, LengthMix.from_means(PROMPT_TOKENS, OUTPUT_TOKENS)
    model, seen = StepLawModel(), judge(traffic(rate_rps))
    capacity = believe(Capacity(), spec, Lengths(), seen, model)
    learned = replace(capacity, mix=mix)
    for _ in range(5):
        learned = measure_steps(learned, StepEvidence(rate_rps, steps=steps), name, model)
    assert learned.beliefs[0].correction.slowness == pytest.approx(slowness, rel=0.05)
