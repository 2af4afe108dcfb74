"""The batching limits under which one engine carries most, by the capacity model.

Tokens per step are looked for from the start downwards only, so that no limit found here takes memory from the KV
cache; more of them than the default never carried materially more. Sequences stay as they are: fewer never carry more,
and protect an engine beyond its capacity only as long as the lengths stay what they are (docs/designs).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior
from holdfast.enginemodel.working import WorkingPoint, working_point

LEAST_TOKENS = 256
"""Fewer tokens in a step than this use no accelerator well."""

FALLEN = 0.9
"""The rate has one maximum over tokens per step: below this share of the best, smaller ones need not be looked at."""


@dataclass(frozen=True, slots=True)
class LimitsCandidate:
    """Limits and what an engine carries within them."""

    limits: BatchLimits
    point: WorkingPoint

    @property
    def rate_rps(self) -> float:
        return self.point.capacity.rate_rps


def candidates(prior: EnginePrior, start: BatchLimits, mix: LengthMix, slo: Slo) -> tuple[LimitsCandidate, ...]:
    """Limits worth considering, `start` (as a rule vLLM's defaults) first; some 10 ms each, seven at most."""
    tried = partial(_tried, prior, mix, slo)
    found = [tried(start)]
    tokens = start.max_num_batched_tokens // 2
    while tokens >= LEAST_TOKENS:
        found.append(tried(BatchLimits(start.max_num_seqs, tokens)))
        if found[-1].rate_rps < FALLEN * best(found).rate_rps:
            break
        tokens //= 2
    return tuple(found)


def best(found: tuple[LimitsCandidate, ...] | list[LimitsCandidate]) -> LimitsCandidate:
    """The one that carries most, of equals the first."""
    return max(found, key=lambda candidate: candidate.rate_rps)


def _tried(prior: EnginePrior, mix: LengthMix, slo: Slo, limits: BatchLimits) -> LimitsCandidate:
    return LimitsCandidate(limits, working_point(prior.timer, mix, limits, prior.kv_tokens, slo, start=prior.law))
