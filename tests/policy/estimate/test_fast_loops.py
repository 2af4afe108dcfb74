"""Where engines find their own limits, replicas carry what they carry at their best limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.domain.engine import ExactCounts
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.signals import SignalState
from holdfast.domain.valid_traffic import Seen, judge
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.maths.normal_belief import NormalBelief
from holdfast.policy.estimate.fast_loops import DOUBT_SECONDS, FastLoops, watch_fast_loops
from holdfast.policy.estimate.length_mix import PRIOR, Lengths
from holdfast.policy.estimate.questions import AskedModel, Quota
from holdfast.policy.estimate.replica_capacity import Capacity, Correction, Engines, believe
from tests.builders import L40S, NOW, service, traffic

MODEL = StepLawModel()
SPEC = replace(service().with_ttft(2.0).with_tpot(0.1).with_accelerators(L40S).spec, model_uri="Qwen/Qwen3-8B")
CODE = Lengths(PRIOR._replace(prompt_tokens=20.0 * 2050.0, output_tokens=20.0 * 30.0))
ON = frozenset({"l40s"})
TUNING = {"l40s": Engines(SPEC.batching, fast_loop=True)}
NOTHING = judge(traffic(1.0))


def seen(exact: bool, engines: int = 2, state: SignalState = SignalState.FRESH) -> Seen:
    counts = replace(NOTHING.by_accelerator[0][1], exact=ExactCounts() if exact else None, engines=engines)
    return replace(NOTHING, state=state, by_accelerator=(("l40s", counts),))


def watched(*looks: tuple[float, Seen]) -> frozenset[str]:
    memory: FastLoops = {}
    for at, look in looks:
        memory = watch_fast_loops(memory, look, NOW + at)
    return frozenset(memory)


def test_one_look_that_shows_every_plugin_at_work_is_enough() -> None:
    assert watched((0.0, seen(False))) == frozenset()
    assert watched((0.0, seen(True))) == ON


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        ([(5.0, seen(False))], ON),
        ([(5.0, seen(False)), (DOUBT_SECONDS, seen(True)), (2 * DOUBT_SECONDS, seen(False))], ON),
        ([(5.0, seen(False)), (5.0 + DOUBT_SECONDS, seen(False))], frozenset()),
        ([(t, seen(False, state=SignalState.STALE)) for t in (5.0, 500.0)], ON),
        ([(t, seen(False, engines=0)) for t in (5.0, 500.0)], ON),
    ],
    ids=["a replica starts", "and is there", "it stays away", "no metrics", "no replica"],
)
def test_it_takes_minutes_of_fresh_doubt_to_think_otherwise(
    looks: list[tuple[float, Seen]], left: frozenset[str]
) -> None:
    assert watched((0.0, seen(True)), *looks) == left


def test_a_clock_that_jumps_back_ends_a_doubt() -> None:
    assert watched((0.0, seen(True)), (100.0, seen(False)), (-500.0, seen(False))) == frozenset()


def believed(lengths: Lengths = CODE, spec: ServiceSpec = SPEC, loops: frozenset[str] = ON) -> Capacity:
    engines = {name: Engines(spec.batching, fast_loop=True) for name in loops}
    return believe(Capacity(), spec, lengths, NOTHING, MODEL, engines)


def test_with_the_fast_loop_a_replica_carries_what_the_best_limits_carry() -> None:
    plain, tuned = believed(loops=frozenset()).beliefs[0], believed().beliefs[0]
    assert plain.limits == BatchingLimits()
    assert tuned.limits == BatchingLimits(None, 1024)
    assert tuned.rate_rps > 1.5 * plain.rate_rps


def test_fixed_limits_are_taken_as_they_are() -> None:
    fixed = replace(SPEC, batching=BatchingLimits(64, 4096), batching_fixed=True)
    assert believed(spec=fixed).beliefs[0].limits == fixed.batching
    assert believed(spec=fixed).beliefs[0].rate == believed(spec=fixed, loops=frozenset()).beliefs[0].rate


def test_limits_that_people_set_are_not_exceeded() -> None:
    capped = replace(SPEC, batching=BatchingLimits(64, 512))
    found = believed(spec=capped).beliefs[0].limits
    assert found.max_num_seqs == 64
    assert (found.max_num_batched_tokens or math.inf) <= 512


def test_a_belief_follows_the_fast_loop_and_forgets_a_gain_that_other_limits_had() -> None:
    plain = believed(loops=frozenset())
    learned = Correction(load=NormalBelief(math.log(1.4), 0.1), looks=9, proven=True)
    gained = replace(plain, beliefs=(replace(plain.beliefs[0], correction=learned),))
    tuned = believe(gained, SPEC, CODE, NOTHING, MODEL, TUNING)
    assert tuned.beliefs[0].correction == Correction(load=NormalBelief(0.0, 0.1), looks=9)
    assert believe(tuned, SPEC, CODE, NOTHING, MODEL, TUNING) is tuned
    assert believe(tuned, SPEC, CODE, NOTHING, MODEL).beliefs[0].rate == plain.beliefs[0].rate


@pytest.mark.parametrize("noise", [0.97, 1.03, 0.95, 1.05])
def test_noise_in_the_lengths_moves_no_limits(noise: float) -> None:
    tuned = believed()
    noisy = Lengths(CODE.sums._replace(prompt_tokens=noise * CODE.sums.prompt_tokens))
    assert believe(tuned, SPEC, noisy, NOTHING, MODEL, TUNING) is tuned


def test_where_a_tick_has_searched_enough_the_limits_of_before_hold() -> None:
    busy = AskedModel(MODEL, Quota(searches=0))
    fresh = believe(Capacity(), SPEC, CODE, NOTHING, busy, TUNING)
    assert fresh.beliefs[0].limits == BatchingLimits()
    assert fresh.beliefs[0].rate == believed(loops=frozenset()).beliefs[0].rate
    assert believe(fresh, SPEC, CODE, NOTHING, busy, TUNING) is fresh
    searched = believe(fresh, SPEC, CODE, NOTHING, MODEL, TUNING)
    assert searched == believed()
    longer = Lengths(CODE.sums._replace(prompt_tokens=2.0 * CODE.sums.prompt_tokens))
    assert believe(searched, SPEC, longer, NOTHING, busy, TUNING).beliefs[0].limits == searched.beliefs[0].limits


def test_a_search_takes_no_answer_from_anybody_else() -> None:
    frugal, mix = AskedModel(MODEL, Quota(questions=1, searches=1)), LengthMix.from_means(2050, 30)
    assert frugal.best_limits(SPEC, L40S, mix, 1.0) is not None
    assert frugal.best_limits(SPEC, L40S, mix, 1.0) is not None
    assert frugal.best_limits(SPEC, L40S, LengthMix.from_means(100, 30), 1.0) is None
    assert frugal.rate(SPEC, L40S, mix, 1.0) is not None


@pytest.mark.parametrize("slowness", [math.nan, 0.0, -1.0, math.inf])
def test_absurd_slowness_finds_limits_all_the_same(slowness: float) -> None:
    option = AcceleratorOption("l40s")
    found = MODEL.best_limits(SPEC, option, LengthMix.from_means(2050, 30), slowness)
    assert found == BatchingLimits(None, 1024)


def test_where_nothing_meets_the_objectives_limits_stay_at_their_start() -> None:
    found = MODEL.best_limits(SPEC, AcceleratorOption("l40s"), LengthMix.from_means(2050, 30), 1e300)
    assert found == BatchingLimits()
