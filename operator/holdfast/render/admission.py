"""vLLM's --max-num-queued-tokens from what is believed of an engine before its first request."""

from __future__ import annotations

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.enginemodel.admission import prior_tokens
from holdfast.rendered.context import Deployed
from holdfast.rendered.declared import inputs, revision
from holdfast.rendered.names import METRIC_REVISION_LABEL
from holdfast.rendered.prior import declared_objectives, declared_prior


def rollout_tokens(service: LLMService, accelerator: Accelerator, deployed: Deployed | None) -> int | None:
    """The limit that a rollout starting now would get; where none would start, the one that is deployed.

    A measured limit holds as long as the engines stay the same. The Rust front end knows no such limit.
    """
    if service.spec.engine.has_rust_front_end:
        return None
    if deployed is None:
        return admission_tokens(service, accelerator)
    kept = deployed.inputs == inputs(service, accelerator) or _measured(deployed, service, accelerator)
    return deployed.admission_tokens if kept else admission_tokens(service, accelerator)


def admission_tokens(service: LLMService, accelerator: Accelerator) -> int | None:
    """Prompt tokens in prefill above which a replica refuses requests (docs/designs/0001-admission.md).

    None where an engine is not expected to meet the objectives even alone. Of an unknown model or accelerator it is the
    limit of a guess: an engine without a limit collects a queue that never drains, and a wrong one is corrected.
    """
    prior = declared_prior(service, accelerator)
    batching = service.spec.batching
    limits = prior.limits(batching.max_num_seqs, batching.max_num_batched_tokens)
    return prior_tokens(prior, limits, declared_objectives(service.spec))


def _measured(deployed: Deployed, service: LLMService, accelerator: Accelerator) -> bool:
    same = f'"{METRIC_REVISION_LABEL}":"{revision(service, accelerator)}"'
    return deployed.admission_changed_at is not None and same in deployed.template_json
