"""vLLM's --max-num-queued-tokens and --max-num-seqs from what is believed of an engine before its first request."""

from __future__ import annotations

import math

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.domain.service import BatchingLimits, Slo
from holdfast.enginemodel.admission import intake
from holdfast.enginemodel.prior import engine_prior
from holdfast.render.context import Admission, Deployed
from holdfast.render.pod_template import inputs


def rollout_admission(service: LLMService, accelerator: Accelerator, deployed: Deployed | None) -> Admission | None:
    """The limits that a rollout starting now would get; where none would start, those that are deployed."""
    if deployed is not None and deployed.inputs == inputs(service, accelerator):
        return deployed.admission
    return admission(service, accelerator)


def admission(service: LLMService, accelerator: Accelerator) -> Admission | None:
    """What a replica takes on before it refuses requests or lets them wait (docs/designs/0001-admission.md).

    None where `intake` knows none. Queued tokens have two digits, because that is what the prior is good for.
    """
    model, given = service.spec.model, service.spec.batching
    prior = engine_prior(model.uri, accelerator.name, accelerator.node_selector, accelerator.count, model.quantization)
    batching = BatchingLimits(given.max_num_seqs, given.max_num_batched_tokens) if given else BatchingLimits()
    found = intake(prior, batching, _objectives(service))
    return Admission(_two_digits(found.queued_tokens), found.active_sequences) if found else None


def _objectives(service: LLMService) -> Slo:
    slo = service.spec.slo
    return Slo(slo.ttft_seconds, slo.tpot_seconds, slo.objective_share, slo.window_seconds, slo.e2e_seconds)


def _two_digits(value: float) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return max(1, round(value / step) * step)
