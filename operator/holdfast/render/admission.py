"""vLLM's --max-num-queued-tokens from what is believed of an engine before its first request."""

from __future__ import annotations

import math
from functools import lru_cache

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.domain.service import Slo
from holdfast.enginemodel.admission import queued_tokens
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, PriorSource
from holdfast.enginemodel.working import working_point
from holdfast.render.context import Deployed
from holdfast.render.pod_template import inputs
from holdfast.render.prior import declared_prior

# Mean lengths of the Azure conversation trace of 2023.
TYPICAL_MIX = LengthMix.from_means(1155.0, 211.0)


def rollout_tokens(service: LLMService, accelerator: Accelerator, deployed: Deployed | None) -> int | None:
    """The limit that a rollout starting now would get; where none would start, the one that is deployed."""
    if deployed is not None and deployed.inputs == inputs(service, accelerator):
        return deployed.admission_tokens
    return admission_tokens(service, accelerator)


def admission_tokens(service: LLMService, accelerator: Accelerator, mix: LengthMix = TYPICAL_MIX) -> int | None:
    """Prompt tokens in prefill above which a replica refuses requests (docs/designs/0001-admission.md).

    None where the model or the accelerator is unknown, or cannot meet the objectives even alone: a limit from a
    guess would do more harm than none. Two digits, because that is what the prior is good for.
    """
    prior = declared_prior(service, accelerator)
    if prior.source is PriorSource.UNKNOWN:
        return None
    return _tokens(prior, _limits(service, prior), _objectives(service), mix)


@lru_cache(maxsize=1024)
def _tokens(prior: EnginePrior, limits: BatchLimits, slo: Slo, mix: LengthMix) -> int | None:
    point = working_point(prior.timer, mix, limits, prior.kv_tokens, slo, start=prior.law)
    if not point.capacity.feasible:
        return None
    tokens = queued_tokens(point, mix, limits, prior.kv_tokens, slo)
    return _two_digits(tokens) if math.isfinite(tokens) and tokens >= 1.0 else None


def _objectives(service: LLMService) -> Slo:
    slo = service.spec.slo
    return Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)


def _limits(service: LLMService, prior: EnginePrior) -> BatchLimits:
    batching = service.spec.batching
    return BatchLimits(
        batching.max_num_seqs or prior.max_num_seqs_default,
        batching.max_num_batched_tokens or prior.max_num_batched_tokens_default,
    )


def _two_digits(value: float) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return max(1, round(value / step) * step)
