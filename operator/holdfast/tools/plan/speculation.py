"""What speculative decoding gains and where it loses, for each accelerator of a plan, by the closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.speculation import NO_SPECULATION, Speculation
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, option_prior
from holdfast.enginemodel.speculation import verifying
from holdfast.enginemodel.steadystate import Engine, steady_state
from holdfast.enginemodel.working import law_at, working_point
from holdfast.tools.plan.plan import MOST_PAIRS
from holdfast.tools.plan.rows import Offer
from holdfast.tools.plan.spec_bounds import least_size
from holdfast.twin.replica.capacity import LengthPairs, fitting, pairs


@dataclass(frozen=True, slots=True)
class Decoding:
    """One accelerator with `drafted` tokens a step: what a replica carries, how many it takes, and TPOT.

    `replicas` is None where the objectives cannot be met. `tpot_seconds` is the mean with the plan's replicas, None
    where they would not keep up.
    """

    drafted: int
    rate_rps: float
    replicas: int | None
    tpot_seconds: float | None


@dataclass(frozen=True, slots=True)
class Speculated:
    """An accelerator of a plan without and with drafts.

    From `loses_from` sequences at once on, a token of a step of decodes takes longer with drafts than without; None: at
    no number up to `sequences`, the most that fit a step and the KV cache.
    """

    accelerator: str
    sequences: int
    plain: Decoding
    drafting: Decoding
    loses_from: int | None


def speculated(
    spec: ServiceSpec, rate_rps: float, lengths: LengthPairs, found: Sequence[Offer], speculation: Speculation
) -> tuple[Speculated, ...]:
    """The first choice of each accelerator, one with a size before others, without and with drafts."""
    first = {offer.accelerator: offer for offer in sorted(reversed(found), key=lambda offer: bool(offer.replicas))}
    options = [option for option in spec.accelerators if option.name in first]
    return tuple(_speculated(spec, option, first[option.name], rate_rps, lengths, speculation) for option in options)


def _speculated(
    spec: ServiceSpec,
    option: AcceleratorOption,
    offer: Offer,
    rate_rps: float,
    lengths: LengthPairs,
    speculation: Speculation,
) -> Speculated:
    prior = option_prior(spec.model_uri, option, spec.quantization)
    limits = prior.limits(offer.limits.max_num_seqs, offer.limits.max_num_batched_tokens)
    prior = replace(prior, kv_tokens=prior.kv_tokens_with(limits))
    mix = LengthMix.from_pairs(pairs(fitting(lengths, prior.kv_tokens))[:MOST_PAIRS])
    plain, drafting = (
        _decoding(spec, option, prior, limits, mix, rate_rps, offer.replicas, each)
        for each in (NO_SPECULATION, speculation)
    )
    mean_kv = mix.kv_token_steps / mix.output_tokens
    # A step computes a token and its drafts of each sequence, whose KV cache must have room.
    in_a_step = limits.max_num_batched_tokens // (1 + speculation.tokens)
    most = max(1, min(limits.max_num_seqs, in_a_step, int(prior.kv_tokens / mean_kv)))
    return Speculated(option.name, most, plain, drafting, _loses_from(prior.timer, speculation, mean_kv, most))


def _decoding(
    spec: ServiceSpec,
    option: AcceleratorOption,
    prior: EnginePrior,
    limits: BatchLimits,
    mix: LengthMix,
    rate_rps: float,
    planned: int | None,
    speculation: Speculation,
) -> Decoding:
    """With the replicas of the plan, else with as many as it needs."""
    timer, gain = verifying(prior.timer, speculation), speculation.tokens_per_step
    slo, steps = replace(spec.slo, tpot_seconds=spec.slo.tpot_seconds * gain), mix.in_steps(gain)
    point = working_point(timer, steps, limits, prior.kv_tokens, slo, start=prior.law)
    carried = point.capacity.rate_rps * prior.engines
    needed = least_size(spec, option, rate_rps, carried) if carried > 0.0 else None
    each = rate_rps / (planned or needed or 1) / prior.engines
    law = law_at(timer, steps, limits, prior.kv_tokens, each, point.law)
    engine = Engine(law, steps, limits.max_num_seqs, limits.max_num_batched_tokens, prior.kv_tokens)
    keeps_up = each < engine.most_rate
    step = float(steady_state(engine, np.array([each])).step_seconds[0]) if keeps_up else None
    return Decoding(speculation.tokens, carried, needed, None if step is None else step / gain)


def _loses_from(timer: EngineTimer, speculation: Speculation, mean_kv: float, most: int) -> int | None:
    """The least number of sequences with which a step of decodes gives its tokens later with drafts."""
    drafting, gain = verifying(timer, speculation), speculation.tokens_per_step
    for decodes in range(1, most + 1):
        if drafting.step_seconds((), decodes, mean_kv) >= gain * timer.step_seconds((), decodes, mean_kv):
            return decodes
    return None


HEADS = (
    "accelerator",
    "drafted\na step",
    "req/s a replica\n(formula)",
    "replicas\n(formula)",
    "TPOT, ms\nat this load",
)


def table(found: Sequence[Speculated]) -> list[list[str]]:
    """Two rows of each accelerator: without and with drafts."""
    return [_row(each.accelerator, decoding) for each in found for decoding in (each.plain, each.drafting)]


def _row(accelerator: str, decoding: Decoding) -> list[str]:
    return [
        accelerator,
        f"{decoding.drafted}",
        f"{decoding.rate_rps:.2f}",
        "-" if decoding.replicas is None else f"{decoding.replicas}",
        "-" if decoding.tpot_seconds is None else f"{1000.0 * decoding.tpot_seconds:.1f}",
    ]


def told(found: Sequence[Speculated]) -> list[str]:
    """What drafts gain at this load, and from how many sequences on they lose."""
    return [f"{each.accelerator}: {_gain(each)}; {_loss(each)}" for each in found]


def _gain(each: Speculated) -> str:
    if each.plain.replicas is None:
        return f"without drafts no size keeps the objectives{', nor with them' * (each.drafting.replicas is None)}"
    before, after = each.plain.tpot_seconds, each.drafting.tpot_seconds
    if before is None or after is None:
        return "without drafts it does not keep up" if before is None else "with drafts it does not keep up"
    times, how = max(before / after, after / before), "fast" if before >= after else "slow"
    return f"at this load drafts make answers {times:.2f} times as {how}"


def _loss(each: Speculated) -> str:
    if each.loses_from is None:
        return f"they gain with any number of sequences up to {each.sequences}, the most in a step"
    if each.loses_from == 1:
        return "they lose even with one sequence at a time"
    return f"from {each.loses_from} sequences at once on they lose, as verifying is then compute-bound"
