"""What engines did, as evidence about what a replica carries.

Source: docs/designs/0021-refutable-belief.md, docs/designs/0014-probing.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.engine import EngineFacts, StepSums
from holdfast.domain.service import ServiceSpec
from holdfast.domain.valid_traffic import LARGEST, Seen
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import EngineModel, work_seconds
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.maths.normal_belief import NormalBelief
from holdfast.policy.estimate.evidence_window import LEAST_REQUESTS, EvidenceWindow
from holdfast.policy.estimate.replica_capacity import FIRST_LOAD, Belief, Capacity, Correction, limited_to

STEPS_DEVIATION, TPOT_DEVIATION, LOAD_DEVIATION = 0.05, 0.15, 0.25
"""How uncertain evidence is, as standard deviations of logarithms.

The first is for step times that plugins sum up, the second for step times that follow from TPOT. The third is for the
load at which requests were good or late.
"""

SATURATED_DEVIATION, SATURATED_SHARE = 0.2, 0.85
"""Share of the rate at which saturated replicas begin requests that they carry within the objectives, with the
deviation of its logarithm.
"""

BEHIND, CHANCE = 0.1, 3.0
"""Share of the arrivals, and deviations of their number, by which fewer must begin where replicas are saturated."""

UNEVEN = 1.25
"""Load of the busiest replica, relative to the mean, from which on the others may have room."""

LEAST_STEPS = 500.0
"""Engine steps below which their durations are not used; a busy engine makes that many in about ten seconds."""

UNDER_LOAD = 0.5
"""Share of the estimate below which late requests have other causes: step times show engines that are slower still."""

WELL_LOADED = 0.9
"""Share of its capacity that a replica must carry before more is tried.

So no size relies on far more than was ever observed.
"""

TRIED = 0.013
"""What is tried in a minute, as a difference of logarithms."""


@value
class StepEvidence:
    """What the engines of one accelerator did lately: requests that the mean replica began, TPOT, and steps.

    `tpot_seconds` is the mean of the median replica.
    `busiest` is the load of the busiest replica relative to the mean. `steps` are None where no plugin reports them.
    `saturated`: fewer requests begin than arrive, and others wait or are refused. `begun` requests were counted in all.
    """

    begun_rps: float
    begun: float = 0.0
    busiest: float = 1.0
    tpot_count: float = 0.0
    tpot_seconds: float = 0.0
    steps: StepSums | None = None
    saturated: bool = False


def step_evidence(seen: Seen, accelerator: str, replicas: int, undisturbed: bool) -> StepEvidence | None:
    """Return what fresh metrics show; None without replicas.

    TPOT counts only where the same replicas served the whole interval. Sums of steps tell of each step by itself.
    """
    counts = next((counts for name, counts in seen.by_accelerator if name == accelerator), None)
    if counts is None or replicas < 1 or not (seen.fresh and seen.interval_seconds > 0.0):
        return None
    return StepEvidence(
        begun_rps=counts.ttft_count / seen.interval_seconds / replicas,
        begun=counts.ttft_count,
        busiest=max(1.0, counts.busiest),
        tpot_count=counts.tpot_count if undisturbed else 0.0,
        tpot_seconds=counts.tpot_typical_seconds,
        steps=seen.steps_on(accelerator),
        saturated=undisturbed and _saturated(seen, replicas),
    )


def _saturated(seen: Seen, replicas: int) -> bool:
    """Return whether all replicas together begin fewer requests than arrive, clearly and by more than chance."""
    behind = seen.arrived - seen.total.ttft_count
    left = max(seen.total.waiting, seen.refused)
    clearly = behind > max(BEHIND * seen.arrived, CHANCE * math.sqrt(seen.arrived))
    return clearly and left >= max(float(replicas), 0.5 * behind) and seen.total.busiest < UNEVEN


def observe_saturation(memory: Capacity, evidence: StepEvidence, accelerator: str) -> Capacity:
    """Update the belief about the load that replicas carry, where they begin as many requests as they can.

    The objectives leave a share of that rate, which differs with the lengths. So the evidence is coarse, and it holds
    whatever the reason why engines carry less than the model says.
    """
    belief = memory.belief(accelerator)
    carried = SATURATED_SHARE * evidence.begun_rps
    if belief is None or not evidence.saturated or belief.work != 1.0 or belief.drifted or not carried > 0.0:
        return memory
    if not belief.modelled_rps > 0.0 or evidence.begun < LEAST_REQUESTS:
        return memory
    old, seen = belief.correction, math.log(carried / belief.modelled_rps)
    load = old.load.measured(seen, math.hypot(SATURATED_DEVIATION, evidence.begun**-0.5))
    return _with(memory, belief, replace(old, load=load, looks=old.looks + 1))


def measure_steps(memory: Capacity, evidence: StepEvidence, accelerator: str, model: EngineModel) -> Capacity:
    """Update the belief about step times; one that is refuted takes what was learned on top of it along."""
    spec, belief, mix = memory.spec, memory.belief(accelerator), memory.mix
    if spec is None or belief is None or mix is None or belief.work != 1.0:
        return memory
    measured = _measured(limited_to(spec, belief.limits), belief, mix, evidence, model)
    if measured is None:
        return memory
    old, steps = belief.correction, belief.correction.steps.measured(*measured)
    refuted = old.steps.refuted_by(*measured)
    load, looks = (FIRST_LOAD, 0) if refuted else (old.load, old.looks)
    return _with(memory, belief, Correction(steps, load, looks + 1, old.proven and not refuted))


def _measured(
    spec: ServiceSpec, belief: Belief, mix: LengthMix, evidence: StepEvidence, model: EngineModel
) -> tuple[float, float] | None:
    """Return the logarithm of (steps / the prior's steps), and its deviation; None without evidence."""
    evidence = replace(evidence, begun_rps=evidence.begun_rps / belief.engine.data)  # each engine has its share
    steps = evidence.steps
    summed = steps is not None and steps.steps >= LEAST_STEPS
    # The plugin uses the slack that TPOT has: the mean TPOT is its choice, and no measure of step times.
    told = evidence.tpot_count >= LEAST_REQUESTS and not (belief.fast_loop and not spec.batching_fixed)
    law = model.law(spec, belief.engine, mix, belief.slowness, evidence.begun_rps) if summed or told else None
    if law is None:
        return None
    return _of_steps(law, steps) if steps is not None and summed else _of_tpot(law, mix, evidence, belief.facts)


def _of_steps(law: StepLaw, steps: StepSums) -> tuple[float, float] | None:
    """Return the logarithm of measured seconds of steps relative to those of the law."""
    predicted = law.sums_seconds(steps)
    if not (0.0 < predicted < LARGEST and 0.0 < steps.seconds < LARGEST):
        return None
    return math.log(steps.seconds / predicted), STEPS_DEVIATION


def _of_tpot(law: StepLaw, mix: LengthMix, evidence: StepEvidence, facts: EngineFacts) -> tuple[float, float] | None:
    """Return the logarithm of the slowness at which steps last as long as the mean TPOT, at this rate of requests.

    A step of T seconds has the work of T x rate requests: T = slowness (c0 + T rate w), at any load and with any
    queue. Replicas are not loaded alike, so the rate is between that of the mean replica and that of the busiest one.
    A step gives one token and the drafts that are accepted.
    """
    seconds = evidence.tpot_seconds * facts.tokens_per_step
    work = seconds * evidence.begun_rps * work_seconds(law, mix.in_steps(facts.tokens_per_step))
    least, most = (law.c0 + work * busy for busy in (1.0, evidence.busiest))
    if not (0.0 < least <= most < LARGEST and 0.0 < seconds < LARGEST):
        return None
    middle, half = 0.5 * math.log(least * most), 0.5 * math.log(most / least)
    return math.log(seconds) - middle, math.hypot(TPOT_DEVIATION, half)


def observe_load(
    memory: Capacity, evidence: EvidenceWindow, accelerator: str, headroom_is_least: bool = False, useless: bool = False
) -> Capacity:
    """Update the belief about the load at which requests stay good, on the accelerator that served.

    `headroom_is_least`: requests have been good for so long that only the capacity estimate keeps the size as it is.
    `useless`: more replicas have not helped, so that late requests say nothing about the capacity.
    """
    spec, belief = memory.spec, memory.belief(accelerator)
    if spec is None or belief is None or belief.work != 1.0 or belief.drifted:
        return memory
    if evidence.verdicts.judged < LEAST_REQUESTS or evidence.replica_seconds <= 0.0:
        return memory
    old, good = belief.correction, evidence.verdicts.bad_share <= spec.slo.budget_share
    missed = not belief.rate.feasible and missed_by_far(spec, evidence)
    load = FIRST_LOAD if useless and not good else _load(spec, belief, evidence, headroom_is_least)
    proven = good or (old.proven and not missed)
    return _with(memory, belief, replace(old, load=load, looks=old.looks + 1, proven=proven))


def _load(spec: ServiceSpec, belief: Belief, evidence: EvidenceWindow, headroom_is_least: bool) -> NormalBelief:
    """Return the belief after the objective was met above the estimate, or missed below it.

    Other results agree with the estimate. The objective counts as met at the mean load, and as missed at the busiest
    replica's load: further misses come from a shortage. Sizes avoid loads above the estimate, so that a low estimate
    would never be corrected. So where headroom is at its minimum and at most half the allowed requests are bad, a
    slightly higher rate is tried.
    """
    old, estimated = belief.correction.load, max(belief.rate_rps, 1.0 / LARGEST)
    load, highest = evidence.rate_rps / estimated, evidence.highest_rps / estimated
    if load > 1.0 and evidence.verdicts.bad_share <= spec.slo.budget_share:
        return old.at_least(old.mean + math.log(load), LOAD_DEVIATION)
    if belief.rate.feasible and UNDER_LOAD < highest < 1.0 and missed_by_far(spec, evidence):
        return old.at_most(old.mean + math.log(highest), LOAD_DEVIATION)
    if headroom_is_least and load > WELL_LOADED and evidence.verdicts.bad_share <= spec.slo.budget_share / 2.0:
        return replace(old, mean=old.mean + TRIED)
    return old


def missed_by_far(spec: ServiceSpec, evidence: EvidenceWindow) -> bool:
    """Return whether more requests were late than the objective allows, by more than chance."""
    allowed = evidence.verdicts.judged * spec.slo.budget_share
    return evidence.verdicts.bad - evidence.failed > allowed + CHANCE * math.sqrt(allowed)


def _with(memory: Capacity, belief: Belief, correction: Correction) -> Capacity:
    changed = replace(belief, correction=correction)
    return replace(memory, beliefs=tuple(changed if old is belief else old for old in memory.beliefs))
