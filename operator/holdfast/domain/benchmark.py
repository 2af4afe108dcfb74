"""A benchmark for decisions: what it measures, the state of its run, and the measured capacity of one replica."""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import astuple, field
from functools import lru_cache

from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec, Slo
from holdfast.domain.value import value


def tokens_per_dollar(tokens_per_second: float, dollars_per_hour: float) -> float:
    """Tokens per dollar at this rate: rate x 3600 / price of an hour; NaN if the price is not positive."""
    return tokens_per_second * 3600.0 / dollars_per_hour if dollars_per_hour > 0.0 else math.nan


class Phase(enum.StrEnum):
    """Phase of a benchmark."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@value
class Remembered:
    """The newest run as recorded in status; `run` is the digest of its spec."""

    phase: Phase = Phase.PENDING
    run: str = ""


class JobState(enum.Enum):
    """State of a run's Job in the API server. A `LEAVING` Job must be gone before its name can be reused.

    `BROKEN`: the run's own engine crash-loops, and nothing was measured.
    """

    ABSENT = "absent"
    LEAVING = "leaving"
    ACTIVE = "active"
    BROKEN = "broken"
    ENDED = "ended"
    TIMED_OUT = "timed out"
    FOREIGN = "foreign"


@value
class JobSeen:
    """A Job, and after its end the termination message of its container and a description of the outcome."""

    state: JobState
    message: str = ""
    last_words: str = ""


@value
class Engines:
    """The measured replicas of a service by accelerator, and the user traffic they receive besides.

    `own`: not the serving replicas, but an engine that the run started. `digest` changes with everything the result
    depends on: engine, limits and objectives; empty if there are several accelerators or none.
    """

    replicas: tuple[tuple[str, int], ...]
    generation: int
    other_rps: float = 0.0
    own: bool = False
    digest: str = ""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.replicas)

    @property
    def accelerator(self) -> str:
        """The accelerator of all of them; empty if there are several or none."""
        return self.replicas[0][0] if len(self.replicas) == 1 else ""


@value
class EngineKind:
    """What makes two replicas comparable: model, quantization and accelerator. Limits and lengths are separate."""

    model_uri: str
    quantization: str | None
    accelerator: str
    resource: str
    gpus_per_replica: int
    node_selector: tuple[tuple[str, str], ...]
    pipeline: int = 1
    data: int = 1

    @classmethod
    def of(cls, spec: ServiceSpec, option: AcceleratorOption) -> EngineKind:
        """A replica of a service on one of its accelerators."""
        model, sharing = (spec.model_uri, spec.quantization), (option.pipeline, option.data)
        return cls(*model, option.name, option.resource, option.gpus_per_replica, option.node_selector, *sharing)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for it."""
        return _digest(self)


@lru_cache(maxsize=8192)  # asked of every service at every tick
def _digest(kind: EngineKind) -> str:
    *facts, pipeline, data = astuple(kind)
    # Results that were stored before engines had these two keep their digest.
    sharing = [] if pipeline == data == 1 else [pipeline, data]
    return hashlib.sha256(json.dumps([*facts, *sharing]).encode()).hexdigest()[:12]


@value
class Measured:
    """Requests per second that one replica was measured to carry within the objectives `slo`, with its standard error.

    `engine` is the digest of its kind. `length_cv` None: lengths were drawn from a trace. `measured_at` is in seconds
    since the epoch.
    """

    benchmark: str
    engine: str
    accelerator: str
    rate_rps: float
    standard_error_rps: float
    measured_at: float
    slo: Slo
    prompt_tokens: float
    output_tokens: float
    length_cv: float | None = 0.0
    batching: BatchingLimits = field(default_factory=BatchingLimits)


def newest(results: Iterable[Measured], spec: ServiceSpec) -> tuple[Measured, ...]:
    """Return, for each accelerator of a service, the newest result of an engine like the service's own."""
    found = newest_by_engine(results)
    kinds = (EngineKind.of(spec, option).digest for option in spec.accelerators)
    return tuple(found[kind] for kind in kinds if kind in found) if found else ()


def newest_by_engine(results: Iterable[Measured]) -> dict[str, Measured]:
    """Return the newest result for each kind of engine, by the digest of the engine."""
    found: dict[str, Measured] = {}
    for measured in results:
        if measured.engine not in found or found[measured.engine].measured_at < measured.measured_at:
            found[measured.engine] = measured
    return found
