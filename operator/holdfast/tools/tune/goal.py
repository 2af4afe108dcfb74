"""The options of `holdfast tune`, checked, and turned into what a search needs."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

from holdfast.domain.service import AcceleratorOption, ServiceSpec, Slo
from holdfast.enginemodel.catalog import find_accelerator
from holdfast.enginemodel.prior import LEAST_KV_TOKENS, EnginePrior, PriorSource, option_prior
from holdfast.enginemodel.suggestions import like_accelerator
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.bench.pages import report
from holdfast.tools.bench.runs.checks import check_lengths
from holdfast.tools.bench.runs.manifest import read_service
from holdfast.tools.reports.files import check_folders
from holdfast.tools.tune.engine_port import enough
from holdfast.tools.tune.limits import NO_BOUND_SECONDS, holds_something_else
from holdfast.tools.tune.rungs import rungs
from holdfast.tools.tune.setting import Setting
from holdfast.tools.tune.twin import TwinEngine
from holdfast.twin.scenarios.inputs import BadInput

OBJECTIVE = 0.99
SIMULATED_REQUESTS = 2000
"""Without an endpoint nobody waits for them."""


def check(arguments: argparse.Namespace) -> None:
    """Options that exclude or need each other; BadInput names the remedy."""
    if arguments.url is None and arguments.filename is None:
        raise BadInput("--url or -f is missing: give the address of an endpoint, or an LLMService manifest")
    if arguments.url is None and (arguments.limits_file is not None or arguments.restart_command is not None):
        raise BadInput("--limits-file and --restart-command need --url: -f alone uses no engine")
    if (arguments.slo is None) == (arguments.filename is None):
        raise BadInput("--slo or -f: give one of them, an LLMService has its own objectives")
    if arguments.filename is not None and arguments.objective is not None:
        raise BadInput("--objective cannot be combined with -f, which has its own")
    check_lengths(arguments)
    if arguments.url is None and arguments.summary is not None:
        raise BadInput("--summary needs --url: -f alone uses no engine")
    check_folders(arguments, "json", "plot", "summary")
    _check_ladder(arguments)
    _check_knobs(arguments)
    name = arguments.accelerator
    # A manifest describes its own accelerators, whatever their names.
    if name and arguments.filename is None and not arguments.unknown and find_accelerator(name) is None:
        remedy = "holdfast catalog lists the known ones; --unknown tunes with a guess"
        raise BadInput(f"--accelerator {name} is unknown; {like_accelerator(name)}{remedy}")


def _check_ladder(arguments: argparse.Namespace) -> None:
    loads = [name for name in ("concurrency", "rate") if getattr(arguments, name) is not None]
    if arguments.ladder is None:
        if loads:
            raise BadInput(f"--{loads[0]} belongs to --ladder: a search finds its rates itself")
        return
    if len(loads) != 1:
        raise BadInput("--ladder needs one load for all rungs: give --concurrency or --rate")
    if arguments.cv != 1.0 and arguments.concurrency is not None:
        raise BadInput("--cv cannot be combined with --concurrency: omit it, it is used with --rate")
    for name, unset in (("summary", None), ("gpu_memory_utilization", ()), ("time_limit", None)):
        if getattr(arguments, name) != unset:
            raise BadInput(f"--{name.replace('_', '-')} cannot be combined with --ladder: omit it")
    if arguments.ladder and arguments.max_num_seqs is not None:
        raise BadInput("--max-num-seqs and a list of --ladder: give one of them")


def _check_knobs(arguments: argparse.Namespace) -> None:
    ways = arguments.limits_file is not None or arguments.restart_command is not None
    if arguments.url is not None and not ways:
        raise BadInput(
            "--url needs a way to set limits: --limits-file, which the engine's plugin reads, or --restart-command"
        )
    if arguments.url is not None and arguments.gpu_memory_utilization and arguments.restart_command is None:
        raise BadInput("--gpu-memory-utilization cannot be changed live: give --restart-command")
    folder = None if arguments.limits_file is None else arguments.limits_file.absolute().parent
    if folder is not None and not folder.is_dir():
        raise BadInput(
            f"--limits-file {arguments.limits_file}: the folder does not exist: give the limits file of the engine"
        )
    if folder is not None and holds_something_else(arguments.limits_file):
        raise BadInput(
            f"--limits-file {arguments.limits_file}: the file does not contain limits: "
            "give the limits file of the engine"
        )


@dataclass(frozen=True, slots=True)
class TuningGoal:
    """What a good request is, and how many of them are wanted; a bound nobody gave is an hour."""

    slo: Slo
    bounds: LatencyBounds

    @classmethod
    def of(cls, bounds: LatencyBounds, objective: float) -> TuningGoal:
        """From bounds; each may be None."""
        ttft, tpot = bounds.ttft_seconds or NO_BOUND_SECONDS, bounds.tpot_seconds or NO_BOUND_SECONDS
        return cls(Slo(ttft, tpot, objective, 3600.0, bounds.e2e_seconds), bounds)

    @property
    def told(self) -> str:
        """In words."""
        return f"{100 * self.slo.objective:g} % with {', '.join(report.bounds(self.bounds))}"


def service_of(arguments: argparse.Namespace) -> ServiceSpec | None:
    """The manifest's service, None without -f; BadInput."""
    return None if arguments.filename is None else read_service(arguments.filename)


def wanted_of(arguments: argparse.Namespace, service: ServiceSpec | None) -> TuningGoal:
    """The manifest's objectives, else --slo and --objective."""
    if service is None:
        return TuningGoal.of(arguments.slo, arguments.objective or OBJECTIVE)
    slo = service.slo
    return TuningGoal(slo, LatencyBounds(slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds))


def counted_of(arguments: argparse.Namespace, wanted: TuningGoal) -> int:
    """Requests that count in a trial."""
    return arguments.requests or (SIMULATED_REQUESTS if arguments.url is None else enough(wanted.slo.objective))


@dataclass(frozen=True, slots=True)
class Told:
    """What a live engine says of itself: its KV cache (0: unknown), its share of GPU memory (NaN: unknown)."""

    kv_tokens: int = 0
    memory_share: float = math.nan


@dataclass(frozen=True, slots=True)
class Believed:
    """What is believed of an engine: its `accelerator`, the `source` of the belief, its step times and memory."""

    accelerator: str
    source: PriorSource
    engine: TwinEngine
    defaults: Setting


def believed(
    model_uri: str, option: AcceleratorOption, quantization: str | None = None, live: Told | None = None
) -> Believed:
    """By the shipped tables and data sheets, and what a live engine tells."""

    def prior(memory: float | None) -> EnginePrior:
        return option_prior(model_uri, option, quantization, memory)

    def tokens(setting: Setting) -> int:
        memory = setting.gpu_memory_utilization
        found = prior(memory)
        held = found.kv_tokens_with(found.limits(setting.max_num_seqs, setting.max_num_batched_tokens))
        if live is None:
            return held
        if live.kv_tokens and memory is None:
            return live.kv_tokens
        if live.kv_tokens and memory is not None and not math.isnan(live.memory_share):
            held = live.kv_tokens + int(found.memory.more_tokens(memory - live.memory_share))
        return max(held, LEAST_KV_TOKENS)  # it serves, so that it holds some requests, whatever the tables say

    first = prior(None)
    defaults = Setting(first.max_num_seqs_default, first.max_num_batched_tokens_default)
    return Believed(option.name, first.source, TwinEngine(first.timer, first.law, tokens), defaults)


def most_of(arguments: argparse.Namespace, service: ServiceSpec | None, defaults: Setting) -> Setting:
    """The largest limits to look for: the options', else the manifest's, else vLLM's defaults. BadInput."""
    batching = None if service is None else service.batching
    listed_most = arguments.ladder[-1] if arguments.ladder else None
    sequences = listed_most or arguments.max_num_seqs or (batching and batching.max_num_seqs) or defaults.max_num_seqs
    tokens = arguments.max_num_batched_tokens or (batching and batching.max_num_batched_tokens)
    tokens = tokens or defaults.max_num_batched_tokens
    if tokens < sequences:
        raise BadInput(
            f"{tokens} tokens per step are fewer than {sequences} sequences, which vLLM refuses: lower --max-num-seqs"
        )
    return Setting(sequences, tokens)


def ladder_of(arguments: argparse.Namespace, most: Setting) -> tuple[Setting, ...]:
    """The rungs as limits, with the tokens per step of `most`. BadInput where an engine cannot have them."""
    found = arguments.ladder or rungs(most.max_num_seqs)
    if found[-1] > most.max_num_batched_tokens:
        raise BadInput(
            f"{most.max_num_batched_tokens} tokens per step are fewer than {found[-1]} sequences, which vLLM refuses: "
            "lower the last rung of --ladder, or raise --max-num-batched-tokens"
        )
    return tuple(replace(most, max_num_seqs=sequences) for sequences in found)
