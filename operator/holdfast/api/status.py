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
    """Replicas that should run."""
    ready: Count = 0
    """Replicas that have served a token and take requests."""
    starting: Count = 0
    """Replicas on their way."""
    draining: Count = 0
    """Replicas that finish their last requests."""


class SLOStatus(StatusPart):
    """What was measured over the window."""

    # to_camel would spell the percentiles `ttftP95Seconds`; outside, the unit stands in the value.
    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    attainment: Attainment | None = None
    """Share of judged requests in the window that were good."""
    budget_remaining: Percent | None = None
    """What is left of the error budget; below 0% the objective is missed."""
    good_rps: Rate | None = None
    """Good requests per second."""
    arrival_rps: Rate | None = None
    """Requests that arrive per second."""
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
    quantile: Quantile | None = None
    """Of what may arrive within the lead time: what sizes are made for. The error budget moves it."""
    window_seconds: ExactSeconds | None = None
    """Window over which attainment and budget are measured."""
    source: Literal["exact", "bounds"] | None = None
    """exact: every request was judged; bounds: the lower bound that the histograms allow."""


class CapacityStatus(StatusPart):
    """What one replica carries within the objectives."""

    accelerator: Word | None = None
    """The accelerator in use."""
    per_replica_rps: Rate | None = None
    """Requests per second of one replica."""
    bound_by: Literal["TTFT", "TPOT", "KVCache", "Sequences"] | None = None
    """What binds it."""
    confidence: Rate | None = None
    """From 0 (prior only) to 1."""
    source: Sentence | None = None
    """The benchmark that it started from; the engine model alone when absent."""
    learned_gain: Figure | None = None
    """So many times that is carried, by what was observed."""
    learned_slowness: Figure | None = None
    """So many times as long as the engine model says steps take, by what was observed."""


class PlacementStatus(StatusPart):
    """Replicas on one accelerator."""

    accelerator: Word
    """Name of the accelerator."""
    desired: Count = 0
    """Replicas that should run on it."""
    ready: Count = 0
    """Replicas that take requests."""
    cost_per_hour: Dollars | None = None
    """Dollars per hour of its replicas."""


class BatchingStatus(StatusPart):
    """Limits with which the engines run."""

    max_num_seqs: Count | None = None
    """Most sequences in one engine step, as engines with the plugin show it."""
    max_num_batched_tokens: Count | None = None
    """Most tokens in one engine step, as engines with the plugin show it."""
    admission: Count | None = None
    """Most queued prompt tokens before a request is refused with 503."""
    applied_live: bool | None = None
    """Whether every engine seen shows the limits last written; absent while none is seen."""


class CostStatus(StatusPart):
    """What the service costs."""

    per_hour: Dollars | None = None
    """Dollars per hour."""
    per_million_tokens: Dollars | None = None
    """Dollars per million tokens, prompt and output."""
    per_thousand_good_requests: Dollars | None = None
    """Dollars per thousand good requests."""


class DecisionInputs(StatusPart):
    """What a decision was made on."""

    model_config = ConfigDict(alias_generator=lambda name: to_camel(name.removesuffix("_seconds")))

    arrival_rps: Figure | None = None
    """Requests per second that arrive."""
    forecast_rps: Figure | None = None
    """Requests per second that the size is made for."""
    quantile: Quantile | None = None
    """Of what may arrive within the lead time: the forecast. The error budget moves it."""
    lead_time_seconds: Seconds | None = None
    """From a change of the load until a replica ordered for it serves."""
    backlog_requests: Figure | None = None
    """Requests that wait too long already."""
    accelerator: Word | None = None
    """The accelerator taken."""
    per_replica_rps: Figure | None = None
    """What one of its replicas carries within the objectives, in requests per second."""
    bound_by: Word | None = None
    """What binds it."""
    capacity_source: Sentence | None = None
    """The benchmark that it started from; the engine model alone when absent."""
    learned_gain: Figure | None = None
    """So many times that is carried, by what was observed."""
    learned_slowness: Figure | None = None
    """So many times as long as the engine model says steps take, by what was observed."""
    wanted_replicas: Count | None = None
    """Replicas proposed, before guards."""


class CandidateStatus(StatusPart):
    """An accelerator that was considered."""

    accelerator: Word
    """Name of the accelerator."""
    replicas: Count = 0
    """Replicas that the load would take."""
    per_replica_rps: Figure | None = None
    """Requests per second that one of them carries."""
    cost_per_hour: Dollars | None = None
    """Dollars per hour of all of them."""
    lost_because: Sentence | None = None
    """Why it was not taken; absent for the one that was."""


class DecisionStatus(StatusPart):
    """A decision and why it was taken."""

    time: Timestamp
    """When it was taken."""
    action: Word
    """What it does: Create, ScaleUp, ScaleDown, Switch or Hold."""
    reason: Word
    """Why, in a word."""
    message: Sentence
    """Why, with the numbers."""
    inputs: DecisionInputs | None = None
    """What it was made on; absent where people hold the size."""
    candidates: (
        Annotated[tuple[CandidateStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("accelerator"))]
        | None
    ) = None
    """The accelerators considered, and why each lost."""
    guards: Annotated[tuple[Sentence, ...], Field(max_length=32)] | None = None
    """What bounded the size, in the order in which it was asked."""


class ConditionStatus(StatusPart):
    """A condition as Kubernetes writes it."""

    type: Word
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Word
    """Why, in a word."""
    message: Sentence
    """Why, in a sentence."""
    observed_generation: Count = 0
    """Generation of the spec that was judged."""
    last_transition_time: Timestamp
    """When its status last changed."""

    @classmethod
    def of(cls, condition: Condition) -> "ConditionStatus":
        """The condition as a part of the status."""
        return cls.model_validate(condition.to_dict())


class LLMServiceStatus(StatusPart):
    """What is; written by the operator only."""

    observed_generation: Count = 0
    """Newest generation of the spec that the operator has seen."""
    conditions: Annotated[
        tuple[ConditionStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("type"))
    ] = ()
    """Ready, SLOMet, ScalingActive, MetricsAvailable, CapacityAvailable; FastLoopActive where engines have the plugin;
    Reconciling and Stalled while true."""
    url: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Where clients send requests."""
    replicas: ReplicaCounts = ReplicaCounts()
    """Replicas by state, over all accelerators."""
    selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the pods, for kubectl scale."""
    slo: SLOStatus | None = None
    """What was measured over the window."""
    capacity: CapacityStatus | None = None
    """What one replica carries within the objectives, on the accelerator in use."""
    placements: Annotated[
        tuple[PlacementStatus, ...], Field(max_length=16, json_schema_extra=map_keyed_by("accelerator"))
    ] = ()
    """Replicas by accelerator, the one with most replicas first."""
    batching: BatchingStatus | None = None
    """Limits with which the engines run."""
    cold_start_seconds: Rate | None = None
    """Time from a pod's scheduling to its first token."""
    cost: CostStatus | None = None
    """What the service costs; absent where costs are unknown."""
    last_decision: DecisionStatus | None = None
    """The last decision that was carried out."""
    recommendation: DecisionStatus | None = None
    """What Holdfast would do, in mode Recommend or while replicas is set."""


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {})}
    return [_pruned(item) for item in value] if isinstance(value, list | tuple) else value
