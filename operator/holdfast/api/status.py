"""The status of an LLMService: SI units and shares inside, rounded and readable outside.

Two significant digits are what a person acts on, and what keeps a quiet service from rewriting its status.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

from holdfast.api.conditions import Condition
from holdfast.api.fields import map_keyed_by
from holdfast.api.quantities import format_duration
from holdfast.api.rules import ApiModel


def two_digits(value: float) -> float | None:
    """A number rounded to two significant digits; None where it is not finite."""
    rounded = float(f"{value:.2g}")
    # The largest floats round up to infinity.
    return rounded if math.isfinite(rounded) else None


def three_digits(value: float) -> float | None:
    """A number rounded to three significant digits; None where it is not finite."""
    rounded = float(f"{value:.3g}")
    return rounded if math.isfinite(rounded) else None


def dollars(value: float) -> float | None:
    """An amount rounded to cents, or to two significant digits below one dollar; None where it is not finite."""
    return round(value, 2) if math.isfinite(value) and abs(value) >= 1 else two_digits(value)


def duration(seconds: float) -> str | None:
    """A duration of two significant digits such as 410ms; None where there is none (NaN, negative, over 30 years)."""
    rounded = two_digits(seconds)
    return format_duration(rounded) if rounded is not None and 0 <= rounded <= 1e9 else None


@lru_cache(maxsize=4096)
def attainment(share: float) -> str | None:
    """A share as a percentage with two significant digits of what is missing: 0.9987 is 99.87%."""
    if not math.isfinite(share) or not 0 <= share <= 1:
        return None
    missing = float(f"{100 * (1 - share):.2g}")
    # One bad request in a million is not 100%: six decimals keep it visible.
    return f"{100 - missing:.6f}".rstrip("0").rstrip(".") + "%"


def percent(share: float) -> str | None:
    """A share as whole percents; None where it is not finite."""
    return f"{max(-999, round(100 * share))}%" if math.isfinite(share) else None


def _text(length: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "maxLength": length})


_NUMBER = WithJsonSchema({"type": "number"})
Rate = Annotated[float, PlainSerializer(two_digits), _NUMBER]
Figure = Annotated[float, PlainSerializer(three_digits), _NUMBER]
Quantile = Annotated[float, PlainSerializer(lambda share: round(share, 4) if math.isfinite(share) else None), _NUMBER]
Dollars = Annotated[float, PlainSerializer(dollars), _NUMBER]
Seconds = Annotated[float, PlainSerializer(duration), _text(16)]
ExactSeconds = Annotated[float, PlainSerializer(format_duration), _text(16)]
Attainment = Annotated[float, PlainSerializer(attainment), _text(16)]
Percent = Annotated[float, PlainSerializer(percent), _text(16)]
Count = Annotated[int, Field(ge=0)]
NOT_OBSERVED = -1
"""Generation in the status of an object that the operator has not seen yet."""
Observed = Annotated[int, Field(ge=NOT_OBSERVED)]
Word = Annotated[str, StringConstraints(max_length=63)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 40})]


class StatusPart(ApiModel):
    """A part of the status; what is not known is left out."""

    def to_dict(self) -> dict[str, Any]:
        """The part as the API server stores it."""
        pruned = _pruned(self.model_dump(by_alias=True))
        return pruned if isinstance(pruned, dict) else {}

    @classmethod
    def figures(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What `cls(**values).to_dict()` says of a part of plain figures: unchecked, and at a fraction of the cost."""
        said = {name: write(values[field]) for field, name, write in _writers(cls) if values.get(field) is not None}
        return {name: figure for name, figure in said.items() if figure is not None}


Writer = Callable[[Any], Any]


@cache
def _writers(part: type[StatusPart]) -> tuple[tuple[str, str, Writer], ...]:
    """Field, name outside and serializer of each field of a part."""
    return tuple((name, str(field.alias), _writer(field.annotation)) for name, field in part.model_fields.items())


def _writer(annotation: object) -> Writer:
    """The serializer of a field that may be absent: `Annotated[..., PlainSerializer(...)] | None`."""
    marks = (mark for choice in get_args(annotation) for mark in getattr(choice, "__metadata__", ()))
    return next((cast("Writer", mark.func) for mark in marks if isinstance(mark, PlainSerializer)), lambda value: value)


class ReplicaCounts(StatusPart):
    """Replicas by state, over all accelerators."""

    desired: Count = 0
    """Number of replicas that should run."""
    ready: Count = 0
    """Number of replicas that have served a token and accept requests."""
    starting: Count = 0
    """Number of replicas that are scheduled or start and do not accept requests yet."""
    draining: Count = 0
    """Number of replicas that are being removed and finish their running requests."""
    summary: Word | None = None
    """Ready and desired replicas in one text, such as 3/5."""


class ClassStatus(StatusPart):
    """Verdicts over the window about the requests of one class, by the bounds of the class."""

    name: Word
    """Name of the class in slo.classes."""
    objective: Attainment | None = None
    """Share of the requests of the class that must be good."""
    attainment: Attainment | None = None
    """Share of the judged requests in the window that met all objectives of the class. Absent: too few were judged."""
    budget_remaining: Percent | None = None
    """Error budget of the class that is left in the window; below 0% its objective is missed."""
    requests: Rate | None = None
    """Number of requests of the class that were judged in the window."""


class BatchStatus(StatusPart):
    """Batch work of one class."""

    name: Word
    """Name of the class in slo.classes."""
    unfinished: Rate | None = None
    """Number of its requests that wait or run in engines. Absent: engines do not say."""
    done_per_minute: Rate | None = None
    """Number of its requests that were done per minute, over the last minutes."""


_Batch = Annotated[
    tuple[BatchStatus, ...],
    Field(max_length=32),
    PlainSerializer(lambda classes: [each.to_dict() for each in classes]),
]
_Classes = Annotated[
    tuple[ClassStatus, ...],
    Field(max_length=32),
    PlainSerializer(lambda classes: [each.to_dict() for each in classes]),
]


class SLOStatus(StatusPart):
    """Measurements over the window: attainment of the objective, rates and latencies."""

    # to_camel would spell the percentiles `ttftP95Seconds`; outside, the unit stands in the value.
    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    attainment: Attainment | None = None
    """Share of the judged requests in the window that met all objectives, such as 99.5%. Compare with slo.objective."""
    budget_remaining: Percent | None = None
    """Remaining share of the error budget (the bad requests that slo.objective allows in the window). 100%: no bad
    request; 0%: all used; below 0%: the objective is missed."""
    good_rps: Rate | None = None
    """Requests per second that met all objectives."""
    arrival_rps: Rate | None = None
    """Requests per second that arrive now."""
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
    concurrency_p50: Rate | None = None
    """Median over ten minutes of the requests that the engines hold at once, running or waiting. Absent: no engine
    reports them."""
    concurrency_p90: Rate | None = None
    """90th percentile of the requests that the engines hold at once."""
    concurrency_p99: Rate | None = None
    """99th percentile of the requests that the engines hold at once."""
    quantile: Quantile | None = None
    """Safety level of the forecast, from 0 to 1: the higher it is, the more load above the expected load the size
    covers. It is a setting, not a probability. It rises while the error budget burns too fast and falls while budget is
    to spare."""
    window_seconds: ExactSeconds | None = None
    """Length of the rolling window of attainment and error budget; slo.window of the spec."""
    source: Literal["exact", "engine", "bounds"] | None = None
    """How attainment was measured. exact: each request was judged by the times at which its answer was written to the
    client. engine: each request was judged by the times at which its tokens left the engine, because some answers are
    not streamed or not watched; clients see them later. bounds: only the histograms of vLLM are known, so attainment is
    a lower bound and the real value may be higher."""
    hardest_class: Word | None = None
    """The class that attainment and budgetRemaining are of: it has burned most of its error budget. Absent: they are of
    requests without a class."""
    classes: _Classes | None = None
    """Verdicts by class. Requests without a class are in none of them."""
    batch: _Batch | None = None
    """Batch work by class. It is in no other number."""


class CapacityStatus(StatusPart):
    """Estimated capacity: what one replica carries within the objectives."""

    accelerator: Word | None = None
    """Name of the accelerator that the estimate is for: the one in use."""
    per_replica_rps: Rate | None = None
    """Most requests per second that one replica serves within the objectives."""
    bound_by: Literal["TTFT", "TPOT", "KVCache", "Sequences"] | None = None
    """What limits perReplicaRps. TTFT or TPOT: that objective is the first to be missed. KVCache: the GPU memory for
    the KV cache is full. Sequences: the limit of sequences per engine step is reached."""
    confidence: Rate | None = None
    """How much observation is behind the estimate, from 0 (engine model only) to 1 (measured)."""
    source: Sentence | None = None
    """The benchmark that the estimate started from. Absent: it started from the engine model alone."""
    learned_gain: Figure | None = None
    """Correction learned from live traffic, a factor on the predicted capacity: 1 means as predicted, 1.2 means 20 %
    more is carried, 0.8 means 20 % less."""
    learned_slowness: Figure | None = None
    """Correction learned from live traffic, a factor on the predicted time of an engine step: 1 means as predicted, 1.2
    means steps take 20 % longer."""


class EngineStatus(StatusPart):
    """What the engines report of themselves. If they differ, numbers are the smallest, and words those of most engines.
    Absent values: no engine has reported them; all but kvCacheTokens and acceptedDraftTokens need the plugin."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    kv_cache_tokens: Figure | None = None
    """Tokens in the KV cache of one engine: it holds the prompt and output tokens of all requests that run."""
    max_model_len: Count | None = None
    """Context length: most tokens of one request, prompt and output together."""
    dtype: Word | None = None
    """Number format that the engine computes in, such as bfloat16."""
    quantization: Word | None = None
    """How the weights are compressed, such as fp8 or awq; none: they are not."""
    speculative_tokens: Count | None = None
    """Speculative decoding: most tokens that are drafted per step of a sequence. 0: it is off."""
    accepted_draft_tokens: Figure | None = None
    """Mean number of drafted tokens that the model accepts per step of a sequence. Each step gives this many tokens and
    one more."""
    front_end: Word | None = None
    """What serves requests: Python, in one or several processes, or Rust."""
    front_end_lag_seconds: Seconds | None = None
    """Longest time from a token leaving an engine to its bytes being written. Absent: nobody reports it, as behind Rust
    or several processes; then requests are judged by the engine's times, and clients see tokens later by this lag."""


class PlacementStatus(StatusPart):
    """Replicas on one accelerator."""

    accelerator: Word
    """Name of the accelerator."""
    desired: Count = 0
    """Number of replicas that should run on this accelerator."""
    ready: Count = 0
    """Number of replicas on this accelerator that accept requests."""
    cost_per_hour: Dollars | None = None
    """Dollars per hour of all replicas on this accelerator."""
    engine: EngineStatus | None = None
    """What the engines on this accelerator report of themselves. Absent: none has reported anything."""


class PoolStatus(StatusPart):
    """Engines of one role."""

    name: Word
    """Name of the pool, as its pods carry it in the label holdfast.dev/service."""
    role: Word
    """Prefill: its engines compute prompts. Decode: they generate the answers."""
    desired: Count = 0
    """Number of engines that should run."""
    ready: Count = 0
    """Number of engines that have served a token and accept requests."""


class BatchingStatus(StatusPart):
    """Batching limits that the engines run with."""

    max_num_seqs: Count | None = None
    """Most sequences in one engine step: as engines with the plugin report it, else as they were started."""
    max_num_batched_tokens: Count | None = None
    """Most tokens in one engine step: as engines with the plugin report it, else as they were started."""
    admission: Count | None = None
    """Most prompt tokens in the queue of an engine; further requests are rejected with 503."""
    applied_live: bool | None = None
    """Whether all engines report the last written limits. Absent: no engine reports limits."""


class CostStatus(StatusPart):
    """Cost of the service, from costPerHour of the accelerators."""

    per_hour: Dollars | None = None
    """Dollars per hour of all replicas that hold a GPU."""
    per_million_tokens: Dollars | None = None
    """Dollars per million tokens, prompt and output tokens together."""
    per_thousand_good_requests: Dollars | None = None
    """Dollars per thousand requests that met all objectives."""


class DecisionInputs(StatusPart):
    """Inputs of a decision."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    arrival_rps: Figure | None = None
    """Requests per second that arrived at the time of the decision."""
    forecast_rps: Figure | None = None
    """Requests per second that the size was chosen for."""
    quantile: Quantile | None = None
    """Safety level of the forecast, from 0 to 1: the higher it is, the further forecastRps is above the expected load.
    It is a setting, not a probability. The error budget moves it."""
    lead_time_seconds: Seconds | None = None
    """Lead time: from a change of the load until a new replica serves it. The forecast looks this far ahead."""
    backlog_requests: Figure | None = None
    """Number of queued requests beyond what can start within slo.ttft; 0 while the queue is short enough."""
    accelerator: Word | None = None
    """Name of the chosen accelerator."""
    per_replica_rps: Figure | None = None
    """Most requests per second that one replica on this accelerator serves within the objectives."""
    bound_by: Word | None = None
    """What limits perReplicaRps: the objective TTFT or TPOT, memory for the KVCache, or Sequences per engine step."""
    capacity_source: Sentence | None = None
    """The benchmark that the capacity estimate started from. Absent: it started from the engine model alone."""
    learned_gain: Figure | None = None
    """Correction learned from live traffic, a factor on the predicted capacity: 1 means as predicted, 1.2 means 20 %
    more is carried, 0.8 means 20 % less."""
    learned_slowness: Figure | None = None
    """Correction learned from live traffic, a factor on the predicted time of an engine step: 1 means as predicted, 1.2
    means steps take 20 % longer."""
    wanted_replicas: Count | None = None
    """Number of replicas for the load, before limits and guards."""


class CandidateStatus(StatusPart):
    """An accelerator that the decision considered."""

    accelerator: Word
    """Name of the accelerator."""
    replicas: Count = 0
    """Number of replicas that the load would need on it."""
    per_replica_rps: Figure | None = None
    """Most requests per second that one of these replicas serves within the objectives."""
    cost_per_hour: Dollars | None = None
    """Dollars per hour of all these replicas."""
    lost_because: Sentence | None = None
    """Why it was not chosen. Absent: it was chosen."""


class DecisionStatus(StatusPart):
    """A decision and its reasons."""

    time: Timestamp
    """When the decision was made."""
    action: Word
    """What the decision does: Create, ScaleUp, ScaleDown, Switch (to another accelerator) or Hold."""
    reason: Word
    """Reason code; docs/operations.md lists all of them."""
    message: Sentence
    """Why, as sentences with numbers."""
    inputs: DecisionInputs | None = None
    """Inputs of the decision. Absent: people hold the size (spec.replicas or mode Recommend)."""
    candidates: (
        Annotated[tuple[CandidateStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("accelerator"))]
        | None
    ) = None
    """Accelerators that were considered, and why each was not chosen."""
    guards: Annotated[tuple[Sentence, ...], Field(max_length=32)] | None = None
    """Limits and guards that changed the size, in the order of evaluation."""


class ConditionStatus(StatusPart):
    """A condition as Kubernetes writes it."""

    type: Word
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is True, False or Unknown."""
    reason: Word
    """Reason code; docs/operations.md lists all of them with what to do."""
    message: Sentence
    """What is true, why, and what to do."""
    observed_generation: Count = 0
    """metadata.generation of the spec that the condition is about."""
    last_transition_time: Timestamp
    """When the status of the condition last changed."""

    @classmethod
    def of(cls, condition: Condition) -> "ConditionStatus":
        """The condition as a part of the status."""
        return cls.model_validate(condition.to_dict())


class LLMServiceStatus(StatusPart):
    """Observed state; written by the operator only."""

    observed_generation: Observed = NOT_OBSERVED
    """Newest metadata.generation of the spec that the operator has seen."""
    conditions: Annotated[
        tuple[ConditionStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("type"))
    ] = ()
    """Conditions: Ready, SLOMet, ScalingActive, MetricsAvailable, CapacityAvailable. Engines with the plugin add
    FastLoopActive. Reconciling and Stalled are present only while True."""
    reason: Word | None = None
    """Reason of the worst of these conditions; Serving or Idle while nothing is wrong."""
    url: Annotated[str, StringConstraints(max_length=512)] | None = None
    """URL in the cluster where clients send requests."""
    replicas: ReplicaCounts = ReplicaCounts()
    """Number of replicas by state, over all accelerators."""
    selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the pods, for kubectl scale."""
    slo: SLOStatus | None = None
    """Measurements over the window: attainment of the objective, rates and latencies."""
    capacity: CapacityStatus | None = None
    """Estimated capacity of one replica within the objectives, on the accelerator in use."""
    placements: Annotated[
        tuple[PlacementStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("accelerator"))
    ] = ()
    """Number of replicas by accelerator, the one with most replicas first."""
    pools: (
        Annotated[
            tuple[PoolStatus, ...],
            Field(max_length=2, json_schema_extra=map_keyed_by("name")),
            PlainSerializer(lambda pools: [each.to_dict() for each in pools]),
        ]
        | None
    ) = None
    """The two pools of a service with prefill; replicas and placements are those of the decode pool."""
    batching: BatchingStatus | None = None
    """Batching limits that the engines run with."""
    cold_start_seconds: Rate | None = None
    """Cold start in seconds, 90th percentile: from the scheduling of a pod until it is ready."""
    cost: CostStatus | None = None
    """Cost of the service. Absent: the spec has no costPerHour."""
    last_decision: DecisionStatus | None = None
    """The last decision that changed something."""
    recommendation: DecisionStatus | None = None
    """What Holdfast would do now; present in mode Recommend or while spec.replicas is set."""
    object_digests: (
        Annotated[tuple[Annotated[str, StringConstraints(max_length=16)], ...], Field(max_length=64)] | None
    ) = None
    """Digests of the objects that Holdfast wrote for the service. After a restart Holdfast writes only the
    objects whose digest differs."""


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {})}
    return [_pruned(item) for item in value] if isinstance(value, list | tuple) else value
