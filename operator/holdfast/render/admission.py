"""vLLM's --max-num-queued-tokens and --max-num-seqs from what is believed of an engine before its first request."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.domain.service import Slo
from holdfast.enginemodel.admission import active_sequences, queued_tokens
from holdfast.enginemodel.capacity import BatchLimits, Bound
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, PriorSource, engine_prior
from holdfast.enginemodel.working import working_point
from holdfast.render.context import Admission, Deployed
from holdfast.render.pod_template import inputs

# Mean lengths of the Azure conversation trace of 2023.
TYPICAL_MIX = LengthMix.from_means(1155.0, 211.0)


def rollout_admission(service: LLMService, accelerator: Accelerator, deployed: Deployed | None) -> Admission | None:
    """The limits that a rollout starting now would get; where none would start, those that are deployed."""
    if deployed is not None and deployed.inputs == inputs(service, accelerator):
        return deployed.admission
    return admission(service, accelerator)


def admission(service: LLMService, accelerator: Accelerator, mix: LengthMix = TYPICAL_MIX) -> Admission | None:
    """What a replica takes on before it refuses requests or lets them wait (docs/designs/0001-admission.md).

    None where the model or the accelerator is unknown, or cannot meet the objectives even alone: a limit from a
    guess would do more harm than none. Queued tokens have two digits, because that is what the prior is good for.
    """
    model = service.spec.model
    prior = engine_prior(model.uri, accelerator.name, accelerator.node_selector, accelerator.count, model.quantization)
    if prior.source is PriorSource.UNKNOWN:
        return None
    fixed = service.spec.batching is not None and service.spec.batching.max_num_seqs is not None
    return _admission(prior, _limits(service, prior), _objectives(service), mix, fixed)


@lru_cache(maxsize=1024)
def _admission(prior: EnginePrior, limits: BatchLimits, slo: Slo, mix: LengthMix, fixed: bool) -> Admission | None:
    point = working_point(prior.timer, mix, limits, prior.kv_tokens, slo, start=prior.law)
    if not point.capacity.feasible:
        return None
    sequences = active_sequences(point)
    bounded = not fixed and point.capacity.bound_by is Bound.TPOT and sequences < limits.max_num_seqs
    if bounded:
        limits = replace(limits, max_num_seqs=sequences)
    tokens = queued_tokens(point, mix, limits, prior.kv_tokens, slo)
    if not (math.isfinite(tokens) and tokens >= 1.0):
        return None
    return Admission(_two_digits(tokens), sequences if bounded else None)


def _objectives(service: LLMService) -> Slo:
    slo = service.spec.slo
    return Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)


def _limits(service: LLMService, prior: EnginePrior) -> BatchLimits:
    batching = service.spec.batching
    return BatchLimits(
        (batching and batching.max_num_seqs) or prior.max_num_seqs_default,
        (batching and batching.max_num_batched_tokens) or prior.max_num_batched_tokens_default,
    )


def _two_digits(value: float) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return max(1, round(value / step) * step)
