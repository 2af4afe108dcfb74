"""A benchmark's result is where sizing starts from: the engine model is scaled to it, and observation corrects that."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.benchmark import EngineKind, Measured, newest
from holdfast.domain.decision import Decision
from holdfast.domain.service import BatchingLimits, ServiceSpec, Slo
from holdfast.domain.signals import SignalState
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.maths.normal_belief import NormalBelief
from holdfast.policy.decide import decide
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, Correction, Engines, believe, mix_of, scaled
from holdfast.policy.memory import Memory
from tests.builders import H100, L40S, NOW, ServiceView, a_snapshot, no_traffic, replicas, service, traffic

CHAT = service()
MODEL = StepLawModel()
NOTHING = judge(no_traffic(SignalState.ABSENT))


def test_engines_that_share_their_gpus_in_another_way_are_of_another_kind() -> None:
    spec = service().spec
    ways = (
        replace(spec.accelerators[0], gpus_per_replica=4, pipeline=pipeline, data=data)
        for pipeline, data in ((1, 1), (2, 1), (1, 2))
    )
    assert len({EngineKind.of(spec, way).digest for way in ways}) == 3


def measured(rate: float = 3.0, spec: ServiceSpec = CHAT.spec, **changes: object) -> Measured:
    """A sweep of one replica with prompts of 600 and answers of 100 tokens."""
    found = Measured(
        benchmark="sweep",
        engine=EngineKind.of(spec, spec.accelerators[0]).digest,
        accelerator=spec.accelerators[0].name,
        rate_rps=rate,
        standard_error_rps=0.1 * rate,
        measured_at=NOW - 86_400.0,
        slo=Slo(0.5, 0.03, 0.99, 0.0),
        prompt_tokens=600.0,
        output_tokens=100.0,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def log_normal(factor: float) -> NormalBelief:
    return NormalBelief(math.log(factor), 0.1)


def capacity(*results: Measured, spec: ServiceSpec = CHAT.spec, memory: Capacity | None = None) -> Capacity:
    engines = {each.accelerator: Engines(spec.batching, benchmark=each) for each in results}
    return believe(memory or Capacity(), spec, Lengths(), NOTHING, MODEL, engines)


def predicted(result: Measured, slowness: float = 1.0) -> float:
    """What the model alone says where the benchmark measured."""
    asked = replace(CHAT.spec, slo=result.slo, batching=result.batching)
    return MODEL.rate(asked, H100, mix_of(result), slowness).rate_rps


def test_what_was_measured_scales_the_models_answer_for_other_lengths_and_objectives() -> None:
    result = measured(0.6 * predicted(measured()))
    alone, with_benchmark = (capacity(*results).beliefs[0] for results in ((), (result,)))
    assert with_benchmark.rate_rps == pytest.approx(0.6 * alone.rate_rps)


def test_a_service_like_the_one_that_was_measured_carries_what_was_measured() -> None:
    result = measured(7.0, prompt_tokens=1155.0, output_tokens=211.0, length_cv=1.0)
    rate = capacity(result).beliefs[0].rate_rps
    assert rate == pytest.approx(7.0, rel=0.1), "lengths are put on a grid"


def test_slow_steps_are_not_counted_twice() -> None:
    """Engines that were measured to be slow, and whose steps are later seen to be slow, are as slow as measured."""
    result = measured(0.5 * predicted(measured()))
    for slowness in (1.0, 1.5, 2.0):
        found = scaled(result, CHAT.spec, H100, MODEL, slowness, False)
        assert found is not None
        assert found.factor * predicted(result, slowness) == pytest.approx(result.rate_rps)


def test_a_benchmark_makes_a_capacity_more_certain_from_the_start() -> None:
    alone, with_benchmark = (capacity(*results).beliefs[0] for results in ((), (measured(),)))
    assert with_benchmark.confidence > alone.confidence
    assert with_benchmark.confidence == pytest.approx(0.9)


def test_a_new_result_takes_the_place_of_the_gain_that_was_learnt_beside_the_old_one() -> None:
    known = capacity()
    learnt = replace(known.beliefs[0], correction=Correction(log_normal(1.02), log_normal(0.7), looks=9))
    found = capacity(measured(), memory=replace(known, beliefs=(learnt,))).beliefs[0]
    assert found.correction.gain == 1.0
    assert found.correction.slowness == pytest.approx(1.02)
    kept = capacity(measured(), memory=replace(known, beliefs=(replace(found, correction=learnt.correction),)))
    assert kept.beliefs[0].correction.gain == pytest.approx(0.7), "the same result again changes nothing"


def test_a_result_that_went_leaves_the_model() -> None:
    after = capacity(memory=capacity(measured()))
    assert after.beliefs[0].rate_rps == pytest.approx(capacity().beliefs[0].rate_rps)


def test_without_a_result_nothing_is_asked_or_computed_anew() -> None:
    known = capacity()
    assert capacity(memory=known) is known


@pytest.mark.parametrize("rate", [1e-3, 0.02, 200.0, 1e4])
def test_a_result_counts_however_far_it_is_from_the_model(rate: float) -> None:
    result = measured(rate)
    found = capacity(result).beliefs[0]
    assert found.scaled.factor * predicted(result) == pytest.approx(rate)
    assert found.confidence > capacity().beliefs[0].confidence


def test_what_a_benchmark_measured_can_be_met_whatever_the_model_says() -> None:
    strict = replace(CHAT.spec, slo=replace(CHAT.spec.slo, tpot_seconds=1e-4))
    assert not capacity(spec=strict).beliefs[0].feasible
    found = capacity(measured(5.0, spec=strict, slo=strict.slo), spec=strict).beliefs[0]
    assert found.feasible
    assert found.rate_rps > 0.0


def test_a_benchmark_without_a_rate_is_not_compared() -> None:
    assert not capacity(measured(0.0)).beliefs[0].scaled.compared


@given(st.floats(1e-12, 1e12), st.floats(1.0, 1e7), st.floats(1.0, 1e7), st.floats(0.0, 100.0))
def test_no_result_makes_a_capacity_that_is_no_number(rate: float, prompt: float, output: float, cv: float) -> None:
    result = measured(rate, prompt_tokens=prompt, output_tokens=output, length_cv=cv)
    found = scaled(result, CHAT.spec, H100, MODEL, 1.0, False)
    assert found is not None
    assert 0.0 < found.factor < math.inf


def test_the_newest_result_of_an_engine_counts_and_those_of_others_do_not() -> None:
    spec = CHAT.with_accelerators(H100, L40S).spec
    old, new = measured(1.0, measured_at=1.0), measured(2.0, measured_at=2.0)
    other_model = measured(9.0, spec=replace(CHAT.spec, model_uri="Qwen/Qwen3-32B"), measured_at=3.0)
    more_gpus = measured(9.0, spec=CHAT.with_accelerators(replace(H100, gpus_per_replica=4)).spec, measured_at=3.0)
    assert newest((new, old, other_model, more_gpus), spec) == (new,)
    assert newest((), spec) == ()


def test_limits_of_the_engine_that_was_measured_count_for_the_comparison() -> None:
    narrow = measured(5.0, batching=BatchingLimits(8, 2048))
    wide = measured(5.0)
    assert capacity(narrow).beliefs[0].rate_rps > capacity(wide).beliefs[0].rate_rps


def test_sizes_follow_the_result_and_status_says_where_it_comes_from() -> None:
    def decided(*results: Measured) -> Decision:
        view = ServiceView(CHAT, traffic(40.0), replicas(4)).snapshot()
        snapshot = a_snapshot()
        given = replace(snapshot, services=(replace(view, measured=results),))
        (decision,), _ = decide(given, Memory())
        return decision

    result = measured(0.5 * predicted(measured()))
    alone, with_benchmark = decided(), decided(result)
    assert with_benchmark.verdict.replicas > alone.verdict.replicas
    assert alone.capacity is not None
    assert with_benchmark.capacity is not None
    assert alone.capacity.measured is None
    assert with_benchmark.capacity.measured == result
