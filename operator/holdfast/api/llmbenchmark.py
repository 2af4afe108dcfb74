"""The LLMBenchmark: a load, and the service or address that it is to measure. The CRD is generated from these types."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from holdfast.api import fields
from holdfast.api.llmservice import ObjectMeta, SecretKeyReference, SecretReference
from holdfast.api.objectives import Objectives
from holdfast.api.parsing import InvalidObject, parsed
from holdfast.api.quantities import parse_duration_seconds
from holdfast.api.rules import ApiModel, Checked, Rule

PLURAL = "llmbenchmarks"
KIND = "LLMBenchmark"
MAX_NAME_LENGTH = 52
MOST_TOKENS = 1_000_000

Rps = Annotated[StrictFloat, Field(gt=0, le=1e6, allow_inf_nan=False)]
Tokens = Annotated[StrictInt, Field(ge=1, le=MOST_TOKENS)]
TraceFormat = Literal["azure", "csv", "mooncake"]


class InvalidLLMBenchmark(InvalidObject):
    """An object that is no LLMBenchmark; the message names every field at fault and the remedy."""


class ServiceReference(ApiModel):
    """An LLMService in the same namespace."""

    name: fields.ObjectName
    """Name of the LLMService."""


_ONE_TARGET = Rule(
    "has(self.serviceRef) != has(self.url)",
    "target must have exactly one of serviceRef and url: name an LLMService of this namespace, or an address",
    lambda target: (target.service_ref is None) != (target.url is None),
)


class Target(ApiModel):
    """The target of the benchmark, and how requests are sent."""

    rules = (_ONE_TARGET,)

    service_ref: ServiceReference | None = None
    """An LLMService of this namespace."""
    url: fields.Endpoint | None = None
    """Address of any OpenAI-compatible server, such as http://10.0.0.7:8000."""
    model: fields.PrintableText | None = None
    """Model name to send in requests. Default: that of the service, or the only model that the server has."""
    api: Literal["Completions", "Chat"] = "Completions"
    """API to use: Completions (/v1/completions) or Chat (/v1/chat/completions)."""
    ignore_eos: StrictBool = True
    """Whether answers are forced to the given length. Set false if the server does not support ignore_eos."""
    api_key_secret_ref: SecretKeyReference | None = None
    """Secret with the API key. Default: that of the service."""
    ca_secret_ref: SecretKeyReference | None = None
    """Secret with the CA certificates to trust, for https."""


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the same namespace."""

    name: fields.ObjectName
    """Name of the ConfigMap."""
    key: Annotated[
        fields.ShortText,
        Checked(fields.matches("^[-A-Za-z0-9_.]+$", "key must be a key of a ConfigMap, such as trace.csv")),
    ]
    """Key in the ConfigMap."""


class Recording(ApiModel):
    """A recorded trace."""

    config_map_key_ref: ConfigMapKey
    """ConfigMap key with the trace."""
    format: TraceFormat = "csv"
    """Format of the trace: azure, mooncake, or csv (arrival_seconds,prompt_tokens,output_tokens)."""


class Trace(Recording):
    """Replay the arrivals and lengths of a recorded trace."""

    speed: Annotated[StrictFloat, Field(gt=0, le=10_000, allow_inf_nan=False)] = 1.0
    """Factor of the replay speed: 2 replays twice as fast."""
    start: fields.LoadDuration | None = None
    """Start the replay at this offset into the trace."""


class Sweep(ApiModel):
    """Test rates until saturation and the highest rate within the objective are known."""

    start_rps: Rps = 1.0
    """First rate to test, in requests per second; choose a low one."""
    max_trials: Annotated[StrictInt, Field(ge=2, le=32)] = 16
    """Maximum number of rates to test."""


class Rate(ApiModel):
    """Open loop: requests are sent at a fixed mean rate, however slow answers are."""

    rps: Rps
    """Requests per second."""
    cv: Annotated[StrictFloat, Field(gt=0, le=100, allow_inf_nan=False)] = 1.0
    """Coefficient of variation (standard deviation / mean) of the gaps: 1 is Poisson, above 1 is burstier."""


Requests = Annotated[StrictInt, Field(ge=1, le=5_000_000)]


class Latency(ApiModel):
    """Offline, as vLLM's `bench latency`: one batch after another, each sent at once when the last one has ended."""

    batch_size: Annotated[StrictInt, Field(ge=1, le=100_000)] = 8
    """Number of requests in a batch."""
    requests: Requests | None = None
    """Number of requests in all. Default: those of 30 batches."""


class Throughput(ApiModel):
    """Offline, as vLLM's `bench throughput`: all requests are sent at once."""

    requests: Requests = 1000
    """Number of requests."""


_TOKENS_COVER_SEQUENCES = Rule(
    "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= self.maxNumSeqs",
    "maxNumBatchedTokens must be at least maxNumSeqs, one token per sequence: raise it or lower maxNumSeqs",
    lambda tune: (
        tune.max_num_seqs is None
        or tune.max_num_batched_tokens is None
        or tune.max_num_batched_tokens >= tune.max_num_seqs
    ),
    ".maxNumBatchedTokens",
)


class Tune(ApiModel):
    """Find the batching limits with the highest rate within the objective, on a separate engine."""

    rules = (_TOKENS_COVER_SEQUENCES,)

    accelerator: fields.AcceleratorName | None = None
    """Name of an accelerator of the service. Default: the first one that the service has a Deployment on."""
    max_num_seqs: Annotated[StrictInt, Field(ge=1, le=65_536)] | None = None
    """Upper limit of the search for sequences in one engine step. Default: what the replicas are started with."""
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=4_194_304)] | None = None
    """Upper limit of the search for tokens in one engine step. Default: what the replicas are started with."""
    max_trials: Annotated[StrictInt, Field(ge=2, le=200)] = 60
    """Maximum number of trials of the search; up to three more trials confirm the best limits."""
    requests: Annotated[StrictInt, Field(ge=20, le=100_000)] | None = None
    """Number of counted requests per trial. Default: as many as the objective needs, such as 400 for 99%."""


_DRAWN_OR_MADE = Rule(
    "!has(self.trace) || !(has(self.promptTokens) || has(self.outputTokens) || has(self.cv))",
    "lengths come from a trace, or from promptTokens, outputTokens and cv: remove trace or the other fields",
    lambda lengths: lengths.trace is None or (lengths.prompt_tokens, lengths.output_tokens, lengths.cv) == (None,) * 3,
)


class Lengths(ApiModel):
    """Lengths of prompts and answers. Default: 512 and 128 tokens; 32 and 128 of a latency load."""

    rules = (_DRAWN_OR_MADE,)

    prompt_tokens: Tokens | None = None
    """Mean length of the prompts in tokens."""
    output_tokens: Tokens | None = None
    """Mean length of the answers in tokens."""
    cv: Annotated[StrictFloat, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    """Coefficient of variation (standard deviation / mean) of both lengths, lognormal. Default: all equal."""
    trace: Recording | None = None
    """A trace from which pairs of lengths are drawn."""


LOADS = ("sweep", "rate", "concurrency", "trace", "latency", "throughput", "tune")
_ONE_LOAD = Rule(
    " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in LOADS) + " == 1",
    f"set exactly one load of {', '.join(LOADS)}",
    lambda spec: sum(getattr(spec, name) is not None for name in LOADS) == 1,
)
_TRACE_HAS_LENGTHS = Rule(
    "!has(self.trace) || !has(self.lengths)",
    "lengths cannot be combined with trace, which has its own: remove lengths",
    lambda spec: spec.trace is None or spec.lengths is None,
    ".lengths",
)
_TUNE_NEEDS_SERVICE = Rule(
    "!has(self.tune) || has(self.target.serviceRef)",
    "tune starts an engine configured like a service: set target.serviceRef, or run holdfast tune --url"
    " next to the engine",
    lambda spec: spec.tune is None or spec.target.service_ref is not None,
    ".tune",
)
_OFFLINE_HAS_NO_DURATION = Rule(
    "!(has(self.latency) || has(self.throughput)) || !has(self.duration)",
    "duration cannot be combined with latency and throughput, which end by number of requests: remove duration, or set "
    "their requests",
    lambda spec: (spec.latency, spec.throughput) == (None, None) or spec.duration is None,
    ".duration",
)
_TUNE_HAS_NO_DURATION = Rule(
    "!has(self.tune) || !has(self.duration)",
    (
        "duration cannot be combined with tune, whose trials end by number of requests: "
        "remove duration, or set tune.requests"
    ),
    lambda spec: spec.tune is None or spec.duration is None,
    ".duration",
)


class LLMBenchmarkSpec(ApiModel):
    """A load and its target. Each change of the spec runs the benchmark again; the same spec runs once."""

    rules = (_ONE_LOAD, _TRACE_HAS_LENGTHS, _OFFLINE_HAS_NO_DURATION, _TUNE_NEEDS_SERVICE, _TUNE_HAS_NO_DURATION)

    target: Target
    """The target of the benchmark, and how requests are sent."""
    sweep: Sweep | None = None
    """Find saturation and the highest rate within the objective. Its result is used to size services."""
    rate: Rate | None = None
    """Load with one mean rate."""
    concurrency: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    """Closed loop: number of concurrent requests; the next one is sent when one ends."""
    trace: Trace | None = None
    """Replay the arrivals and lengths of a recorded trace."""
    latency: Latency | None = None
    """Offline: one batch of requests after another, as vLLM's `bench latency`."""
    throughput: Throughput | None = None
    """Offline: all requests at once, as vLLM's `bench throughput`."""
    tune: Tune | None = None
    """Find the batching limits with the highest rate within the objective, on a separate engine. Its result is used to
    size services."""
    lengths: Lengths | None = None
    """Lengths of prompts and answers."""
    duration: fields.LoadDuration | None = None
    """Duration of the arrivals; in a sweep, of each rate. Default: 1m, 30s in a sweep, or the whole trace."""
    slo: Objectives | None = None
    """Objectives of a good request. Default: those of the service."""
    max_client_lag: fields.ClientLag = "5ms"
    """Maximum delay of the client itself; a result with a larger delay is rejected. Above 0."""
    timeout: fields.Timeout = "1h"
    """Maximum duration of the run, including the wait for a node."""
    revision: fields.Revision | None = None
    """Any number or word. Change it to run the benchmark again."""
    resources: fields.Resources = Field(default_factory=dict)
    """Resource requests and limits of the client; give it one CPU core of its own for thousands of streams."""
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], Field(max_length=16, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """Secrets for pulling the operator's image. Default: those of the service."""

    @property
    def timeout_seconds(self) -> float:
        """When a run is ended."""
        return parse_duration_seconds(self.timeout)

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """The traces it reads."""
        drawn = self.lengths.trace if self.lengths else None
        return tuple(each for each in (self.trace, drawn) if each is not None)


NAME_FITS = Rule(
    f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name is also the name of a Job: use lower-case letters, digits and '-',"
    f" at most {MAX_NAME_LENGTH} characters",
    lambda benchmark: len(benchmark.metadata.name) <= MAX_NAME_LENGTH and fields.is_label(benchmark.metadata.name),
)


class LLMBenchmark(ApiModel):
    """A benchmark of an LLMService or of any OpenAI-compatible server, run by a Job in the cluster."""

    model_config = ConfigDict(extra="ignore")
    rules = (NAME_FITS,)

    metadata: ObjectMeta
    spec: LLMBenchmarkSpec
    status: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The typed object of a manifest or a watch event; raises InvalidLLMBenchmark."""
        return parsed(cls, body, InvalidLLMBenchmark)
