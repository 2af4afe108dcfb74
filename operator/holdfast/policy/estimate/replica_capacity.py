"""Estimate what one replica of each accelerator carries: the engine model's answer, corrected by observation.

Where a benchmark measured such an engine, the model's answer is first scaled to the measurement (see `measured`).

Source: docs/designs/0010-capacity-on-the-tick.md.
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
"""Share of a disagreement (of its logarithm) that one evidence window corrects."""

LEAST_REQUESTS = 20.0
"""Requests in one evidence window below which nothing is concluded."""

LEAST_STEPS = 500.0
"""Engine steps below which their durations are not used; a busy engine makes that many in about ten seconds."""

UNDER_LOAD = 0.5
"""Share of a replica's capacity above which its bad requests are evidence about the capacity."""

MATERIAL = 0.05
"""Relative change of step times below which capacities are not recomputed.

It is also the relative step by which a higher capacity is tried.
"""

WELL_LOADED = 0.9
"""Share of its capacity that a replica must carry before more is tried.

So no size relies on far more than was ever observed.
"""


@value
class Correction:
    """Correction of one accelerator, learned from observation.

    Steps take `slowness` times as long as the prior says. A replica carries `gain` times the model's rate λ*. `looks`
    counts the evidence windows.
    """

    slowness: float = 1.0
    gain: float = 1.0
    looks: int = 0


@dataclass(frozen=True)
class Belief:
    """Estimate for one accelerator: the model's answer, the inputs of the answer, and the correction since.

    `fast_loop`: the engines tune their own limits. Then `limits` are the best limits within those that the engines are
    `started` with, once they were `searched` for.
    """

    option: AcceleratorOption
    rate: ReplicaRate
    slowness: float
    correction: Correction = field(default_factory=Correction)
    work: float = 1.0
    """Present work of the mean request, relative to the mix of the answer."""
    started: BatchingLimits = field(default_factory=BatchingLimits)
    limits: BatchingLimits = field(default_factory=BatchingLimits)
    fast_loop: bool = False
    searched: bool = True
    scaled: Scaled = field(default_factory=Scaled)
    pair_rps: float = math.inf
    """Rate of a replica of the paired accelerator, where each replica gets an equal share of the requests."""

    @cached_property
    def rate_rps(self) -> float:
        """Requests per second that one replica carries within the objectives."""
        own = self.rate.rate_rps * self.scaled.factor * self.correction.gain / self.work
        return own if math.isnan(own) else min(own, self.pair_rps)

    @property
    def feasible(self) -> bool:
        """Whether a single request can meet the objectives."""
        return self.rate.feasible

    @property
    def confidence(self) -> float:
        """Confidence (0..1): the prior's, rising towards one with every evidence window."""
        observed = self.correction.looks / (self.correction.looks + 5.0)
        prior = self.scaled.confidence(self.rate.confidence)
        return prior + (1.0 - prior) * observed


@value
class Capacity:
    """Beliefs about every accelerator of a spec, in the spec's order, and the lengths they hold for."""

    spec: ServiceSpec | None = None
    lengths: Lengths = field(default_factory=Lengths)
    mix: LengthMix | None = None
    beliefs: tuple[Belief, ...] = ()

    def belief(self, accelerator: str) -> Belief | None:
        """Return the belief about an accelerator; None where it is not listed."""
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
    """Update the beliefs; a belief whose inputs did not change materially is retained.

    Other engines (another model, image or arguments) reset the corrections. No other edit does: otherwise raising
    `scaling.max` in an emergency would remove replicas. While the model has no time, capacities shrink as the work of a
    request grows. For a new or edited spec the result is empty then.

    `fast_loops` names the accelerators whose engines tune their own limits. `tuned` has the limits of accelerators that
    differ from the spec's. `measured` has benchmark results of such engines. `recalled` is what was learned before a
    restart; it is the first correction.
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
            correction = replace(correction, gain=min(1.0, correction.gain))  # as after a change of limits
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
    """Return what a replica carries now; None where no model time is left in this tick."""
    if old is not None and old.scaled.measured != benchmark:
        correction = replace(correction, gain=1.0)  # it was learned relative to another prior
    elif old is not None and correction.looks and (old.fast_loop, old.started) != (fast_loop, spec.batching):
        # A gain above 1 was observed under other limits, and does not carry over to these.
        correction = replace(correction, gain=min(1.0, correction.gain))
    found = model.best_limits(spec, option, mix, correction.slowness) if fast_loop else spec.batching
    retained = old.limits if old is not None and old.fast_loop and old.started == spec.batching else spec.batching
    limits = retained if found is None else found
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
    """Return whether an edit leaves the engines the same, on every accelerator that both specs list."""
    pairs = ((option, new.accelerator(option.name)) for option in old.accelerators)
    return _same_model(old, new) and all(option is None or _same_engines(before, option) for before, option in pairs)


def _same_model(old: ServiceSpec, new: ServiceSpec) -> bool:
    """Return whether both specs serve the same model with the same engine configuration."""

    def identity(spec: ServiceSpec) -> tuple[object, ...]:
        return spec.uid, spec.model_uri, spec.max_model_len, spec.quantization

    return identity(old) == identity(new)


def _same_engines(old: AcceleratorOption, new: AcceleratorOption) -> bool:
    """Return whether a replica is unchanged by an edit; its price and the maximum number do not matter."""
    return same_hardware(old, new) and old.revision == new.revision


def _first(spec: ServiceSpec, option: AcceleratorOption, recalled: Recalled) -> Correction:
    """Return the correction learned for such hardware before a restart; its number of windows is unknown."""
    used = spec.accelerator(recalled.accelerator)
    if used is None or not same_hardware(used, option):
        return Correction()
    return _bounded(recalled.slowness, recalled.gain, 0)


def _searched(memory: Capacity, spec: ServiceSpec, model: EngineModel) -> Capacity:
    """Return the beliefs with the best limits added where an earlier tick had no time to search for them."""
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
    """Return the beliefs for other lengths, on the assumption that a replica does as much work as before."""
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
    """Correct the belief about the accelerator that served; `steps` are the measured steps of its engines.

    `headroom_is_least`: requests have been good for so long that only the capacity estimate keeps the size as it is.
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
    """Move a share of the way to steps `slower` times as long, and to `more` times the rate."""
    return _bounded(old.slowness * slower**LOOK_SHARE, old.gain * more**LOOK_SHARE, old.looks + 1)


def _bounded(slowness: float, gain: float, looks: int) -> Correction:
    """Return the correction within the bounds: no observation is trusted beyond them."""
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
    """Return how much longer steps take than estimated: measured directly, or else derived from TPOT."""
    measured = _steps_ratio(memory, spec, belief, steps, evidence.served_rps, model)
    if measured is not None:
        return measured
    # The plugin uses the slack that TPOT has: the mean TPOT is its choice, and no measure of step times.
    return 1.0 if belief.fast_loop and not spec.batching_fixed else _tpot_ratio(memory, spec, belief, evidence, model)


def _steps_ratio(
    memory: Capacity, spec: ServiceSpec, belief: Belief, steps: StepSums | None, rate: float, model: EngineModel
) -> float | None:
    """Return measured seconds of steps relative to their estimate; None where too few steps were measured.

    TPOT also depends on load, lengths and limits. Step times measure the step law directly.
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
    """Return the observed mean time per output token relative to the predicted one.

    Anything between the prediction for the mean load and that for the busiest replica's load counts as agreement. A
    replica loaded beyond its estimated capacity may have any TPOT, so it is no evidence.
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
    """Return by which factor the estimated rate is off, by the objective: met above it, or missed below it.

    A miss must exceed chance. The objective counts as met at the mean load, and as missed at the busiest replica's
    load: further misses come from a shortage. Sizes avoid loads above the estimate, so that a low estimate would never
    be corrected. So where headroom is at its minimum and at most half the allowed requests are bad, a slightly higher
    rate is tried.

    Source: docs/designs/0014-probing.md.
    """
    estimated = max(belief.rate_rps, 1e-9)
    load, highest = evidence.rate_rps / estimated, evidence.highest_rps / estimated
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
    """Return the spec with these limits; usually they are the spec's own."""
    return spec if spec.batching == limits else replace(spec, batching=limits)


def _drifted(belief: Belief) -> bool:
    """Return whether the estimated step times differ materially from those of the computed rate."""
    return abs(belief.correction.slowness - belief.slowness) > MATERIAL * belief.slowness
