"""The status of an LLMBenchmark: what was measured, with which engines, and what that says of one replica."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from holdfast.api.fields import map_keyed_by
from holdfast.api.status import (
    NOT_OBSERVED,
    Attainment,
    ConditionStatus,
    Count,
    ExactSeconds,
    Figure,
    Observed,
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

    In a tuning run, those of the confirming requests at the best rate.
    """

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    saturation_rps: Figure | None = None
    """Highest tested rate, in requests per second, that the target serves without a growing queue."""
    at_objective_rps: Figure | None = None
    """Highest tested rate, in requests per second, at which the objective is attained. In a tuning run, with the best
    limits, confirmed with new requests.
    """
    limits: Word | None = None
    """Best batching limits of a tuning run, as sequences / tokens per engine step."""
    max_num_seqs: Count | None = None
    """Best limit of sequences in one engine step, of a tuning run."""
    max_num_batched_tokens: Count | None = None
    """Best limit of tokens in one engine step, of a tuning run."""
    vllm_flags: Sentence | None = None
    """The best limits as flags of vllm serve."""
    patch: Sentence | None = None
    """The best limits as a JSON merge patch of the LLMService."""
    trials: Count | None = None
    """Number of trials of the tuning run."""
    operating_range: Word | None = None
    """Recommended operating range in requests per second: 50 to 70 % of saturation."""
    attainment: Attainment | None = None
    """Share of all requests that met all objectives, such as 99.5%."""
    goodput_rps: Figure | None = None
    """Requests per second that met all objectives."""
    output_tokens_per_second: Figure | None = None
    """Output tokens per second, of all requests together."""
    ttft_p50_seconds: Seconds | None = None
    """Median (50th percentile) time to first token."""
    ttft_p95_seconds: Seconds | None = None
    """95th percentile of the time to first token."""
    ttft_p99_seconds: Seconds | None = None
    """99th percentile of the time to first token."""
    tpot_p50_seconds: Seconds | None = None
    """Median (50th percentile) time per output token."""
    tpot_p95_seconds: Seconds | None = None
    """95th percentile of the time per output token."""
    tpot_p99_seconds: Seconds | None = None
    """99th percentile of the time per output token."""
    concurrency_p50: Figure | None = None
    """Median over time of the requests under way at once."""
    concurrency_p90: Figure | None = None
    """90th percentile over time of the requests under way at once."""
    concurrency_p99: Figure | None = None
    """99th percentile over time of the requests under way at once."""
    requests: Count | None = None
    """Number of requests that were counted."""
    bad: Sentence | None = None
    """Numbers of requests that were not good, by cause."""


class BenchmarkEngines(StatusPart):
    """Replicas of the service during the run."""

    accelerator: Word | None = None
    """Accelerator of the replicas. Absent: they ran on several accelerators."""
    replicas: Count = 0
    """Number of ready replicas when the run began."""
    generation: Count = 0
    """metadata.generation of the service when the run began."""
    digest: Word | None = None
    """Digest of everything that the result depends on: engine, limits and objectives of the service."""
    other_rps: Figure | None = None
    """Requests per second of other traffic when the run began."""
    moved: Sentence | None = None
    """What changed during the run; the result then gives no per-replica capacity."""


class MeasuredCapacity(StatusPart):
    """Measured capacity of one replica within the objectives; services with the same engine are sized from it."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    model: Name
    """The model, as in spec.model.uri of the service."""
    accelerator: Word
    """Name of the accelerator."""
    engine: Word
    """Digest of model, quantization and accelerator: services in this namespace with the same use this result."""
    service: Name | None = None
    """Name of the measured service."""
    build: Word | None = None
    """Digest of the engine without its limits: image, arguments and pod template."""
    per_replica_rps: Figure
    """Most requests per second that one replica serves within the objectives."""
    standard_error_rps: Figure
    """Standard error of perReplicaRps, in requests per second."""
    measured_at: Timestamp
    """When it was measured."""
    replicas: Count
    """Number of replicas that were measured together."""
    ttft_seconds: ExactSeconds
    """Objective of the run: time to first token."""
    tpot_seconds: ExactSeconds
    """Objective of the run: time per output token."""
    e2e: ExactSeconds | None = Field(default=None, alias="e2e")
    """Objective of the run: end-to-end time."""
    objective: Attainment
    """Share of good requests that the run aimed at."""
    prompt_tokens: Figure
    """Mean length of the prompts in tokens."""
    output_tokens: Figure
    """Mean length of the answers in tokens."""
    length_cv: Figure | None = None
    """Coefficient of variation (standard deviation / mean) of both lengths. Absent: lengths came from a trace."""
    max_num_seqs: Count | None = None
    """Most sequences in one engine step; vLLM's own default when absent."""
    max_num_batched_tokens: Count | None = None
    """Most tokens in one engine step; vLLM's own default when absent."""


class LLMBenchmarkStatus(StatusPart):
    """Observed state; written by the operator only."""

    observed_generation: Observed = NOT_OBSERVED
    """Newest metadata.generation of the spec that the operator has seen."""
    phase: Phase = "Pending"
    """Phase of the run: Pending, Running, Succeeded or Failed."""
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=8, json_schema_extra=map_keyed_by("type"))] = ()
    """Conditions. Complete: True once measured, False if the run failed, Unknown until then. CapacityInUse: whether
    sizing starts from status.capacity.
    """
    target: Name | None = None
    """Name of the target service, or the target URL."""
    run: Word | None = None
    """Digest of the spec that was run. The same spec never runs twice."""
    job: Word | None = None
    """Name of the Job of this run; its log has the full report for a day."""
    config_map: Name | None = None
    """ConfigMap with the result: summary.json, and trials.csv of a sweep."""
    started_at: Timestamp | None = None
    """When the Job was created."""
    finished_at: Timestamp | None = None
    """When the operator saw that the Job ended."""
    engines: BenchmarkEngines | None = None
    """Replicas of the service during the run."""
    result: BenchmarkResult | None = None
    """Measurements of the run."""
    capacity: MeasuredCapacity | None = None
    """Measured capacity of one replica within the objectives. Present after a tuning run, or after a sweep during which
    the engines did not change.
    """
