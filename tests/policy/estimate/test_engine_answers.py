"""What the engine model says of one replica, and how many answers one tick takes."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate, StepLawModel
from holdfast.policy.decide import decide
from holdfast.policy.estimate.length_mix import PRIOR, Lengths
from holdfast.policy.estimate.questions import AskedModel, Quota
from holdfast.policy.estimate.replica_capacity import Capacity, believe
from holdfast.policy.memory import Memory
from tests.builders import H100, L40S, NOW, ServiceView, a_snapshot, replicas, service, traffic
from tests.policy.fluid import FixedRates

MODEL = StepLawModel()
CHAT = LengthMix.from_means(1155.0, 211.0)
TOLERANCE = 0.99
"""The law is fitted anew at every working point, within 2 % of where the last fit was."""

options = st.sampled_from((H100, L40S, AcceleratorOption("h100", gpus_per_replica=2), AcceleratorOption("mystery")))
mixes = st.builds(
    lambda p, o, cached: LengthMix.from_means(p, o, cached_share=cached),
    st.floats(20.0, 6000.0),
    st.floats(5.0, 1000.0),
    st.floats(0.0, 0.9),
)
ttfts, tpots = st.floats(0.1, 10.0), st.floats(0.01, 0.5)
models = st.sampled_from(("Qwen/Qwen3-8B", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B", "me/unknown"))


def spec(model: str = "Qwen/Qwen3-8B", ttft: float = 2.0, tpot: float = 0.1) -> ServiceSpec:
    return replace(service().with_ttft(ttft).with_tpot(tpot).spec, model_uri=model)


@settings(max_examples=25)
@given(models, options, mixes, ttfts, tpots, st.floats(1.0, 2.0), st.floats(1.0, 2.0))
def test_a_slower_engine_never_carries_more(
    model: str, option: AcceleratorOption, mix: LengthMix, ttft: float, tpot: float, slowness: float, more: float
) -> None:
    asked = spec(model, ttft, tpot)
    slower, faster = (MODEL.rate(asked, option, mix, factor) for factor in (slowness * more, slowness))
    assert faster.feasible >= slower.feasible
    assert slower.rate_rps * TOLERANCE <= faster.rate_rps or not slower.feasible


def sharing(gpus: int, pipeline: int = 1, data: int = 1) -> float:
    option = AcceleratorOption("h100", gpus_per_replica=gpus, pipeline=pipeline, data=data)
    return MODEL.rate(spec("Qwen/Qwen3-32B"), option, CHAT, 1.0).rate_rps


def test_engines_of_data_carry_as_much_as_replicas_of_one() -> None:
    assert sharing(8, data=4) == pytest.approx(4.0 * sharing(2))


def test_a_pipeline_carries_more_than_a_stage_and_no_more_than_its_stages_as_engines() -> None:
    assert sharing(2) < sharing(4, pipeline=2)
    roomy = AcceleratorOption("h200", gpus_per_replica=2, pipeline=2)
    alone = MODEL.rate(spec(), replace(roomy, gpus_per_replica=1, pipeline=1), CHAT, 1.0).rate_rps
    assert alone < MODEL.rate(spec(), roomy, CHAT, 1.0).rate_rps <= 2.1 * alone


def test_steps_of_overlapping_micro_batches_are_not_compared_with_the_law() -> None:
    option = AcceleratorOption("h100", gpus_per_replica=2, pipeline=2)
    assert MODEL.law(spec(), option, CHAT, 1.0, 3.0) is None
    assert MODEL.law(spec(), replace(option, pipeline=1, data=2), CHAT, 1.0, 3.0) is not None


def drafting(option: AcceleratorOption, accepted: float | None) -> AcceleratorOption:
    return replace(option, facts=EngineFacts(accepted_drafts=accepted))


@settings(max_examples=25)
@given(models, options, mixes, ttfts, tpots, st.floats(0.1, 10.0))
def test_where_no_draft_is_accepted_every_answer_is_the_same_bit_for_bit(
    model: str, option: AcceleratorOption, mix: LengthMix, ttft: float, tpot: float, slowness: float
) -> None:
    asked, none = spec(model, ttft, tpot), drafting(option, 0.0)
    assert MODEL.rate(asked, none, mix, slowness) == MODEL.rate(asked, option, mix, slowness)
    assert MODEL.law(asked, none, mix, slowness, 1.0) == MODEL.law(asked, option, mix, slowness, 1.0)
    assert MODEL.best_limits(asked, none, mix, slowness) == MODEL.best_limits(asked, option, mix, slowness)


@settings(max_examples=25)
@given(models, options, mixes, ttfts, tpots, st.floats(0.1, 4.0))
@example("Qwen/Qwen3-8B", AcceleratorOption("h100"), LengthMix.from_means(20.0, 5.0), 1.0, 0.5, 2.0)
def test_accepted_drafts_never_lower_what_a_replica_carries(
    model: str, option: AcceleratorOption, mix: LengthMix, ttft: float, tpot: float, accepted: float
) -> None:
    without, drafts = (
        MODEL.rate(spec(model, ttft, tpot), drafting(option, each), mix, 1.0) for each in (0.0, accepted)
    )
    assert drafts.feasible >= without.feasible
    assert without.rate_rps * TOLERANCE <= drafts.rate_rps or not without.feasible


def test_an_objective_between_the_time_of_a_step_and_of_its_tokens_is_feasible() -> None:
    """A step of Qwen3-8B takes an L40S 24 ms; at two tokens a step that is a TPOT of 12 ms."""
    tight = spec(tpot=0.018)
    assert not MODEL.rate(tight, L40S, CHAT, 1.0).feasible
    assert MODEL.rate(tight, drafting(L40S, 1.0), CHAT, 1.0).feasible


@settings(max_examples=25)
@given(models, options, mixes, ttfts, tpots, st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_looser_objectives_never_mean_less(
    model: str, option: AcceleratorOption, mix: LengthMix, ttft: float, tpot: float, more: float, longer: float
) -> None:
    tight = MODEL.rate(spec(model, ttft, tpot), option, mix, 1.0)
    loose = MODEL.rate(spec(model, ttft * more, tpot * longer), option, mix, 1.0)
    assert loose.feasible >= tight.feasible
    assert tight.rate_rps * TOLERANCE <= loose.rate_rps or not tight.feasible


@settings(max_examples=25)
@given(options, mixes, st.floats(1e-4, 1e4), st.floats(1e-5, 1e3), st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_answers_are_finite_or_none_whatever_is_asked(
    option: AcceleratorOption, mix: LengthMix, ttft: float, tpot: float, slowness: float, rate: float
) -> None:
    asked = replace(spec("Qwen/Qwen3-8B", ttft, tpot), batching=BatchingLimits(1, 1))
    found = MODEL.rate(asked, option, mix, min(max(slowness, 0.5), 2.0) if slowness == slowness else slowness)
    assert math.isfinite(found.rate_rps)
    assert found.rate_rps > 0.0 or not found.feasible
    law = MODEL.law(asked, option, mix, slowness, rate)
    assert law is None or all(map(math.isfinite, astuple(law)))


def test_a_slow_engine_is_the_same_engine_on_a_fast_clock() -> None:
    carried = MODEL.rate(spec(), L40S, CHAT, 1.0).rate_rps
    stretched = MODEL.rate(spec(ttft=4.0, tpot=0.2), L40S, CHAT, 2.0).rate_rps
    assert stretched == pytest.approx(carried / 2.0, rel=0.03)
    one, other = (MODEL.law(spec(), L40S, CHAT, s, carried / 2.0 / s) for s in (1.0, 2.0))
    assert one is other


def test_a_quantized_model_is_another_engine() -> None:
    quantized = replace(spec("Qwen/Qwen3-32B"), quantization="fp8")
    plain, smaller = (MODEL.rate(asked, H100, CHAT, 1.0) for asked in (spec("Qwen/Qwen3-32B"), quantized))
    assert smaller.rate_rps > 1.2 * plain.rate_rps


@pytest.mark.parametrize(("quantization", "new"), [(None, False), ("fp8", True)])
def test_the_question_about_another_engine_is_a_new_one(quantization: str | None, new: bool) -> None:
    frugal = AskedModel(MODEL, Quota(questions=1))
    frugal.rate(spec(), H100, CHAT, 1.0)
    other = replace(spec(), key=service("other").spec.key, quantization=quantization)
    assert (frugal.rate(other, H100, CHAT, 1.0) is None) == new


def test_noise_in_the_lengths_moves_nothing() -> None:
    nothing = judge(traffic(1.0))
    first = believed = believe(Capacity(), spec(), Lengths(), nothing, MODEL)
    for noise in (0.97, 1.03, 0.95, 1.05):
        noisy = Lengths(PRIOR._replace(prompt_tokens=noise * PRIOR.prompt_tokens))
        believed = believe(believed, spec(), noisy, nothing, MODEL)
    assert believed is first


@pytest.mark.parametrize("tokens", [0.0, 5e-324, math.nan, math.inf, 1e300])
def test_absurd_lengths_make_a_finite_mix(tokens: float) -> None:
    seen = judge(traffic(1.0))
    absurd = Lengths(PRIOR._replace(prompt_tokens=tokens, output_tokens=tokens))
    mix = absurd.mix(seen.prompt_lengths, seen.output_lengths)
    assert all(math.isfinite(value) for value in (mix.prompt_tokens, mix.output_tokens, mix.computed_squared))
    assert math.isfinite(MODEL.rate(spec(), H100, mix, 1.0).rate_rps)


class Counting(FixedRates):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__({"h100": 4.0, "l40s": 2.0})
        self.asked: list[object] = []

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        self.asked.append((spec.slo, option, mix))
        return super().rate(spec, option, mix, slowness)


def test_a_tick_answers_only_so_many_new_questions_but_all_of_one_service() -> None:
    frugal = AskedModel(Counting(), Quota(questions=3))
    several = [replace(service(f"s{ttft}").with_ttft(float(ttft)).spec) for ttft in range(1, 4)]
    answers = [[frugal.rate(asked, option, CHAT, 1.0) is not None for option in (H100, L40S)] for asked in several]
    assert answers == [[True, True], [True, True], [False, False]]
    again = service("other").with_ttft(1.0).spec
    assert frugal.rate(again, H100, CHAT, 1.0) is not None


def fleet(count: int, now: float):  # type: ignore[no-untyped-def]
    """Services none of which is like another."""
    views = (
        ServiceView(service(f"s{index:03}").with_ttft(0.5 + 0.01 * index), traffic(3.0), replicas(2, now=now))
        for index in range(count)
    )
    return a_snapshot(*views, now=now)


def test_a_crowd_of_new_services_is_decided_over_several_ticks_and_none_is_forgotten() -> None:
    memory, decided = Memory(), []
    for tick in range(4):
        model = Counting()
        decisions, memory = decide(fleet(100, NOW + 5.0 * tick), memory, model=model)
        assert len(model.asked) <= 33
        decided.append(len(decisions))
    assert decided[:2] == [32, 64]
    assert decided[2] >= 90, "some of those that are known ask as well"
    assert decided[3] == 100


def test_capacities_shrink_with_the_work_of_a_request_until_the_model_has_time() -> None:
    busy = AskedModel(MODEL, Quota(questions=0))
    asked, seen = spec(), judge(traffic(1.0))
    first = believe(Capacity(), asked, Lengths(), seen, MODEL)
    longer = Lengths(PRIOR._replace(output_tokens=2.0 * PRIOR.output_tokens))
    estimated = believe(first, asked, longer, seen, busy)
    exact = believe(estimated, asked, longer, seen, MODEL)
    assert 0.4 < estimated.beliefs[0].rate_rps / first.beliefs[0].rate_rps < 0.9
    assert estimated.beliefs[0].rate_rps == pytest.approx(exact.beliefs[0].rate_rps, rel=0.2)
    assert exact.beliefs[0].work == 1.0
    assert believe(Capacity(), asked, longer, seen, busy) == Capacity()
