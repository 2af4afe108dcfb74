"""What a replica is believed to carry: the engine model, corrected slowly by what is observed."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple, dataclass, replace
from zlib import crc32

import pytest

from holdfast.domain.cluster import Placement
from holdfast.domain.engine import EngineFacts, StepSums
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.snapshot import Recalled
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.policy.decide import decide
from holdfast.policy.estimate.capacity_evidence import (
    StepEvidence,
    measure_steps,
    observe_load,
    observe_saturation,
    step_evidence,
)
from holdfast.policy.estimate.evidence_window import EvidenceWindow, is_due, watch
from holdfast.policy.estimate.length_mix import PRIOR, Lengths, observe_lengths
from holdfast.policy.estimate.replica_capacity import Capacity, Engines, believe
from holdfast.policy.estimate.slo_budget import Verdicts
from holdfast.policy.memory import Memory
from holdfast_engine.law.model_figures import ModelFigures
from tests.builders import (
    H100,
    L40S,
    NOW,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    accelerator,
    counts,
    replicas,
    service,
    traffic,
)
from tests.policy.fluid import FixedRates

SPEC = service().with_accelerators(H100, L40S).spec
MODEL = FixedRates({"h100": 4.0, "l40s": 2.0})


class Counting(FixedRates):
    """Counts how often it is asked."""

    asked = 0

    def rate(self, *args):  # type: ignore[no-untyped-def]
        type(self).asked += 1
        return super().rate(*args)


@dataclass(frozen=True)
class Lawful(FixedRates):
    """Takes every step for 20 ms, and each request for so many seconds more."""

    work_seconds: float = 0.0

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw:
        return StepLaw(0.02, self.work_seconds / mix.computed_tokens, 0.0, 0.0, 0.0)


TWO = ("chat-1", "chat-2")
BOTH = crc32(b"chat-1 chat-2")


def reporting(facts: EngineFacts) -> dict[str, Engines]:
    return {"h100": Engines(SPEC.batching, facts=facts)}


def believed(model: FixedRates = MODEL) -> Capacity:
    return believe(Capacity(), SPEC, Lengths(), judge(traffic(1.0)), model)


def test_every_accelerator_is_believed_in_with_the_priors_confidence() -> None:
    beliefs = believed().beliefs
    assert [(b.option.name, b.rate_rps, b.confidence) for b in beliefs] == [("h100", 4.0, 0.8), ("l40s", 2.0, 0.8)]


def test_nothing_is_computed_anew_until_something_material_changes() -> None:
    model = Counting({"h100": 4.0, "l40s": 2.0})
    first = believed(model)
    asked = Counting.asked
    slightly = Lengths(PRIOR._replace(prompt_tokens=PRIOR.prompt_tokens * 1.05))
    assert believe(first, SPEC, slightly, judge(traffic(1.0)), model) is first
    assert Counting.asked == asked
    much = Lengths(PRIOR._replace(prompt_tokens=PRIOR.prompt_tokens * 2.0))
    believe(first, SPEC, much, judge(traffic(1.0)), model)
    assert Counting.asked == asked + 2


def minute(rate: float, bad_share: float = 0.0, busiest: float = 1.0) -> EvidenceWindow:
    """A minute of one replica at that rate, or of several whose mean it is."""
    requests = 60.0 * rate
    return EvidenceWindow(
        since=NOW - 60.0,
        arrivals=requests,
        begun=requests,
        replica_seconds=60.0,
        busiest=busiest,
        verdicts=Verdicts(requests * (1 - bad_share), requests * bad_share),
    )


def tpot(seconds: float, rate: float = 3.0, busiest: float = 1.0) -> StepEvidence:
    """What a hundred requests at that rate took per token."""
    return StepEvidence(rate, 100.0, busiest, 100.0, seconds)


@pytest.mark.parametrize(
    ("rate", "bad_share", "direction"),
    [(3.0, 0.0, 0), (3.0, 0.3, -1), (6.0, 0.0, 1), (6.0, 0.3, 0), (1.0, 0.3, 0), (3.0, 0.02, 0)],
    ids=["as believed", "misses below capacity", "keeps above capacity", "misses above", "misses idle", "chance"],
)
def test_the_gain_moves_only_where_load_and_verdicts_disagree(rate: float, bad_share: float, direction: int) -> None:
    gain = observe_load(believed(), minute(rate, bad_share), "h100").beliefs[0].correction.gain
    assert (gain > 1.0) - (gain < 1.0) == direction


def test_requests_that_a_broken_engine_lost_say_nothing_about_the_load() -> None:
    look = minute(3.0, 0.3)
    lost = replace(look, failed=look.verdicts.bad)
    found = [observe_load(believed(), each, "h100").beliefs[0].correction.gain for each in (look, lost)]
    assert found[0] < found[1] == 1.0


@pytest.mark.parametrize(
    ("rate", "bad_share", "direction"),
    [(3.7, 0.0, 1), (3.7, 0.005, 1), (3.7, 0.006, 0), (3.6, 0.0, 0), (3.7, 0.3, -1), (math.nan, 0.0, 0)],
    ids=["all kept", "half of the budget", "more than half", "less load", "misses", "no number"],
)
def test_with_no_headroom_left_a_loaded_replica_is_tried_with_a_little_more(
    rate: float, bad_share: float, direction: int
) -> None:
    look = minute(rate, bad_share)
    gain = observe_load(believed(), look, "h100", headroom_is_least=True).beliefs[0].correction.gain
    assert (gain > 1.0) - (gain < 1.0) == direction
    assert gain < 1.03


def test_what_is_tried_ends_where_replicas_are_no_longer_loaded() -> None:
    capacity = believed()
    for _ in range(500):
        capacity = observe_load(capacity, minute(3.9), "h100", headroom_is_least=True)
    assert 3.9 / 0.9 <= capacity.beliefs[0].rate_rps < 3.9 / 0.9 * 1.03


@pytest.mark.parametrize(
    ("rate", "busiest", "direction"),
    [(2.5, 1.0, -1), (2.5, 1.4, -1), (2.5, 2.0, 0), (1.0, 3.0, -1), (1.0, 5.0, 0)],
    ids=["even", "below capacity all", "one above", "one below, others idle", "one above, others idle"],
)
def test_misses_count_only_while_even_the_busiest_replica_has_less_than_it_should_carry(
    rate: float, busiest: float, direction: int
) -> None:
    gain = observe_load(believed(), minute(rate, 0.3, busiest=busiest), "h100").beliefs[0].correction.gain
    assert (gain > 1.0) - (gain < 1.0) == direction


@pytest.mark.parametrize("factor", [0.05, 0.3, 0.8, 1.0, 1.5, 4.0, 20.0])
@pytest.mark.parametrize("rate", [0.1, 3.0, 30.0])
def test_time_per_token_tells_how_slow_steps_are_at_any_load_and_factor(factor: float, rate: float) -> None:
    """Beyond its throughput an engine begins no more than it can: the queue does not matter."""
    model = Lawful({"h100": 4.0, "l40s": 2.0}, work_seconds=0.2)
    begun = min(rate, 0.98 / (0.2 * factor))
    seconds = 0.02 * factor / (1.0 - begun * 0.2 * factor)
    capacity = believed(model)
    for _ in range(3):
        capacity = measure_steps(capacity, tpot(seconds, begun), "h100", model)
    assert capacity.beliefs[0].correction.slowness == pytest.approx(factor, rel=0.1)
    assert capacity.beliefs[1].correction.slowness == 1.0


@pytest.mark.parametrize("accepted", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_time_per_token_tells_how_slow_steps_are_that_give_several_tokens(factor: float, accepted: float) -> None:
    """A request of the law takes 0.2 s of work, which is in its prompt."""
    model, begun = Lawful({"h100": 4.0, "l40s": 2.0}, work_seconds=0.2), 1.0
    step = 0.02 * factor / (1.0 - begun * 0.2 * factor)
    engines = reporting(EngineFacts(accepted_drafts=accepted))
    capacity = believe(Capacity(), SPEC, Lengths(), judge(traffic(1.0)), model, engines)
    for _ in range(3):
        capacity = measure_steps(capacity, tpot(step / (1.0 + accepted), begun), "h100", model)
    assert capacity.beliefs[0].correction.slowness == pytest.approx(factor, rel=0.1)
    if not accepted:
        silent = believed(model)
        for _ in range(3):
            silent = measure_steps(silent, tpot(step, begun), "h100", model)
        assert silent.beliefs[0].correction == capacity.beliefs[0].correction


def test_an_uneven_load_makes_the_time_per_token_a_weaker_evidence() -> None:
    model = Lawful({"h100": 4.0, "l40s": 2.0}, work_seconds=0.2)
    even, uneven = (measure_steps(believed(model), tpot(0.06, 2.0, b), "h100", model).beliefs[0] for b in (1.0, 3.0))
    assert uneven.correction.steps.deviation > even.correction.steps.deviation


def test_loads_move_the_belief_without_bounds() -> None:
    low = high = believed()
    for _ in range(100):
        low = observe_load(low, minute(0.8 * low.beliefs[0].rate_rps + 0.01, 0.9), "h100")
        high = observe_load(high, minute(50.0), "h100")
    assert low.beliefs[0].correction.gain < 0.1
    assert high.beliefs[0].rate_rps == pytest.approx(50.0, rel=0.1)
    assert high.beliefs[0].confidence > 0.95


def test_what_was_learned_of_an_accelerator_that_nobody_knows_stays() -> None:
    """Neither its name nor a label says what it is; it is the same one all the same."""
    pool = service().with_accelerators(accelerator("pool")).spec
    model = Lawful({"pool": 4.0})
    capacity = believe(Capacity(), pool, Lengths(), judge(traffic(1.0)), model)
    capacity = measure_steps(capacity, tpot(0.2), "pool", model)
    again = believe(capacity, pool, Lengths(), judge(traffic(1.0)), model)
    assert again.beliefs[0].slowness == pytest.approx(10.0, rel=0.1)


def test_the_cache_that_engines_report_counts_instead_of_the_data_sheets() -> None:
    model, seen = StepLawModel(), judge(traffic(1.0))
    by_sheet = believe(Capacity(), SPEC, Lengths(), seen, model)
    told = believe(by_sheet, SPEC, Lengths(), seen, model, reporting(EngineFacts(kv_tokens=5000.0)))
    assert told.beliefs[0].rate_rps < 0.3 * by_sheet.beliefs[0].rate_rps
    assert told.beliefs[1].rate_rps == by_sheet.beliefs[1].rate_rps
    silent = believe(told, SPEC, Lengths(), seen, model)
    assert silent.beliefs[0].facts.kv_tokens == 5000.0, "it stays while nobody says otherwise"


def test_what_was_learned_relative_to_another_law_is_forgotten() -> None:
    """Engines turn out to run quantized weights: their steps were compared with those of 16 bits until now."""
    spec, model, seen = replace(SPEC, model_uri="Qwen/Qwen3-8B"), StepLawModel(), judge(traffic(1.0))
    capacity = measure_steps(believe(Capacity(), spec, Lengths(), seen, model), tpot(0.05), "h100", model)
    assert capacity.beliefs[0].correction.looks == 1
    confirmed = EngineFacts(quantization="none", dtype="bfloat16", kv_dtype="auto", parallel_gpus=1)
    same = believe(capacity, spec, Lengths(), seen, model, reporting(confirmed))
    assert same.beliefs[0].correction == capacity.beliefs[0].correction
    quantized = EngineFacts(quantization="awq_marlin")
    other = believe(same, spec, Lengths(), seen, model, reporting(quantized)).beliefs[0]
    assert (other.correction.looks, other.slowness, other.correction.steps.deviation) == (0, 1.0, 0.35)
    assert other.rate_rps > 1.1 * believe(Capacity(), spec, Lengths(), seen, model).beliefs[0].rate_rps


def test_what_status_recalls_counts_after_a_start_until_engines_report_and_at_no_reset_since() -> None:
    """Status shows what this process learned, too: at another law that would undo the reset."""
    spec, model, seen = replace(SPEC, model_uri="Qwen/Qwen3-8B"), StepLawModel(), judge(traffic(1.0))
    recalled, quantized = Recalled(accelerator="h100", gain=1.2, slowness=1.5), EngineFacts(quantization="awq_marlin")
    started = believe(Capacity(), spec, Lengths(), seen, model, recalled=recalled)
    reported = believe(started, spec, Lengths(), seen, model, reporting(quantized), recalled)
    assert [each.beliefs[0].slowness for each in (started, reported)] == pytest.approx([1.5, 1.5])
    confirmed = EngineFacts(quantization="none", dtype="bfloat16", kv_dtype="auto", parallel_gpus=1)
    edited = believe(reported, spec, Lengths(), seen, model, reporting(confirmed), recalled)
    assert (edited.beliefs[0].slowness, edited.beliefs[0].correction.looks) == (1.0, 0)


def test_an_unknown_model_is_known_as_soon_as_an_engine_reports_its_configuration() -> None:
    """A model of 70 billion parameters in a private volume: until then it is taken for one of 8 billion."""
    memory, ready, beliefs = Memory(), [], []
    words = (
        "layers=80 hidden=8192 heads=64 kv_heads=8 head_dim=128 parameters=70553000000 active_parameters=70553000000"
    )
    shape = ModelFigures.read(f"{words} embedding_parameters=2101000000 kv_latent=0 kv_layers=80 weight_bits=0")
    four, uri = accelerator("h200", gpus_per_replica=4), "pvc://models/assistant"
    private = ServiceBuilder(replace(service().with_accelerators(four).spec, model_uri=uri))
    law = engine_prior(uri, "h200", None, 4, facts=EngineFacts(model=shape)).law
    steps = StepSums(1000.0, decodes=10_000.0, seconds=1000.0 * law.step_seconds((), 10, 0.0))
    for number in range(40):
        facts = EngineFacts(model=shape) if number >= 20 else EngineFacts()
        seen = replace(traffic(1.0, on="h200"), facts=(("h200", facts),), steps=(("h200", steps),))
        now = NOW + 15.0 * number
        view = ServiceView(private, seen, replicas(1, on="h200", now=now))
        (decision,), memory = decide(a_snapshot(view, now=now, tick=15.0, scrape=15.0), memory)
        ready.append(next(each.message for each in decision.conditions if each.type == "Ready"))
        beliefs.append(next(iter(memory.services.values())).supply.capacity.beliefs[0])
    assert "unknown model" in ready[19]
    assert "unknown" not in ready[20] + ready[39]
    assert beliefs[19].slowness > 3.0, "slow for 8 billion parameters"
    assert (beliefs[20].correction.looks, beliefs[20].slowness) == (0, 1.0)
    assert beliefs[20].correction.deviation < 0.4 < 1.0 < beliefs[0].correction.deviation
    assert beliefs[39].slowness == pytest.approx(1.0, abs=0.25)
    assert beliefs[39].rate_rps == pytest.approx(beliefs[19].rate_rps, rel=0.5), "what was seen stays as it is"


def test_old_engines_say_nothing_about_the_model_that_replaces_theirs() -> None:
    """The model is edited from 8 to 32 billion parameters; the rollout begins with the next tick and lasts for nine."""
    memory, rates = Memory(), []
    old, new = (EngineFacts(kv_tokens=tokens, quantization=word) for tokens, word in ((4e5, "none"), (1e5, "fp8")))
    for number in range(14):
        uri = "Qwen/Qwen3-8B" if number < 2 else "Qwen/Qwen3-32B-FP8"
        view = ServiceView(
            ServiceBuilder(replace(service().spec, model_uri=uri)),
            replace(traffic(1.0), facts=(("h100", new if number > 11 else old),)),
            replicas(2, now=NOW + 15.0 * number),
            (Placement("h100", 2, rolling_out=2 < number < 12),),
        )
        (_,), memory = decide(a_snapshot(view, now=NOW + 15.0 * number, tick=15.0, scrape=15.0), memory)
        rates.append(next(iter(memory.services.values())).supply.capacity.beliefs[0].rate)
    assert rates[2].law == rates[11].law, "by the name of the new model"
    assert rates[2].rate_rps < 0.6 * rates[1].rate_rps
    assert rates[13].rate_rps == pytest.approx(rates[11].rate_rps, rel=0.2)


def test_a_good_window_at_low_load_is_no_estimate() -> None:
    capacity = believed()
    for _ in range(100):
        capacity = observe_load(capacity, minute(0.5), "h100")
    assert capacity.beliefs[0].rate_rps == 4.0


def test_slow_steps_stretch_the_step_law_and_then_the_rate_is_computed_anew() -> None:
    model = Lawful({"h100": 4.0, "l40s": 2.0})
    capacity = measure_steps(believed(model), tpot(0.03), "h100", model)
    assert observe_load(capacity, minute(3.0, 0.9), "h100") == capacity, "the rate is not that of these steps"
    for _ in range(20):
        capacity = measure_steps(capacity, tpot(0.03), "h100", model)
        capacity = believe(capacity, SPEC, Lengths(), judge(traffic(1.0)), model)
    assert capacity.beliefs[0].correction.slowness == pytest.approx(1.5, rel=0.02)
    assert capacity.beliefs[0].slowness == pytest.approx(1.5, rel=0.07)
    assert capacity.beliefs[1].correction.slowness == 1.0


def test_steps_as_measured_go_before_what_tpot_suggests() -> None:
    model = Lawful({"h100": 4.0, "l40s": 2.0})
    measured = replace(tpot(0.03), steps=StepSums(steps=9000.0, seconds=9000.0 * 0.026))
    capacity = measure_steps(believed(model), measured, "h100", model)
    for _ in range(10):
        capacity = measure_steps(capacity, measured, "h100", model)
    assert capacity.beliefs[0].correction.slowness == pytest.approx(1.3, rel=0.01)


def test_what_the_plugin_makes_of_time_per_token_says_nothing_about_how_fast_steps_are() -> None:
    """It lets answers wait up to their objective: the mean TPOT is what it chose, and the steps are as fast as ever."""
    model = Lawful({"h100": 4.0, "l40s": 2.0})
    capacity = believe(
        Capacity(), SPEC, Lengths(), judge(traffic(1.0)), model, {"h100": Engines(SPEC.batching, fast_loop=True)}
    )
    assert measure_steps(capacity, tpot(0.03), "h100", model) == capacity


def test_steps_that_refute_the_belief_take_what_was_learned_beside_it_along() -> None:
    """Late requests had lowered what a replica carries; now it is known that steps are slow, which explains them."""
    model = Lawful({"h100": 4.0, "l40s": 2.0})
    capacity = believed(model)
    for _ in range(5):
        capacity = observe_load(capacity, minute(2.1, 0.9), "h100")
    assert capacity.beliefs[0].correction.gain < 0.8
    capacity = measure_steps(capacity, tpot(0.2), "h100", model)
    assert capacity.beliefs[0].correction.gain == 1.0


def test_saturated_replicas_show_what_they_carry_whatever_the_reason() -> None:
    capacity = observe_saturation(believed(), StepEvidence(0.5, 100.0, saturated=True), "h100")
    assert capacity.beliefs[0].rate_rps == pytest.approx(0.85 * 0.5, rel=0.05)
    few = StepEvidence(0.5, 10.0, saturated=True)
    assert observe_saturation(believed(), few, "h100") == believed()


@pytest.mark.parametrize(
    ("changes", "saturated"),
    [
        ({}, False),
        ({"waiting": 30.0, "in_flight_growth": 60.0}, True),
        ({"rejected": 60.0}, True),
        ({"waiting": 30.0, "in_flight_growth": 60.0, "busiest": 2.0}, False),
        ({"waiting": 0.0, "in_flight_growth": 60.0}, False),
        ({"waiting": 30.0, "in_flight_growth": 2.0}, False),
    ],
    ids=["calm", "queue grows", "refused", "uneven", "running grows", "queue stands"],
)
def test_replicas_are_saturated_where_fewer_requests_begin_than_arrive(
    changes: dict[str, float], saturated: bool
) -> None:
    seen = judge(traffic(8.0, **changes))
    found = step_evidence(seen, "h100", 2, undisturbed=True)
    assert found is not None
    assert found.saturated is saturated
    disturbed = step_evidence(seen, "h100", 2, undisturbed=False)
    assert disturbed is not None
    assert not disturbed.saturated


def test_what_was_met_is_feasible_whatever_the_model_says() -> None:
    never = FixedRates({"h100": 0.0, "l40s": 2.0}, serving=1.0)
    capacity = believe(Capacity(), SPEC, Lengths(), judge(traffic(1.0)), never)
    assert not capacity.beliefs[0].feasible
    assert not capacity.beliefs[0].sized
    met = observe_load(capacity, minute(3.0), "h100").beliefs[0]
    assert met.feasible
    assert met.rate_rps == pytest.approx(3.0, rel=0.1)
    late = observe_load(capacity, minute(0.5, 0.4), "h100").beliefs[0]
    assert not late.feasible
    assert late.rate_rps == capacity.beliefs[0].rate_rps, "they are late at any load"
    assert late.sized


@pytest.mark.parametrize(
    "steps",
    [
        StepSums(),
        StepSums(steps=10.0, seconds=9.0),
        StepSums(steps=math.nan, seconds=9.0),
    ],
)
def test_steps_that_say_nothing_leave_it_to_tpot(steps: StepSums) -> None:
    model = Lawful({"h100": 4.0, "l40s": 2.0})
    with_steps, without = (
        measure_steps(believed(model), replace(tpot(0.03), steps=given), "h100", model) for given in (steps, None)
    )
    assert with_steps == without


@pytest.mark.parametrize(
    "evidence",
    [
        StepEvidence(3.0, steps=StepSums(steps=math.inf, seconds=9.0)),
        StepEvidence(3.0, steps=StepSums(steps=9000.0, seconds=0.0)),
        StepEvidence(3.0, steps=StepSums(steps=9000.0, seconds=math.nan)),
        StepEvidence(3.0, steps=StepSums(steps=9000.0, seconds=math.inf)),
        StepEvidence(math.nan, tpot_count=100.0, tpot_seconds=3.0),
        StepEvidence(3.0, tpot_count=100.0, tpot_seconds=math.nan),
        StepEvidence(3.0, tpot_count=100.0, tpot_seconds=0.0),
        StepEvidence(3.0, tpot_count=3.0, tpot_seconds=1.0),
    ],
)
def test_evidence_that_is_no_number_changes_nothing(evidence: StepEvidence) -> None:
    model = Lawful({"h100": 4.0, "l40s": 2.0}, work_seconds=0.1)
    assert measure_steps(believed(model), evidence, "h100", model) == believed(model)


def test_the_real_engine_model_knows_how_long_its_own_steps_take() -> None:
    model, mix = StepLawModel(), LengthMix.from_means(1155.0, 211.0)
    prior = engine_prior(SPEC.model_uri, "h100").law
    features = (1000.0, 50_000.0, 12_000.0, 15e6, 30e6)
    expected = sum(c * f for c, f in zip(astuple(prior), features, strict=True))
    law = model.law(SPEC, H100, mix, 1.0, 1.0)
    assert law is not None
    seconds = sum(c * f for c, f in zip(astuple(law), features, strict=True))
    assert 0.5 * expected < seconds < 2.0 * expected
    assert model.law(SPEC, H100, mix, 1.0, math.inf) is None


def gain_after(edited: ServiceSpec, rate: float = 6.0) -> float:
    """The gain that is left of one beside 1 after an edit."""
    corrected = observe_load(believed(), minute(rate), "h100")
    assert corrected.beliefs[0].correction.gain != 1.0
    return believe(corrected, edited, Lengths(), judge(traffic(1.0)), MODEL).beliefs[0].correction.gain


@pytest.mark.parametrize(
    "edited",
    [
        replace(SPEC, generation=2),
        replace(SPEC, generation=2, max_replicas=99, priority=3, pinned_replicas=4),
        replace(SPEC, generation=2, slo=replace(SPEC.slo, classes=("premium",))),
        replace(SPEC, generation=2, accelerators=(replace(H100, cost_per_gpu_hour=9.0, max_replicas=3),)),
    ],
)
def test_an_edit_of_anything_but_the_engines_keeps_the_correction(edited: ServiceSpec) -> None:
    assert gain_after(edited) > 1.0


@pytest.mark.parametrize(
    "edited",
    [
        replace(SPEC, generation=2, model_uri="meta-llama/Llama-3.1-8B"),
        replace(SPEC, generation=2, quantization="fp8"),
        replace(SPEC, generation=2, accelerators=(replace(H100, revision="another"),)),
        replace(SPEC, generation=2, accelerators=(replace(H100, gpus_per_replica=2),)),
        replace(SPEC, uid="another"),
    ],
)
def test_other_engines_start_the_correction_anew(edited: ServiceSpec) -> None:
    assert gain_after(edited) == 1.0


def test_under_another_objective_only_what_was_found_missing_is_still_believed() -> None:
    stricter = replace(SPEC, generation=2, slo=replace(SPEC.slo, tpot_seconds=SPEC.slo.tpot_seconds / 2.0))
    assert gain_after(stricter) == 1.0
    slow = observe_load(believed(), minute(3.0, bad_share=0.3), "h100")
    known = slow.beliefs[0].correction.gain
    assert believe(slow, stricter, Lengths(), judge(traffic(1.0)), MODEL).beliefs[0].correction.gain == known < 1.0


@pytest.mark.parametrize("serving", [(), ("chat-1",), ("chat-1", "chat-3"), ("chat-1", "chat-2", "chat-3")])
def test_a_look_begins_anew_after_a_disturbance_and_the_counting_interval(serving: tuple[str, ...]) -> None:
    """Other replicas are a disturbance, also where they are as many."""
    seen, calm = judge(traffic(4.0)), Verdicts(40.0, 0.0)
    before = EvidenceWindow(NOW - 50.0, arrivals=100.0, replicas=BOTH)
    disturbed = watch(before, seen, 40.0, calm, serving, 5.0, NOW)
    assert (disturbed.since, disturbed.arrivals) == (NOW + 10.0, 0.0)
    assert disturbed.leftover == seen.total.running + seen.total.waiting
    again = watch(disturbed, seen, 40.0, calm, TWO, 5.0, NOW + 5.0)
    assert again.since == NOW + 15.0
    assert watch(again, seen, 40.0, calm, TWO, 5.0, NOW + 10.0) == again
    assert watch(again, seen, 40.0, calm, TWO, 5.0, NOW + 15.0).arrivals == 20.0


def test_what_was_in_flight_at_a_disturbance_has_to_end_first() -> None:
    busy, calm = judge(traffic(4.0, running=45.0, waiting=15.0)), Verdicts(20.0, 0.0)
    look = watch(EvidenceWindow(NOW - 50.0), busy, 40.0, calm, TWO, 5.0, NOW)
    for second in range(5, 20, 5):  # 4 req/s end, 60 were in flight
        look = watch(look, busy, 40.0, calm, TWO, 5.0, NOW + second)
        assert (look.leftover, look.arrivals) == (60.0 - 4.0 * second, 0.0)
    look = watch(look, busy, 40.0, calm, TWO, 5.0, NOW + 20.0)
    assert (look.since, look.leftover, look.arrivals) == (NOW + 15.0, 0.0, 20.0)


def test_a_look_does_not_mix_two_loads() -> None:
    seen = judge(traffic(4.0))
    look = EvidenceWindow(since=NOW - 50.0, arrivals=100.0, replica_seconds=100.0, replicas=BOTH)
    assert watch(look, seen, 40.0, Verdicts(40.0, 0.0), TWO, 5.0, NOW, NOW - 60.0).arrivals == 120.0
    anew = watch(look, seen, 40.0, Verdicts(40.0, 0.0), TWO, 5.0, NOW, NOW - 10.0)
    assert (anew.since, anew.arrivals) == (NOW + 10.0, 0.0)


@pytest.mark.parametrize("busiest", [math.nan, math.inf, -1.0, 0.0, 0.3])
def test_a_share_of_the_busiest_that_makes_no_sense_counts_as_even(busiest: float) -> None:
    seen = judge(traffic(4.0, busiest=busiest))
    window = EvidenceWindow(NOW - 5.0, replicas=BOTH)
    assert watch(window, seen, 40.0, Verdicts(40.0, 0.0), TWO, 5.0, NOW).busiest == 1.0


def test_services_are_looked_at_once_a_minute_and_not_all_at_once() -> None:
    keys = [service(f"s{index}").spec.key for index in range(300)]
    due = [{key for key in keys if is_due(EvidenceWindow(since=NOW), key, NOW + second)} for second in range(0, 65, 5)]
    assert due[5] == set()
    assert all(len(after - before) <= 200 for before, after in itertools.pairwise(due))
    assert due[12] == set(keys)


def test_the_real_engine_model_answers_for_known_and_unknown_accelerators() -> None:
    model, mix = StepLawModel(), LengthMix.from_means(1155.0, 211.0)
    known = model.rate(SPEC, H100, mix, 1.0)
    assert known.feasible
    assert known.rate_rps > 1.0
    assert model.rate(SPEC, H100, mix, 1.5).rate_rps < known.rate_rps
    unknown = model.rate(SPEC, replace(H100, name="no-such-thing"), mix, 1.0)
    assert unknown.confidence < known.confidence
    assert unknown.deviation > known.deviation


def test_lengths_follow_what_is_served_within_minutes() -> None:
    lengths = Lengths()
    assert lengths.prompt_mean == pytest.approx(1155.0)
    seen = judge(traffic(5.0, prompt_length_sum=5.0 * 10.0 * 300.0, output_length_sum=5.0 * 10.0 * 50.0))
    for index in range(120):
        lengths = observe_lengths(lengths, seen, NOW + 5.0 * index)
    assert lengths.prompt_mean == pytest.approx(300.0, rel=0.1)
    assert lengths.output_mean == pytest.approx(50.0, rel=0.1)


def test_equal_mixes_are_put_on_one_grid() -> None:
    nothing = judge(traffic(1.0))
    mixes = {
        Lengths(PRIOR._replace(prompt_tokens=23_000.0 + tokens)).mix(nothing.prompt_lengths, nothing.output_lengths)
        for tokens in range(0, 1000, 50)
    }
    assert len(mixes) <= 2


def test_counts_of_two_accelerators_add_up_whatever_their_order() -> None:
    pairs = (("h100", counts(4.0)), ("l40s", counts(1.0, good=0.5)))
    one, other = (judge(replace(traffic(), by_accelerator=order)) for order in (pairs, pairs[::-1]))
    assert one == other
    assert one.total.finished == 50.0
    assert one.total.ttft_within == 45.0
