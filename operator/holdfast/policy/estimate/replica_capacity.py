"""Estimate what one replica of each accelerator carries: the engine model's answer, overruled by observation.

Two normal beliefs make up the one about the capacity: how long steps take, and what a replica carries beyond what the
model concludes from that. The prior is their first evidence. Where a benchmark measured such an engine, the model's
answer is first scaled to the measurement (see `Scaled`).

Source: docs/designs/0010-capacity-on-the-tick.md, docs/designs/0021-refutable-belief.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from holdfast.domain.benchmark import Measured
from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.snapshot import Recalled
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.enginemodel.hardware import same_hardware
from holdfast.enginemodel.mix import DEFAULT_CV, LengthMix
from holdfast.enginemodel.replica_model import EngineModel, ReplicaRate, same_law
from holdfast.maths.normal_belief import REFUTED, NormalBelief
from holdfast.policy.estimate.length_mix import Lengths, moved

NOTHING = Recalled()

UNSURE = 0.6
"""Deviation of the logarithm of a capacity above which it is a guess: often wrong by a factor of 2."""

MATERIAL = 0.05
"""Relative change of step times below which capacities are not recomputed."""

SLOW = 1.25
"""Factor on the expected step times from which engines are called slow."""

FIRST_STEPS, FIRST_LOAD = NormalBelief(0.0, 0.15), NormalBelief(0.0, 0.1)
"""Beliefs before the first evidence; that about steps gets the deviation of its prior."""


@value
class Scaled:
    """A benchmark's result, and the factor by which it scales the model; 1 where they cannot be compared.

    The engine model answers for any lengths, objectives and limits, but is wrong by some factor. A benchmark is
    accurate for one combination of them. The factor makes the model reproduce the measurement under the conditions of
    the benchmark. It is computed at the current belief about slowness, so that a correction of step times is not
    counted twice.
    """

    measured: Measured | None = None
    factor: float = 1.0
    compared: bool = False


@value
class Correction:
    """What observation says of one accelerator beyond the prior.

    `steps` is about the duration of a step relative to the prior's, `load` about the rate that a replica carries
    relative to the model's rate λ* at those steps. `looks` counts the pieces of evidence. `proven`: the objectives were
    met under load, whatever the model says.
    """

    steps: NormalBelief = FIRST_STEPS
    load: NormalBelief = FIRST_LOAD
    looks: int = 0
    proven: bool = False

    @property
    def slowness(self) -> float:
        """Return by which factor steps take longer than the prior says."""
        return self.steps.factor

    @property
    def slow(self) -> bool:
        """Return whether it was measured that steps take longer than the prior says, by more than it may be wrong."""
        return self.looks > 0 and self.steps.mean > max(math.log(SLOW), 2.0 * self.steps.deviation)

    @property
    def gain(self) -> float:
        """Return by which factor a replica carries more than the model says."""
        return self.load.factor

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the logarithm of the capacity."""
        return math.hypot(self.steps.deviation, self.load.deviation)

    def for_others(self) -> Correction:
        """Return what holds under other limits or objectives: a gain above 1 was observed under these."""
        return replace(self, load=replace(self.load, mean=min(0.0, self.load.mean)), proven=False)


@dataclass(frozen=True)
class Belief:
    """Estimate for one accelerator: the model's answer, the inputs of the answer, and the correction since.

    `fast_loop`: the engines tune their own limits. Then `limits` are the best limits within the limits that the
    engines are `started` with, once they were `searched` for.
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
    facts: EngineFacts = field(default_factory=EngineFacts)
    """What its engines report, now or last."""
    doubtful: bool = False
    """Whether faster steps, which are still likely, would meet objectives that these cannot."""
    pair_rps: float = math.inf
    """Rate of a replica of the paired accelerator, where each replica gets an equal share of the requests."""

    @cached_property
    def rate_rps(self) -> float:
        """Requests per second that one replica carries within the objectives."""
        own = self.modelled_rps * self.correction.gain
        return own if math.isnan(own) else min(own, self.pair_rps)

    @property
    def modelled_rps(self) -> float:
        """Requests per second that one replica carries by the model and a benchmark alone."""
        return self.rate.rate_rps * self.scaled.factor / self.work

    @property
    def feasible(self) -> bool:
        """Whether a single request can meet the objectives, as far as it is known."""
        guessed = bool(self.rate.unknown) and not self.correction.looks
        return self.rate.feasible or self.doubtful or guessed or self.correction.proven or self.scaled.compared

    def meets(self, name: str) -> bool:
        """Return whether a single request of a class can meet its objectives; of any without classes."""
        return self.feasible or any(slo.name == name and rate.feasible for slo, rate in self.rate.rates.items())

    @property
    def engine(self) -> AcceleratorOption:
        """The accelerator with what its engines report, as the model is asked about it."""
        return replace(self.option, facts=self.facts)

    @property
    def drifted(self) -> bool:
        """Whether step times are believed to be others by now than when the rate was computed."""
        return abs(self.correction.slowness - self.slowness) > MATERIAL * self.slowness

    @property
    def sized(self) -> bool:
        """Whether the rate says how many replicas to run: also where objectives cannot be met, once engines ran."""
        return self.rate_rps > 0.0 and (self.feasible or self.correction.looks > 0)

    @property
    def unsure(self) -> bool:
        """Whether the rate is a guess."""
        return self.correction.deviation > UNSURE and not self.scaled.compared

    @property
    def confidence(self) -> float:
        """Confidence (0..1): the prior's, rising towards one with every evidence window."""
        observed, prior = self.correction.looks / (self.correction.looks + 5.0), self.rate.confidence
        if self.scaled.compared and (measured := self.scaled.measured) and measured.rate_rps > 0.0:
            prior = max(prior, 1.0 - min(1.0, measured.standard_error_rps / measured.rate_rps))
        return prior + (1.0 - prior) * observed


class Engines(NamedTuple):
    """What is known of the engines on an accelerator besides the spec.

    They are `started` with limits, maybe tune their own (`fast_loop`), were measured by a benchmark, and report facts.
    """

    started: BatchingLimits
    fast_loop: bool = False
    benchmark: Measured | None = None
    facts: EngineFacts | None = None


@value
class Capacity:
    """Beliefs about every accelerator of a spec, in the spec's order, and the lengths and `shares` they hold for.

    `shares` are those of the classes; empty where they are unknown, or there are none.
    """

    spec: ServiceSpec | None = None
    lengths: Lengths = field(default_factory=Lengths)
    mix: LengthMix | None = None
    beliefs: tuple[Belief, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)

    def belief(self, accelerator: str) -> Belief | None:
        """Return the belief about an accelerator; None where it is not listed."""
        return next((belief for belief in self.beliefs if belief.option.name == accelerator), None)


def slow_since(before: tuple[tuple[str, float], ...], memory: Capacity, now: float) -> tuple[tuple[str, float], ...]:
    """Return the accelerators whose engines are slower than expected, and since when that is known."""
    known, slow = dict(before), (belief for belief in memory.beliefs if belief.correction.slow)
    return tuple([(belief.option.name, known.get(belief.option.name, now)) for belief in slow])


def believe(
    memory: Capacity,
    spec: ServiceSpec,
    lengths: Lengths,
    seen: Seen,
    model: EngineModel,
    engines: Mapping[str, Engines] = MappingProxyType({}),
    recalled: Recalled = NOTHING,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> Capacity:
    """Update the beliefs; a belief whose inputs did not change materially is retained.

    Other engines (another model, image or arguments) reset the corrections. No other edit does: otherwise raising
    `scaling.max` in an emergency would remove replicas. While the model has no time, capacities shrink as the work of a
    request grows. For a new or edited spec the result is empty then.

    `engines` are known by accelerator. `recalled` is what was learned before a restart; it is the first correction.
    """
    same, memory = memory.spec is spec or memory.spec == spec, _of_mix(memory, shares)
    by_spec = Engines(spec.batching)
    outdated = (_is_outdated(belief, engines.get(belief.option.name, by_spec)) for belief in memory.beliefs)
    if same and not moved(memory.lengths, lengths) and not any(outdated):
        return memory if all(belief.searched for belief in memory.beliefs) else _searched(memory, spec, model)
    mix = lengths.mix(seen.prompt_lengths, seen.output_lengths)
    known = memory if memory.spec is not None and _same_model(memory.spec, spec) else Capacity()
    judged_alike = memory.spec is not None and memory.spec.slo == spec.slo
    beliefs = []
    for option in spec.accelerators:
        old, its = known.belief(option.name), engines.get(option.name, by_spec)
        # Status also shows what this process has learned: it counts after a start only, until engines report facts.
        fresh = memory.spec is None or (old is not None and old.facts == EngineFacts() and old.correction.looks < 2)
        first = _first(spec, option, recalled) if fresh else Correction()
        # At an edit of the model, engines still report the old one.
        reported = its.facts if memory.spec is None or known is memory else None
        engine = replace(option, facts=(EngineFacts() if old is None else old.facts).updated(reported))
        correction = _kept(old, option, first, judged_alike)
        if old is not None and not same_law(spec, old.engine, engine):
            correction = first  # the old one was learned relative to another law
        belief = _belief(old, limited_to(spec, its.started), option, engine, mix, model, its, correction)
        if belief is None:
            return _estimated(memory, mix) if same else Capacity()
        beliefs.append(replace(belief, rate=belief.rate.of_mix(memory.shares)))
    return Capacity(spec, lengths, mix, tuple(beliefs), memory.shares)


def _kept(old: Belief | None, option: AcceleratorOption, first: Correction, judged_alike: bool) -> Correction:
    """What was learned of the same engines, as far as it holds for other objectives."""
    if old is None:
        return first
    correction = old.correction if _same_engines(old.option, option) else first
    return correction if judged_alike else correction.for_others()


def _of_mix(memory: Capacity, shares: Mapping[str, float]) -> Capacity:
    """Return the beliefs for other shares of the classes; unknown ones and small changes leave those of before.

    A change is small only where the rates stay, too: a class with few requests may bound those of all.
    """
    old = memory.shares
    if not shares or shares == old:
        return memory
    beliefs = tuple(replace(belief, rate=belief.rate.of_mix(shares)) for belief in memory.beliefs)
    rates = [(one.rate.rate_rps, other.rate.rate_rps) for one, other in zip(memory.beliefs, beliefs, strict=True)]
    near = old.keys() == shares.keys() and all(abs(shares[name] - old[name]) <= MATERIAL for name in shares)
    near = near and all(abs(rate - before) <= MATERIAL * before for before, rate in rates)
    return memory if near else replace(memory, beliefs=beliefs, shares=shares)


def _is_outdated(belief: Belief, engines: Engines) -> bool:
    """Whether what the model was asked about has changed."""
    asked = belief.started, belief.fast_loop, belief.scaled.measured
    return belief.drifted or asked != engines[:3] or belief.facts is not belief.facts.updated(engines.facts)


def _belief(
    old: Belief | None,
    spec: ServiceSpec,
    option: AcceleratorOption,
    engine: AcceleratorOption,
    mix: LengthMix,
    model: EngineModel,
    engines: Engines,
    correction: Correction,
) -> Belief | None:
    """Return what a replica carries now; None where no model time is left in this tick.

    `engine` is the accelerator with what its engines report.
    """
    fast_loop = engines.fast_loop
    if old is not None and old.scaled.measured != engines.benchmark:
        correction = replace(correction, load=FIRST_LOAD)  # it was learned relative to another prior
    elif old is not None and correction.looks and (old.fast_loop, old.started) != (fast_loop, spec.batching):
        correction = correction.for_others()
    slowness = correction.slowness
    found = model.best_limits(spec, engine, mix, slowness) if fast_loop else spec.batching
    retained = old.limits if old is not None and old.fast_loop and old.started == spec.batching else spec.batching
    limits = retained if found is None else found
    rate = model.rate(limited_to(spec, limits), engine, mix, slowness)
    scale = scaled(engines.benchmark, spec, engine, model, slowness, fast_loop)
    if rate is None or scale is None:
        return None
    if not correction.looks:
        correction = replace(correction, steps=replace(correction.steps, deviation=rate.deviation))
    fastest = slowness * math.exp(-REFUTED * correction.steps.deviation)
    hoped = rate if rate.feasible else model.rate(limited_to(spec, limits), engine, mix, fastest)
    return Belief(
        option,
        rate,
        slowness,
        correction,
        started=spec.batching,
        limits=limits,
        fast_loop=fast_loop,
        searched=found is not None,
        scaled=scale,
        facts=engine.facts,
        doubtful=hoped is None or (hoped.feasible and not rate.feasible),
    )


def scaled(
    measured: Measured | None,
    spec: ServiceSpec,
    option: AcceleratorOption,
    model: EngineModel,
    slowness: float,
    fast_loop: bool,
) -> Scaled | None:
    """Return the factor that makes the model reproduce the measurement; None where no model time is left this tick."""
    if measured is None:
        return Scaled()
    engine, mix = replace(spec, slo=measured.slo, batching=measured.batching), mix_of(measured)
    limits = model.best_limits(engine, option, mix, slowness) if fast_loop else measured.batching
    found = None if limits is None else model.rate(replace(engine, batching=limits), option, mix, slowness)
    if found is None:
        return None
    factor = measured.rate_rps / found.rate_rps if found.rate_rps > 0.0 else 0.0
    return Scaled(measured, factor, compared=True) if 0.0 < factor < math.inf else Scaled(measured)


def mix_of(measured: Measured) -> LengthMix:
    """Return the length mix of the requests of a benchmark."""
    cv = DEFAULT_CV if measured.length_cv is None else measured.length_cv
    return LengthMix.from_means(measured.prompt_tokens, measured.output_tokens, prompt_cv=cv, output_cv=cv)


def same_engines(old: ServiceSpec, new: ServiceSpec) -> bool:
    """Return whether an edit leaves the engines the same, on every accelerator that both specs list."""
    pairs = ((option, new.accelerator(option.name)) for option in old.accelerators)
    return _same_model(old, new) and all(option is None or _same_engines(before, option) for before, option in pairs)


def _same_model(old: ServiceSpec, new: ServiceSpec) -> bool:
    """Return whether both specs serve the same model with the same engine configuration."""
    same = old.uid == new.uid and old.model_uri == new.model_uri and old.max_model_len == new.max_model_len
    return same and old.quantization == new.quantization


def _same_engines(old: AcceleratorOption, new: AcceleratorOption) -> bool:
    """Return whether a replica is unchanged by an edit; its price and the maximum number do not matter."""
    return same_hardware(old, new) and old.revision == new.revision


def _first(spec: ServiceSpec, option: AcceleratorOption, recalled: Recalled) -> Correction:
    """Return the correction learned for such hardware before a restart; its number of windows is unknown."""
    used = spec.accelerator(recalled.accelerator)
    if used is None or not same_hardware(used, option):
        return Correction()
    steps, load = (NormalBelief(math.log(known), 0.15) for known in (recalled.slowness, recalled.gain))
    return Correction(steps, replace(load, deviation=FIRST_LOAD.deviation), looks=1)


def _searched(memory: Capacity, spec: ServiceSpec, model: EngineModel) -> Capacity:
    """Return the beliefs with the best limits added where an earlier tick had no time to search for them."""
    beliefs = []
    for belief in memory.beliefs:
        started, mix, engine = limited_to(spec, belief.started), memory.mix, belief.engine
        if not belief.searched and mix is not None:
            limits = model.best_limits(started, engine, mix, belief.slowness)
            rate = limits and model.rate(limited_to(spec, limits), engine, mix, belief.slowness)
            if not limits or not rate:
                return memory
            belief = replace(belief, rate=rate.of_mix(memory.shares), limits=limits, searched=True)
        beliefs.append(belief)
    return replace(memory, beliefs=tuple(beliefs))


def _estimated(memory: Capacity, mix: LengthMix) -> Capacity:
    """Return the beliefs for other lengths, on the assumption that a replica does as much work as before."""
    if memory.mix is None:
        return memory
    works = [belief.rate.relative_work(memory.mix, mix) for belief in memory.beliefs]
    beliefs = tuple(replace(belief, work=work) for belief, work in zip(memory.beliefs, works, strict=True))
    return replace(memory, beliefs=beliefs)


def limited_to(spec: ServiceSpec, limits: BatchingLimits) -> ServiceSpec:
    """Return the spec with these limits; usually they are the spec's own."""
    return spec if spec.batching == limits else replace(spec, batching=limits)
