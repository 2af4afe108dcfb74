"""What engines with the plugin are told: the objectives as declared now, what to do in overload, a first step law.

They stand in a ConfigMap of the service, one key per accelerator, and in an annotation of each pod. Neither is part of
the pod template: an edited SLO reaches running engines, and replaces none.
"""

from __future__ import annotations

from dataclasses import astuple

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.enginemodel.prior import PriorSource
from holdfast.render.prior import declared_prior
from holdfast_engine.arithmetic import Law
from holdfast_engine.rules import Limits, Objectives, Overload


def engine_limits(
    service: LLMService,
    accelerator: Accelerator,
    version: int = 1,
    *,
    active_sequences: int | None = None,
    tokens_per_step: int | None = None,
) -> Limits:
    """The limits for engines of a service on one accelerator.

    The two bounds are what was decided while the engines serve, None for none; batching.mode Fixed overrides them.
    Depth and age of the queue are left to the engine, which knows what it can start in time.
    """
    spec = service.spec
    slo, batching = spec.slo, spec.batching
    fixed = batching.mode == "Fixed"
    return Limits(
        version=version,
        objectives=Objectives(slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds),
        active_sequences=batching.max_num_seqs if fixed else active_sequences,
        tokens_per_step=batching.max_num_batched_tokens if fixed else tokens_per_step,
        adapt=not fixed,
        overload=Overload(spec.overload),
        prior=_prior(service, accelerator),
    )


def limits_text(
    service: LLMService,
    accelerator: Accelerator,
    version: int,
    *,
    active_sequences: int | None = None,
    tokens_per_step: int | None = None,
) -> str:
    """The same as JSON, as an engine reads it (docs/engine.md)."""
    limits = engine_limits(
        service, accelerator, version, active_sequences=active_sequences, tokens_per_step=tokens_per_step
    )
    return limits.to_json()


def _prior(service: LLMService, accelerator: Accelerator) -> Law | None:
    """The law that stands in until an engine has measured its own; a guess of model or accelerator would be worse."""
    prior = declared_prior(service, accelerator)
    if prior.source is PriorSource.UNKNOWN:
        return None
    # Six digits: what goes around as JSON comes back as the same numbers.
    return Law(*(float(f"{coefficient:.6g}") for coefficient in astuple(prior.law)))
