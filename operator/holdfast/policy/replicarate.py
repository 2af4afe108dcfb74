"""The engine model as two questions: how much a replica carries, and how fast it would answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec, Slo
from holdfast.enginemodel.capacity import BatchLimits, capacity
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.steadystate import Engine, steady_state


@dataclass(frozen=True, slots=True)
class ReplicaRate:
    """Requests per second one replica carries within the objectives, what binds it, and how sure that is (0..1).

    `feasible` is False, and the rate 0, where not even a lone request would meet the objectives.
    """

    rate_rps: float
    bound_by: str
    feasible: bool
    confidence: float


class EngineModel(Protocol):
    """Pure answers about one replica; `slowness` stretches every step of it."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        """Return what the replica carries."""
        ...

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token at this rate; None where the rate is beyond what is stable."""
        ...


class StepLawModel:
    """The closed form of enginemodel, from the prior of model and accelerator."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        return _rate(_prior(spec.model_uri, option), spec.batching, mix, slowness, spec.slo)

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        prior = _prior(spec.model_uri, option)
        limits = _limits(prior, spec.batching)
        engine = Engine(
            prior.law.scaled(slowness), mix, limits.max_num_seqs, limits.max_num_batched_tokens, prior.kv_tokens
        )
        if not 0.0 <= rate_rps < engine.most_rate:
            return None
        return float(steady_state(engine, np.array([rate_rps])).step_seconds[0])


def _prior(model_uri: str, option: AcceleratorOption) -> EnginePrior:
    return engine_prior(model_uri, option.name, dict(option.node_selector), option.gpus_per_replica)


def _limits(prior: EnginePrior, batching: BatchingLimits) -> BatchLimits:
    return BatchLimits(
        batching.max_num_seqs or prior.max_num_seqs_default,
        batching.max_num_batched_tokens or prior.max_num_batched_tokens_default,
    )


@lru_cache(maxsize=8192)
def _rate(prior: EnginePrior, batching: BatchingLimits, mix: LengthMix, slowness: float, slo: Slo) -> ReplicaRate:
    answer = capacity(prior.law.scaled(slowness), mix, _limits(prior, batching), prior.kv_tokens, slo)
    feasible = answer.feasible and math.isfinite(answer.rate_rps) and answer.rate_rps > 0.0
    return ReplicaRate(answer.rate_rps if feasible else 0.0, str(answer.bound_by), feasible, prior.confidence)
