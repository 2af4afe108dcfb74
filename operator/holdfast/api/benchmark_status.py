"""The status of an LLMBenchmark: what was measured, with which engines, and what that says of one replica."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from holdfast.api.fields import map_keyed_by
from holdfast.api.status import (
    Attainment,
    ConditionStatus,
    Count,
    ExactSeconds,
    Figure,
    Seconds,
    Sentence,
    StatusPart,
    Timestamp,
    Word,
)

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
Name = Annotated[str, StringConstraints(max_length=512)]


class BenchmarkResult(StatusPart):
    """What was measured; in a sweep, latencies and attainment at the highest rate that attains the objective.

    Of a run that tunes, those of other requests at the rate that was found.
    """

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    saturation_rps: Figure | None = None
    """Highest rate tried that the target carries without falling behind, in requests per second."""
    at_objective_rps: Figure | None = None
    """Highest rate tried at which the objective is attained; of a run that tunes, with the best limits, where
    other requests confirmed it.
    """
    limits: Word | None = None
    """Sequences / tokens per step that carry most, of a run that tunes."""
    max_num_seqs: Count | None = None
    """The first of them."""
    max_num_batched_tokens: Count | None = None
    """The second of them."""
    vllm_flags: Sentence | None = None
    """The same as vLLM takes it."""
    patch: Sentence | None = None
    """The same as a merge patch of the LLMService."""
    trials: Count | None = None
    """Loads that were sent to find them."""
    operating_range: Word | None = None
    """50 to 70 % of saturation, where a target is best run."""
    attainment: Attainment | None = None
    """Good requests of all."""
    goodput_rps: Figure | None = None
    """Good requests per second."""
    output_tokens_per_second: Figure | None = None
    """Output tokens per second, of all requests together."""
    ttft_p50_seconds: Seconds | None = None
    """Median time to first token."""
    ttft_p95_seconds: Seconds | None = None
    """95th percentile of the time to first token."""
    ttft_p99_seconds: Seconds | None = None
    """99th percentile of the time to first token."""
    tpot_p50_seconds: Seconds | None = None
    """Median time per output token."""
    tpot_p95_seconds: Seconds | None = None
    """95th percentile of the time per output token."""
    tpot_p99_seconds: Seconds | None = None
    """99th percentile of the time per output token."""
    requests: Count | None = None
    """Requests that were counted."""
    bad: Sentence | None = None
    """Requests that were not good, by cause."""


class BenchmarkEngines(StatusPart):
    """The replicas of the service while it is measured."""

    accelerator: Word | None = None
    """Accelerator of all of them; absent where there are several."""
    replicas: Count = 0
    """Replicas that served when the run began."""
    generation: Count = 0
    """Generation of the service."""
    digest: Word | None = None
    """Of what the result depends on: engine, limits and objectives; other edits of the service leave it as it is."""
    other_rps: Figure | None = None
    """Requests per second that arrived besides, when the run began."""
    moved: Sentence | None = None
    """What changed while it ran; the result then says nothing of one replica."""


class MeasuredCapacity(StatusPart):
    """What one replica carries within the objectives; services with the same engine start from it."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    model: Name
    """The model."""
    accelerator: Word
    """The accelerator."""
    engine: Word
    """Digest of model, quantization and accelerator: services of this namespace with the same take this result."""
    service: Name | None = None
    """The service that was measured."""
    build: Word | None = None
    """Digest of all that makes its engine but limits, such as image and arguments."""
    per_replica_rps: Figure
    """Requests per second of one replica."""
    standard_error_rps: Figure
    """Its standard error."""
    measured_at: Timestamp
    """When it was measured."""
    replicas: Count
    """Replicas that were measured together."""
    ttft_seconds: ExactSeconds
    """Bound of a good request."""
    tpot_seconds: ExactSeconds
    """Bound of a good request."""
    e2e: ExactSeconds | None = Field(default=None, alias="e2e")
    """Bound of a good request."""
    objective: Attainment
    """Share of good requests that was attained."""
    prompt_tokens: Figure
    """Tokens of the mean prompt."""
    output_tokens: Figure
    """Tokens of the mean answer."""
    length_cv: Figure | None = None
    """Deviation / mean of both; absent where lengths were drawn from a trace."""
    max_num_seqs: Count | None = None
    """Most sequences in one engine step; vLLM's own default when absent."""
    max_num_batched_tokens: Count | None = None
    """Most tokens in one engine step; vLLM's own default when absent."""


class LLMBenchmarkStatus(StatusPart):
    """What is; written by the operator only."""

    observed_generation: Count = 0
    """Newest generation of the spec that the operator has seen."""
    phase: Phase = "Pending"
    """Pending, Running, Succeeded or Failed."""
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=8, json_schema_extra=map_keyed_by("type"))] = ()
    """Complete: True once measured, False where that failed, Unknown until then. CapacityInUse: whether sizing starts
    from capacity.
    """
    target: Name | None = None
    """Name of the service, or the address."""
    run: Word | None = None
    """Digest of the spec that was run: the same never runs again."""
    job: Word | None = None
    """The Job of this run; its log holds the full report for a day."""
    config_map: Name | None = None
    """ConfigMap with the result: summary.json, and trials.csv of a sweep."""
    started_at: Timestamp | None = None
    """When the Job was made."""
    finished_at: Timestamp | None = None
    """When its end was seen."""
    engines: BenchmarkEngines | None = None
    """The replicas of the service while it is measured."""
    result: BenchmarkResult | None = None
    """What was measured."""
    capacity: MeasuredCapacity | None = None
    """What one replica carries within the objectives: of a sweep that found it with engines that stayed the same, or
    of a run that tunes.
    """
