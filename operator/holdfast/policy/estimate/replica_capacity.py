"""What one replica of each accelerator is believed to carry: the engine model's answer, corrected by observation.

Where a benchmark has measured such an engine, the model's answer is scaled to that first (see `measured`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from holdfast.domain.benchmark import Measured
from holdfast.domain.engine import StepSums
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.snapshot import Recalled
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.estimate.benchmarked_capacity import Scaled, scaled
from holdfast.policy.estimate.engine_model import EngineModel, ReplicaRate
from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.hardware import same_hardware
from holdfast.policy.estimate.length_mix import Lengths, length_mix, moved
from holdfast.policy.estimate.traffic import LARGEST, Seen

NOTHING = Recalled()

LEAST_GAIN, MOST_GAIN = 0.5, 1.5

LOOK_SHARE = 0.25
"""Share of a disagreement (of its logarithm) that one look corrects."""

LEAST_REQUESTS = 20.0
"""Requests in one look below which nothing is concluded."""

LEAST_STEPS = 500.0
"""Engine steps below which they say nothing; a busy engine makes that many in some ten seconds."""

UNDER_LOAD = 0.5
"""Share of its capacity above which a replica's bad requests say something about its capacity."""

MATERIAL = 0.05
"""A relative change of the step times below this moves no capacity, and one of capacity by this is tried."""

WELL_LOADED = 0.9
"""Share of its capacity that a replica must have for more to be tried: nobody relies on far more than was ever seen."""


@value
class Correction:
    """What observation taught of one accelerator: steps take `slowness` times as long, `gain` times λ* is carried."""

    slowness: float = 1.0
    gain: float = 1.0
    looks: int = 0


@dataclass(frozen=True)
class Belief:
    """One accelerator: the model's answer, the inputs it was computed from, and the correction since.

    `fast_loop`: its engines find their own limits, so that `limits` are those under which most is carried within those
    that they are `started` with, once they were `searched` for.
    """

    option: AcceleratorOption
    rate: ReplicaRate
    slowness: float
    correction: Correction = field(default_factory=Correction)
    work: float = 1.0
    """Work of the mean request by now, in units of what the answer was computed for."""
    started: BatchingLimits = field(default_factory=BatchingLimits)
    limits: BatchingLimits = field(default_factory=BatchingLimits)
    fast_loop: bool = False
    searched: bool = True
    scaled: Scaled = field(default_factory=Scaled)
    pair_rps: float = math.inf
    """What the replicas of another accelerator carry that get as large a share of the requests each."""

    @cached_property
    def rate_rps(self) -> float:
        """Requests per second of one replica within the objectives."""
        own = self.rate.rate_rps * self.scaled.factor * self.correction.gain / self.work
        return own if math.isnan(own) else min(own, self.pair_rps)

    @property
    def feasible(self) -> bool:
        return self.rate.feasible

    @property
    def confidence(self) -> float:
        """The prior's, rising towards one with every look that agreed or corrected."""
        seen = self.correction.looks / (self.correction.looks + 5.0)
        prior = self.scaled.confidence(self.rate.confidence)
        return prior + (1.0 - prior) * seen


@value
class Capacity:
    """Beliefs about every accelerator of a spec, in its order, and the lengths they hold for."""

    spec: ServiceSpec | None = None
    lengths: Lengths = field(default_factory=Lengths)
    mix: LengthMix | None = None
    beliefs: tuple[Belief, ...] = ()

    def belief(self, accelerator: str) -> Belief | None:
        return next((belief for belief in self.beliefs if belief.option.name == accelerator), None)


def believe(
    memory: Capacity,
    spec: ServiceSpec,
    lengths: Lengths,
    seen: Seen,
    model: EngineModel,
    fast_loops: frozenset[str] = frozenset(),
    tuned: Mapping[str, BatchingLimits] = MappingProxyType({}),
    measured: tuple[Measured, ...] = (),
    recalled: Recalled = NOTHING,
) -> Capacity:
    """Bring beliefs up to date; what nothing material has changed for is kept as it is.

    Other engines (another model, image or arguments) start the corrections anew, an edit of anything else does not: who
    raises scaling.max in trouble would lose replicas. While the model has no time, capacities shrink as the work of a
    request grows; without any belief to go by, there is none yet. `fast_loops` names the accelerators whose engines
    find their own limits, `tuned` those with other limits than the spec's, `measured` what benchmarks found of engines
    like these. Where nothing was learned since a restart, it goes on from what is `recalled`.
    """
    same = memory.spec is spec or memory.spec == spec
    started = {option.name: tuned.get(option.name) or spec.batching for option in spec.accelerators}
    benchmarks = {result.accelerator: result for result in measured}
    outdated = any(
        _drifted(b)
        or b.fast_loop != (b.option.name in fast_loops)
        or b.started != started.get(b.option.name)
        or b.scaled.measured != benchmarks.get(b.option.name)
        for b in memory.beliefs
    )
    if same and not moved(memory.lengths, lengths) and not outdated:
        return memory if all(belief.searched for belief in memory.beliefs) else _searched(memory, spec, model)
    mix = length_mix(lengths, seen.prompt_lengths, seen.output_lengths)
    known = memory if memory.spec is not None and _same_model(memory.spec, spec) else Capacity()
    judged_alike = memory.spec is not None and memory.spec.slo == spec.slo
    beliefs = []
    for option in spec.accelerators:
        engine = _limited(spec, started[option.name])
        benchmark = benchmarks.get(option.name)
        old, first = known.belief(option.name), _first(spec, option, recalled)
        correction = first if old is None or not _same_engines(old.option, option) else old.correction
        if old is not None and not judged_alike:
            correction = replace(correction, gain=min(1.0, correction.gain))  # as under other limits
        belief = _belief(old, engine, option, mix, model, option.name in fast_loops, benchmark, correction)
        if belief is None:
            return _estimated(memory, mix) if same else Capacity()
        beliefs.append(belief)
    return Capacity(spec, lengths, mix, tuple(beliefs))


def _belief(
    old: Belief | None,
    spec: ServiceSpec,
    option: AcceleratorOption,
    mix: LengthMix,
    model: EngineModel,
    fast_loop: bool,
    benchmark: Measured | None,
    correction: Correction,
) -> Belief | None:
    """What a replica carries by now, None where there is no time for the answer."""
    if old is not None and old.scaled.measured != benchmark:
        correction = replace(correction, gain=1.0)  # it was learnt beside another prior
    elif old is not None and correction.looks and (old.fast_loop, old.started) != (fast_loop, spec.batching):
        # What was carried beyond the model under other limits says nothing about these.
        correction = replace(correction, gain=min(1.0, correction.gain))
    found = model.best_limits(spec, option, mix, correction.slowness) if fast_loop else spec.batching
    kept = old.limits if old is not None and old.fast_loop and old.started == spec.batching else spec.batching
    limits = kept if found is None else found
    rate = model.rate(_limited(spec, limits), option, mix, correction.slowness)
    scale = scaled(benchmark, spec, option, model, correction.slowness, fast_loop)
    if rate is None or scale is None:
        return None
    return Belief(
        option,
        rate,
        correction.slowness,
        correction,
        started=spec.batching,
        limits=limits,
        fast_loop=fast_loop,
        searched=found is not None,
        scaled=scale,
    )


def same_engines(old: ServiceSpec, new: ServiceSpec) -> bool:
    """Whether what runs is the same after an edit, wherever it ran before and may run now."""
    pairs = ((option, new.accelerator(option.name)) for option in old.accelerators)
    return _same_model(old, new) and all(option is None or _same_engines(before, option) for before, option in pairs)


def _same_model(old: ServiceSpec, new: ServiceSpec) -> bool:
    def told(spec: ServiceSpec) -> tuple[object, ...]:
        return spec.uid, spec.model_uri, spec.max_model_len, spec.quantization

    return told(old) == told(new)


def _same_engines(old: AcceleratorOption, new: AcceleratorOption) -> bool:
    """Whether a replica is what it was: what it costs, and how many there may be, says nothing about that."""
    return same_hardware(old, new) and old.revision == new.revision


def _first(spec: ServiceSpec, option: AcceleratorOption, recalled: Recalled) -> Correction:
    """What was learned of such hardware before a restart; how often that was confirmed, nobody knows."""
    used = spec.accelerator(recalled.accelerator)
    if used is None or not same_hardware(used, option):
        return Correction()
    return _bounded(recalled.slowness, recalled.gain, 0)


def _searched(memory: Capacity, spec: ServiceSpec, model: EngineModel) -> Capacity:
    """The same beliefs, with the best limits where there was no time to look for them before and is now."""
    beliefs = []
    for belief in memory.beliefs:
        engine, mix = _limited(spec, belief.started), memory.mix
        if not belief.searched and mix is not None:
            limits = model.best_limits(engine, belief.option, mix, belief.slowness)
            rate = limits and model.rate(_limited(spec, limits), belief.option, mix, belief.slowness)
            if not limits or not rate:
                return memory
            belief = replace(belief, rate=rate, limits=limits, searched=True)
        beliefs.append(belief)
    return replace(memory, beliefs=tuple(beliefs))


def _estimated(memory: Capacity, mix: LengthMix) -> Capacity:
    """The same beliefs for other lengths: a replica does as much work as before."""
    if memory.mix is None:
        return memory
    works = [belief.rate.relative_work(memory.mix, mix) for belief in memory.beliefs]
    beliefs = tuple(replace(belief, work=work) for belief, work in zip(memory.beliefs, works, strict=True))
    return replace(memory, beliefs=beliefs)


def correct(
    memory: Capacity,
    evidence: EvidenceWindow,
    accelerator: str,
    model: EngineModel,
    steps: StepSums | None = None,
    headroom_is_least: bool = False,
) -> Capacity:
    """Compare observation and prediction of the accelerator that served; `steps` are those of its engines.

    `headroom_is_least`: requests have been good for so long that only what is believed here keeps the size as it is.
    """
    spec, belief = memory.spec, memory.belief(accelerator)
    if spec is None or belief is None or not belief.feasible or belief.work != 1.0:
        return memory
    if evidence.verdicts.judged < LEAST_REQUESTS or evidence.replica_seconds <= 0.0:
        return memory
    slower = _slowness_ratio(memory, _limited(spec, belief.limits), belief, evidence, model, steps)
    more = _load_ratio(spec, belief, evidence, headroom_is_least)
    corrected = replace(belief, correction=_moved(belief.correction, slower, more))
    return replace(memory, beliefs=tuple(corrected if old is belief else old for old in memory.beliefs))


def _moved(old: Correction, slower: float, more: float) -> Correction:
    """A share of the way to steps that take `slower` times as long, and to `more` times what is carried."""
    return _bounded(old.slowness * slower**LOOK_SHARE, old.gain * more**LOOK_SHARE, old.looks + 1)


def _bounded(slowness: float, gain: float, looks: int) -> Correction:
    """No observation is believed that says more than this."""
    return Correction(
        slowness=min(1.0 / LEAST_GAIN, max(1.0 / MOST_GAIN, slowness)),
        gain=min(MOST_GAIN, max(LEAST_GAIN, gain)),
        looks=looks,
    )


def _slowness_ratio(
    memory: Capacity,
    spec: ServiceSpec,
    belief: Belief,
    evidence: EvidenceWindow,
    model: EngineModel,
    steps: StepSums | None,
) -> float:
    """How much longer steps take than is believed: as measured, else as time per output token says."""
    measured = _steps_ratio(memory, spec, belief, steps, evidence.served_rps, model)
    if measured is not None:
        return measured
    # The plugin spends what TPOT leaves: its mean is what was chosen, not what steps take.
    return 1.0 if belief.fast_loop and not spec.batching_fixed else _tpot_ratio(memory, spec, belief, evidence, model)


def _steps_ratio(
    memory: Capacity, spec: ServiceSpec, belief: Belief, steps: StepSums | None, rate: float, model: EngineModel
) -> float | None:
    """Seconds that steps took relative to what is believed of the same steps, None where too few were measured.

    Unlike TPOT, which follows from load, lengths and limits besides, this is the step law itself.
    """
    if memory.mix is None or steps is None or steps.steps < LEAST_STEPS:
        return None
    predicted = model.steps_seconds(spec, belief.option, memory.mix, rate, steps)
    if predicted is None or not (0.0 < predicted < LARGEST and 0.0 < steps.seconds < LARGEST):
        return None
    return steps.seconds / (predicted * belief.correction.slowness)


def _tpot_ratio(
    memory: Capacity, spec: ServiceSpec, belief: Belief, evidence: EvidenceWindow, model: EngineModel
) -> float:
    """Observed mean time per output token relative to the predicted one.

    Anything from what the mean load predicts to what that of the busiest replica does agrees. One that has more than it
    is believed to carry may take any time.
    """
    if memory.mix is None or evidence.tpot_count < LEAST_REQUESTS or evidence.tpot_seconds <= 0.0:
        return 1.0
    observed, slowness = evidence.tpot_seconds / evidence.tpot_count, belief.correction.slowness
    least = model.tpot_seconds(spec, belief.option, memory.mix, slowness, evidence.served_rps)
    if least is None or least <= 0.0 or observed < least:
        return observed / least if least else 1.0
    if evidence.highest_rps >= belief.rate_rps:
        return 1.0
    most = model.tpot_seconds(spec, belief.option, memory.mix, slowness, evidence.served_rps * evidence.busiest)
    return 1.0 if most is None else max(1.0, observed / max(least, most))


def _load_ratio(spec: ServiceSpec, belief: Belief, evidence: EvidenceWindow, headroom_is_least: bool) -> float:
    """How far off the believed rate is, by the objective: kept above it, or missed below it beyond chance.

    It counts as kept at the mean load and as missed at the busiest replica's: more misses than that are of shortage.
    Sizes avoid loads above it, so that one believed too low would stay so: where headroom has nothing left to give up
    and half of what may be bad is not, a little more is tried (docs/designs/0014-probing.md).
    """
    believed = max(belief.rate_rps, 1e-9)
    load, highest = evidence.rate_rps / believed, evidence.highest_rps / believed
    judged, allowed = evidence.verdicts.judged, evidence.verdicts.judged * spec.slo.budget_share
    missed = evidence.verdicts.bad - evidence.failed
    if load > 1.0 and evidence.verdicts.bad_share <= spec.slo.budget_share:
        return load
    if UNDER_LOAD < highest < 1.0 and missed > allowed + 3.0 * (judged * spec.slo.budget_share) ** 0.5:
        return highest
    if headroom_is_least and load > WELL_LOADED and evidence.verdicts.bad_share <= spec.slo.budget_share / 2.0:
        return 1.0 + MATERIAL
    return 1.0


def _limited(spec: ServiceSpec, limits: BatchingLimits) -> ServiceSpec:
    """The spec with these limits; as a rule they are its own."""
    return spec if spec.batching == limits else replace(spec, batching=limits)


def _drifted(belief: Belief) -> bool:
    """Steps are by now believed to take materially longer or shorter than what the rate was computed for."""
    return abs(belief.correction.slowness - belief.slowness) > MATERIAL * belief.slowness
