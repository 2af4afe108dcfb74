"""The limits for engines with the plugin: the objectives as declared now, what to do in overload, a first step law.

They stand in a ConfigMap of the service, one key per accelerator, and in an annotation of each pod. Neither is part of
the pod template: an edited SLO reaches running engines, and replaces none.
"""

from __future__ import annotations

from dataclasses import astuple

from holdfast.api.classes import RequestClass as DeclaredClass
from holdfast.api.llmservice import SLO, Accelerator, LLMService
from holdfast.api.quantities import parse_percent
from holdfast.enginemodel.prior import PriorSource
from holdfast.rendered.pools import role_of
from holdfast.rendered.prior import declared_class, declared_prior
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import UNBOUNDED, Claim, Kind, Limits, Objectives, Overload, RequestClass, Role


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
        classes=(
            *(request_class(slo, each) for each in slo.classes),
            *(request_class(slo, each, adapter=True) for each in spec.adapter_classes),
        ),
        claim=Claim(slo.claim or Claim.HEADER),
        active_sequences=batching.max_num_seqs if fixed else active_sequences,
        tokens_per_step=batching.max_num_batched_tokens if fixed else tokens_per_step,
        adapt=not fixed,
        overload=Overload(spec.overload),
        prior=_prior(service, accelerator),
        role=Role(role_of(service)),
    )


def request_class(slo: SLO, declared: DeclaredClass, *, adapter: bool = False) -> RequestClass:
    """A class with the bounds of the service where it has none of its own; Batch has none at all."""
    if declared.kind == "Batch":
        return RequestClass(declared.name, UNBOUNDED, declared.priority, Kind.BATCH)
    found = declared_class(slo, declared)
    least, most = (
        None if share is None else parse_percent(share) for share in (declared.min_share, declared.max_share)
    )
    bounds = Objectives(found.ttft_seconds, found.tpot_seconds, found.e2e_seconds)
    return RequestClass(found.name, bounds, found.priority, min_share=least, adapter=adapter, max_share=most)


def _prior(service: LLMService, accelerator: Accelerator) -> Law | None:
    """The law that stands in until an engine has measured its own; a guess of model or accelerator would be worse."""
    prior = declared_prior(service, accelerator)
    if prior.source is PriorSource.UNKNOWN:
        return None
    # Six digits: what goes around as JSON comes back as the same numbers.
    return Law(*(float(f"{coefficient:.6g}") for coefficient in astuple(prior.law)))
