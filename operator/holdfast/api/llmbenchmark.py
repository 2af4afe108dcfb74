"""The LLMBenchmark: a load, and the service or address that it is to measure. The CRD is generated from these types."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

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

Rps = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
TraceFormat = Literal["azure", "csv", "mooncake"]


class InvalidLLMBenchmark(InvalidObject):
    """An object that is no LLMBenchmark; the message names every field at fault and the remedy."""


class ServiceReference(ApiModel):
    """An LLMService in the same namespace."""

    name: fields.ObjectName
    """Name of the LLMService."""


_ONE_TARGET = Rule(
    "has(self.serviceRef) != has(self.url)",
    "target takes one of serviceRef and url: name an LLMService of this namespace, or an address",
    lambda target: (target.service_ref is None) != (target.url is None),
)


class Target(ApiModel):
    """What is measured, and how it is asked."""

    rules = (_ONE_TARGET,)

    service_ref: ServiceReference | None = None
    """An LLMService of this namespace."""
    url: fields.Endpoint | None = None
    """Any OpenAI-compatible server, such as http://10.0.0.7:8000."""
    model: fields.PrintableText | None = None
    """Name to ask for; that of the service, or the only one served, when absent."""
    api: Literal["Completions", "Chat"] = "Completions"
    """Completions or Chat: which of the two ways to ask for text."""
    ignore_eos: bool = True
    """Whether answers are held to their length; false where the server does not know ignore_eos."""
    api_key_secret_ref: SecretKeyReference | None = None
    """Secret with the API key; that of the service when absent."""
    ca_secret_ref: SecretKeyReference | None = None
    """Secret with the certificates to trust, for https."""


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
    """Where it is."""
    format: TraceFormat = "csv"
    """azure, mooncake, or csv (arrival_seconds,prompt_tokens,output_tokens)."""


class Trace(Recording):
    """Arrivals and lengths as they were recorded."""

    speed: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] = 1.0
    """Play it so many times as fast."""
    start: fields.LoadDuration | None = None
    """Begin so far into it."""


class Sweep(ApiModel):
    """Rates that bracket saturation, and what is carried at the objective."""

    start_rps: Rps = 1.0
    """Where to begin: a rate that is thought to be low."""
    max_trials: Annotated[int, Field(ge=2, le=32)] = 16
    """Most rates that are tried."""


class Rate(ApiModel):
    """Requests that leave when they are due, however slow answers are."""

    rps: Rps
    """Requests per second."""
    cv: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 1.0
    """Deviation / mean of the gaps: 1 for Poisson, above it gamma."""


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
    """Batching limits that carry most, looked for on an engine of the run's own."""

    rules = (_TOKENS_COVER_SEQUENCES,)

    accelerator: fields.AcceleratorName | None = None
    """One of the service's accelerators; the first of them that it has a Deployment on when absent."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most sequences in one engine step to look for; what replicas are started with when absent."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=4_194_304)] | None = None
    """Most tokens in one engine step to look for; what replicas are started with when absent."""
    max_trials: Annotated[int, Field(ge=2, le=200)] = 60
    """Most loads that are sent to find them; up to three more confirm the best."""
    requests: Annotated[int, Field(ge=20, le=100_000)] | None = None
    """Requests that count in one of them; when absent as many as the objective needs, 400 for 99%."""


_DRAWN_OR_MADE = Rule(
    "!has(self.trace) || !(has(self.promptTokens) || has(self.outputTokens) || has(self.cv))",
    "lengths are drawn from a trace or made: leave promptTokens, outputTokens and cv out, or trace",
    lambda lengths: lengths.trace is None or (lengths.prompt_tokens, lengths.output_tokens, lengths.cv) == (None,) * 3,
)


class Lengths(ApiModel):
    """How long prompts and answers are; 512 and 128 tokens when nothing is said."""

    rules = (_DRAWN_OR_MADE,)

    prompt_tokens: Tokens | None = None
    """Tokens of the mean prompt."""
    output_tokens: Tokens | None = None
    """Tokens of the mean answer."""
    cv: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    """Deviation / mean of both, lognormal; all alike when absent."""
    trace: Recording | None = None
    """A trace to draw pairs of lengths from."""


LOADS = ("sweep", "rate", "concurrency", "trace", "tune")
_ONE_LOAD = Rule(
    " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in LOADS) + " == 1",
    f"give one load: one of {', '.join(LOADS)}",
    lambda spec: sum(getattr(spec, name) is not None for name in LOADS) == 1,
)
_TRACE_HAS_LENGTHS = Rule(
    "!has(self.trace) || !has(self.lengths)",
    "lengths do not go with trace, which has its own: leave lengths out",
    lambda spec: spec.trace is None or spec.lengths is None,
    ".lengths",
)
_TUNE_NEEDS_SERVICE = Rule(
    "!has(self.tune) || has(self.target.serviceRef)",
    "tune starts an engine as a service has it: name an LLMService with target.serviceRef, or run holdfast tune --url"
    " beside the engine",
    lambda spec: spec.tune is None or spec.target.service_ref is not None,
    ".tune",
)
_TUNE_HAS_NO_DURATION = Rule(
    "!has(self.tune) || !has(self.duration)",
    "duration does not go with tune, whose trials end when they have said enough: leave it out, or set tune.requests",
    lambda spec: spec.tune is None or spec.duration is None,
    ".duration",
)


class LLMBenchmarkSpec(ApiModel):
    """A load, and what it is to measure. Any change of it runs it again; the same runs once."""

    rules = (_ONE_LOAD, _TRACE_HAS_LENGTHS, _TUNE_NEEDS_SERVICE, _TUNE_HAS_NO_DURATION)

    target: Target
    """What is measured, and how it is asked."""
    sweep: Sweep | None = None
    """Find saturation and what is carried at the objective; its result sizes services."""
    rate: Rate | None = None
    """One rate."""
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """So many requests at a time: the next leaves when one ends."""
    trace: Trace | None = None
    """Arrivals and lengths as they were recorded."""
    tune: Tune | None = None
    """Find the batching limits that carry most at the objective, on an engine of its own; its result sizes services."""
    lengths: Lengths | None = None
    """How long prompts and answers are."""
    duration: fields.LoadDuration | None = None
    """Of arrivals, of each rate in a sweep: 1m, 30s in a sweep, and a whole trace when absent."""
    slo: Objectives | None = None
    """What a good request is; the service's objectives when absent."""
    max_client_lag: fields.ClientLag = "5ms"
    """A result is refused where the client itself was later than this: above 0."""
    timeout: fields.Timeout = "1h"
    """The run is ended after this, waiting for a node included."""
    revision: fields.Revision | None = None
    """Any number or word; a change runs the benchmark again."""
    resources: fields.Resources = Field(default_factory=dict)
    """Requests and limits of the client; it wants a core of its own for thousands of streams."""
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], Field(max_length=16, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """Secrets for pulling the operator's image; those of the service when absent."""

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
    "metadata.name becomes that of a Job: use lower-case letters, digits and '-',"
    f" at most {MAX_NAME_LENGTH} characters",
    lambda benchmark: len(benchmark.metadata.name) <= MAX_NAME_LENGTH and fields.is_label(benchmark.metadata.name),
)


class LLMBenchmark(ApiModel):
    """A measurement of an LLMService or of any OpenAI-compatible server, made by a Job in the cluster."""

    model_config = ConfigDict(extra="ignore")
    rules = (NAME_FITS,)

    metadata: ObjectMeta
    spec: LLMBenchmarkSpec
    status: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The typed object of a manifest or a watch event; raises InvalidLLMBenchmark."""
        return parsed(cls, body, InvalidLLMBenchmark)
