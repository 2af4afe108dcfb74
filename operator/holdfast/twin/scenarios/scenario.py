"""The scenario file: what `holdfast simulate` reads, checked as a whole before anything runs."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
import yaml
from pydantic import BeforeValidator, Field

from holdfast.api.llmservice import LLMServiceSpec
from holdfast.api.parsing import problems
from holdfast.api.quantities import format_duration, parse_duration_seconds
from holdfast.api.rules import ApiModel, Rule
from holdfast.api.yamltext import read_yaml
from holdfast.policy.settings import PolicySettings
from holdfast.twin.arrays.fleet import CLOSE_SHARE, CONNECTIONS, KEEP_SECONDS
from holdfast.twin.pods.cluster import EPOCH_SECONDS
from holdfast.twin.scenarios.inputs import BadInput


def _seconds(value: Any) -> Any:
    # YAML reads a bare 0 as a number, and 0 needs no unit.
    return 0.0 if value == 0 and not isinstance(value, bool) else parse_duration_seconds(str(value))


def _moment(value: Any) -> Any:
    # pydantic would take a number for seconds since 1970, and a date for its midnight.
    if isinstance(value, str) and not {"T", " "}.isdisjoint(value.strip()):
        return value
    raise ValueError("give a date, a time and its offset, such as 2026-06-15T06:00:00Z")


def _no_flag(value: Any) -> Any:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number: give one")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(le=366 * 86_400.0)]
Begins = Annotated[pydantic.AwareDatetime, BeforeValidator(_moment)]
Number = Annotated[float, BeforeValidator(_no_flag), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_flag)]
Positive = Annotated[Number, Field(gt=0.0, le=1e6)]
Share = Annotated[Number, Field(ge=0.0, lt=1.0)]
Tokens = Annotated[Whole, Field(ge=1, le=10_000_000)]
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$")]


class RateStep(ApiModel):
    """From `at` on, `rps` requests per second arrive on average."""

    at: Seconds
    rps: Annotated[Number, Field(ge=0.0, le=1e6)]


class TraceFile(ApiModel):
    """Recorded requests; `scale` multiplies how many there are at any time."""

    path: str
    format: Literal["azure", "mooncake", "csv"]
    scale: Positive = 1.0


class RatesFile(ApiModel):
    """Recorded rates, scaled so that the highest in the run is `peakRps`; gaps vary by `cv`."""

    path: str
    format: Literal["servegen"]
    start: Seconds = 0.0
    peak_rps: Positive
    cv: Annotated[Number, Field(gt=0.0, le=50.0)] = 1.0


def _count(*values: object) -> int:
    return sum(value is not None for value in values)


class ArrivalProcess(ApiModel):
    """When requests come: one of poisson, trace and rates; `ramp` goes from step to step in straight lines."""

    rules = (
        Rule(
            "",
            "give exactly one of poisson, trace and rates",
            lambda arrivals: _count(arrivals.poisson, arrivals.trace, arrivals.rates) == 1,
        ),
        Rule(
            "",
            "the first step must be at 0s, and each step later than the previous one",
            lambda arrivals: arrivals.poisson is None or _ascending([step.at for step in arrivals.poisson]),
        ),
    )

    poisson: Annotated[tuple[RateStep, ...], Field(min_length=1)] | None = None
    ramp: bool = False
    trace: TraceFile | None = None
    rates: RatesFile | None = None


def _ascending(moments: list[float]) -> bool:
    return moments[0] == 0.0 and all(before < after for before, after in itertools.pairwise(moments))


class FixedLengths(ApiModel):
    """Every request has these lengths."""

    prompt_tokens: Tokens
    output_tokens: Tokens


class RequestLengths(ApiModel):
    """How long requests are: one of trace (pairs drawn with replacement) and fixed."""

    rules = (
        Rule("", "give exactly one of trace and fixed", lambda lengths: _count(lengths.trace, lengths.fixed) == 1),
    )

    trace: TraceFile | None = None
    fixed: FixedLengths | None = None


class WorkloadFile(ApiModel):
    """The requests of one service; `classes` are the shares that claim a class of its spec."""

    rules = (
        Rule(
            "",
            "the shares of classes are more than 1 together: lower one",
            lambda workload: sum(workload.classes.values()) <= 1.0 + 1e-9,
            ".classes",
        ),
        Rule(
            "",
            "lengths are missing: give fixed lengths or a trace, unless arrivals come from a trace",
            lambda workload: workload.lengths is not None or workload.arrivals.trace is not None,
        ),
    )

    arrivals: ArrivalProcess
    lengths: RequestLengths | None = None
    classes: dict[str, Annotated[Number, Field(gt=0.0, le=1.0)]] = Field(default_factory=dict)


class Retries(ApiModel):
    """A refused request comes again up to `most` times: after `wait`, then after `growth` times the last wait."""

    most: Annotated[Whole, Field(ge=1, le=100)]
    wait: Annotated[Seconds, Field(le=3600.0)] = 1.0
    growth: Annotated[Number, Field(ge=1.0, le=10.0)] = 2.0

    @property
    def waits_seconds(self) -> tuple[float, ...]:
        """How long a client waits before each of its further tries."""
        return tuple(self.wait * self.growth**number for number in range(self.most))


class ServiceReality(ApiModel):
    """How the clients of a service behave, where they are not the usual ones.

    A share `closeShare` of the answers closes its connection, clients close one that was idle for `idleTimeout`.
    `busyHalfShare` of the requests come on one half of the `connections`.
    """

    rules = (
        Rule(
            "",
            "a single connection has no busier half: give at least 2 connections, or leave out busyHalfShare",
            lambda reality: reality.connections > 1 or reality.busy_half_share == 0.5,
            ".busyHalfShare",
        ),
    )

    connections: Annotated[Whole, Field(ge=1, le=1_000_000)] = CONNECTIONS
    busy_half_share: Annotated[Number, Field(ge=0.5, le=1.0)] = 0.5
    close_share: Annotated[Number, Field(ge=0.0, le=1.0)] = CLOSE_SHARE
    idle_timeout: Seconds = KEEP_SECONDS
    retries: Retries | None = None


class ServiceEntry(ApiModel):
    """One service: an LLMService's spec, or a manifest that holds one.

    `kvTokens` is the KV cache of its engines by accelerator, where it is known; by default the memory decides
    (enginemodel.memory).
    """

    rules = (Rule("", "give exactly one of spec and manifest", lambda entry: _count(entry.spec, entry.manifest) == 1),)

    name: Name
    spec: LLMServiceSpec | None = None
    manifest: str | None = None
    workload: WorkloadFile
    reality: ServiceReality = ServiceReality()
    initial_replicas: dict[str, Annotated[Whole, Field(ge=0, le=10_000)]] = Field(default_factory=dict)
    kv_tokens: dict[str, Annotated[Whole, Field(ge=1, le=10**9)]] = Field(default_factory=dict)


class AcceleratorEntry(ApiModel):
    """GPUs of one kind; `system` names their step tables, `hostFactor` makes their hosts slower (enginemodel.host).

    `overhead` is another host in place of the usual one: it runs one step at a time, and adds so much to each. `model`
    is what its engines really run, where that is not the model of the spec; `share` is the part of a GPU that each of
    its GPUs really is. Each step takes `stepFactor` times as long as all this says.
    """

    system: str
    model: str | None = None
    share: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    gpus: Annotated[Whole, Field(ge=1, le=100_000)]
    cold_start: Seconds = 90.0
    cold_start_jitter: Share = 0.0
    host_factor: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    overhead: Annotated[Seconds, Field(le=1.0)] | None = None
    step_factor: Annotated[Number, Field(ge=0.01, le=100.0)] = 1.0


class ClusterReality(ApiModel):
    """What goes wrong between engines and policy all the time: samples arrive `sampleDelay` after they were taken."""

    sample_delay: Annotated[Seconds, Field(le=600.0)] = 0.0


class ClusterEntry(ApiModel):
    """What the services run on; no nodes ever come, `nodeProvisioningTime` is the operator's setting."""

    accelerators: Annotated[dict[str, AcceleratorEntry], Field(min_length=1)]
    node_provisioning_time: Annotated[Seconds, Field(gt=0.0)] = PolicySettings().provisioning_seconds
    router: Literal["random-per-connection", "round-robin", "least-outstanding"] = "random-per-connection"
    reality: ClusterReality = ClusterReality()


class Fault(ApiModel):
    """Something that goes wrong; `for` it lasts, to the end where absent. Node loss takes one replica of a service.

    `spot-reclaim` takes all nodes of an accelerator, with what runs there.
    """

    rules = (
        Rule(
            "",
            "accelerator is the one whose nodes a spot-reclaim removes: give it for spot-reclaim only",
            lambda fault: (fault.kind == "spot-reclaim") == (fault.accelerator is not None),
            ".accelerator",
        ),
        Rule(
            "",
            "a fault of 0s has no effect: give more than 0s, or remove the field for a fault until the end",
            lambda fault: fault.lasts is None or fault.lasts > 0.0,
            ".for",
        ),
    )

    at: Seconds
    kind: Literal["metrics-gone", "replica-slow", "replica-hang", "node-loss", "spot-reclaim"]
    lasts: Seconds | None = Field(default=None, alias="for")
    service: str | None = None
    replica: Annotated[Whole, Field(ge=0)] = 0
    accelerator: str | None = None
    factor: Positive = 3.0


class Scenario(ApiModel):
    """One run: services, their requests, the cluster, and what goes wrong; `begins` is the wall clock at 0s."""

    rules = (
        Rule("", "duration must be above 0s", lambda scenario: scenario.duration > 0.0, ".duration"),
        Rule(
            "", "warmup must be shorter than duration", lambda scenario: scenario.warmup < scenario.duration, ".warmup"
        ),
        Rule(
            "",
            "services must have distinct names",
            lambda scenario: len({entry.name for entry in scenario.services}) == len(scenario.services),
            ".services",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=80)]
    duration: Seconds
    warmup: Seconds = 0.0
    begins: Begins = datetime.datetime.fromtimestamp(EPOCH_SECONDS, datetime.UTC)
    scrape_interval: Annotated[Seconds, Field(gt=0.0, le=300.0)] = 15.0
    services: Annotated[tuple[ServiceEntry, ...], Field(min_length=1, max_length=1000)]
    cluster: ClusterEntry
    faults: tuple[Fault, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Recorded requests and rates that it names."""
        workloads = [entry.workload for entry in self.services]
        lengths = [each.lengths.trace for each in workloads if each.lengths is not None]
        named = [part for each in workloads for part in (each.arrivals.trace, each.arrivals.rates)] + lengths
        return tuple(each.path for each in named if each is not None)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The scenario of a file; BadInput names the first field at fault."""
        try:
            content = read_yaml(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}: name a scenario file") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: not YAML: {_one_line(error)}") from None
        if not isinstance(content, Mapping):
            raise BadInput(f"{path}: not a scenario: a mapping with name, duration, services and cluster is expected")
        try:
            found = cls.model_validate(content)
        except pydantic.ValidationError as error:
            raise BadInput(f"{path}: {'; '.join(problems(error)[:3])}") from None
        found.check_names(path)
        found.check_times(path)
        return found

    def check_names(self, path: Path) -> None:
        """Whatever is named must be there."""
        there = self.cluster.accelerators
        for place, entry in enumerate(self.services):
            named = [accelerator.name for accelerator in entry.spec.accelerators] if entry.spec else []
            for name in [*named, *entry.initial_replicas, *entry.kv_tokens]:
                if name not in there:
                    raise BadInput(
                        f"{path}: services[{place}]: no accelerator {name!r} in cluster.accelerators: add it"
                    )
        for place, fault in enumerate(self.faults):
            if fault.service is not None and fault.service not in {entry.name for entry in self.services}:
                raise BadInput(f"{path}: faults[{place}].service: no service {fault.service!r}: name one of services")
            if fault.accelerator is not None and fault.accelerator not in there:
                remedy = f"no accelerator {fault.accelerator!r}: name one of cluster.accelerators"
                raise BadInput(f"{path}: faults[{place}].accelerator: {remedy}")

    def check_times(self, path: Path) -> None:
        """A fault must come while requests do: from then on nobody decides, and a run may be over."""
        for place, fault in enumerate(self.faults):
            if fault.at >= self.duration:
                late = f"{format_duration(fault.at)} is not before the end of duration"
                remedy = f"give less than {format_duration(self.duration)}, or a longer duration"
                raise BadInput(f"{path}: faults[{place}].at: {late}: {remedy}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
