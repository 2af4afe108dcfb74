"""vLLM's --max-num-queued-tokens from what is believed of an engine before its first request."""

from __future__ import annotations

import math

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits, Capacity, capacity
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, PriorSource, engine_prior

# Within 15 % of the best cap on four workloads in simulation; from 1.2 on goodput can be 0.
SHARE_OF_TTFT_WORK = 0.6

# Mean lengths of the Azure conversation trace of 2023.
TYPICAL_MIX = LengthMix.from_means(1155.0, 211.0)


def admission_tokens(service: LLMService, accelerator: Accelerator, mix: LengthMix = TYPICAL_MIX) -> int | None:
    """Prompt tokens in prefill above which a replica refuses requests: 0.6 x TTFT x sustainable prompt tokens/s.

    None where the model or the accelerator is unknown, or cannot meet the objectives even alone: a limit from a
    guess would do more harm than none. Two digits, because that is what the prior is good for.
    """
    model = service.spec.model
    prior = engine_prior(model.uri, accelerator.name, accelerator.node_selector, accelerator.count, model.quantization)
    if prior.source is PriorSource.UNKNOWN:
        return None
    sustainable = _capacity(service, prior, mix)
    tokens = SHARE_OF_TTFT_WORK * service.spec.slo.ttft_seconds * sustainable.rate_rps * mix.prompt_tokens
    return _two_digits(tokens) if sustainable.feasible and math.isfinite(tokens) and tokens >= 1.0 else None


def _capacity(service: LLMService, prior: EnginePrior, mix: LengthMix) -> Capacity:
    slo, batching = service.spec.slo, service.spec.batching
    bounds = Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)
    limits = BatchLimits(
        (batching and batching.max_num_seqs) or prior.max_num_seqs_default,
        (batching and batching.max_num_batched_tokens) or prior.max_num_batched_tokens_default,
    )
    return capacity(prior.law, mix, limits, prior.kv_tokens, bounds)


def _two_digits(value: float) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return max(1, round(value / step) * step)
