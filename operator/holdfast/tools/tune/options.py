"""The options of `holdfast tune`: checked, and turned into what a search needs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.domain.service import AcceleratorOption, ServiceSpec, Slo
from holdfast.enginemodel.prior import LEAST_KV_TOKENS, EnginePrior, PriorSource, option_prior
from holdfast.tools.bench import definitions, options, report
from holdfast.tools.bench.checks import check_folders, check_lengths
from holdfast.tools.bench.manifest import read_service
from holdfast.tools.tune.engine_port import enough
from holdfast.tools.tune.limits import NO_BOUND_SECONDS, holds_something_else
from holdfast.tools.tune.setting import Setting
from holdfast.tools.tune.twin import TwinEngine
from holdfast.twin.scenario import BadInput
from holdfast.twin.traces import FORMATS

OBJECTIVE = 0.99
SIMULATED_REQUESTS = 2000
"""Without an endpoint nobody waits for them."""

LEAST_MEMORY, MOST_MEMORY = 0.1, 0.99


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    options.add_endpoint(parser)
    parser.add_argument(
        "-f",
        "--filename",
        type=Path,
        metavar="FILE",
        help="file with an LLMService manifest; without --url no engine is used",
    )
    engine = parser.add_argument_group("how limits are set")
    engine.add_argument(
        "--limits-file",
        type=Path,
        metavar="FILE",
        help="the file from which the plugin of the engine reads limits at run time",
    )
    engine.add_argument(
        "--restart-command",
        type=_command,
        metavar="COMMAND",
        help="command that restarts the engine, run without a shell; {max_num_seqs}, {max_num_batched_tokens} and "
        "{gpu_memory_utilization} stand for the limits",
    )
    engine.add_argument("--restart-timeout", type=options.some_time_option, default=600.0, help="default 600s")
    engine.add_argument(
        "--max-num-seqs", type=options.whole_option, metavar="N", help="maximum number of sequences to test"
    )
    engine.add_argument(
        "--max-num-batched-tokens",
        type=options.tokens_option,
        metavar="N",
        help="maximum number of tokens per step to test",
    )
    engine.add_argument(
        "--gpu-memory-utilization",
        type=_shares,
        default=(),
        metavar="0.92,0.95",
        help="shares of GPU memory to test if the KV cache is the limit; each needs a restart",
    )
    model = parser.add_argument_group("the model that proposes")
    model.add_argument(
        "--accelerator", default="", metavar="NAME", help="accelerator that the endpoint runs on, such as h100"
    )
    model.add_argument(
        "--gpus", type=options.whole_option, default=1, metavar="N", help="number of GPUs of one engine (default 1)"
    )
    _add_load(parser)
    out = parser.add_argument_group("what is written")
    out.add_argument("--json", nargs="?", const="-", metavar="FILE", help="without FILE to standard output")
    options.add_plot(out)
    out.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="of an endpoint: the result, or why there is none, in 4 KiB of JSON; exit 0 says that it was measured",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("requests, and when they are good")
    load.add_argument("--slo", type=options.slo_option, metavar="ttft=500ms,tpot=30ms,e2e=20s", help="a good request")
    load.add_argument(
        "--objective", type=options.percent_option, help="share of requests that must be good (default 99%%)"
    )
    options.add_lengths(load)
    load.add_argument("--format", choices=sorted(FORMATS), default="csv", help="format of --lengths (default csv)")
    load.add_argument(
        "--cv",
        type=options.cv_option,
        default=1.0,
        help="coefficient of variation of the gaps between requests (default 1: Poisson)",
    )
    load.add_argument(
        "--requests",
        type=options.requests_option,
        metavar="N",
        help="number of counted requests per trial (default: by --objective)",
    )
    load.add_argument(
        "--seed",
        type=options.seed_option,
        default=1,
        help="random seed of lengths and arrival times; prompts are always new",
    )
    load.add_argument("--most-trials", type=options.whole_option, default=60, metavar="N", help="default 60")
    load.add_argument("--time-limit", type=options.some_time_option, help="start no trial after this time")
    load.add_argument(
        "--drain", type=options.duration_option, default=60.0, help="time to wait for the last answers (default 60s)"
    )
    load.add_argument(
        "--max-client-lag",
        type=options.duration_option,
        default=0.005,
        help="reject results of a slower client (default 5ms)",
    )


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
    _check_knobs(arguments)


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
    bounds: definitions.LatencyBounds

    @classmethod
    def of(cls, bounds: definitions.LatencyBounds, objective: float) -> TuningGoal:
        """From bounds of which each may be None."""
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
    return TuningGoal(slo, definitions.LatencyBounds(slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds))


def counted_of(arguments: argparse.Namespace, wanted: TuningGoal) -> int:
    """Requests that count in a trial."""
    return arguments.requests or (SIMULATED_REQUESTS if arguments.url is None else enough(wanted.slo.objective))


@dataclass(frozen=True, slots=True)
class Told:
    """What a live engine says of itself: the size of its KV cache, 0 where it does not."""

    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Believed:
    """What is believed of an engine: of which `accelerator`, from which `source`, and its step times and memory."""

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
        if live is None:
            return prior(memory).kv_tokens
        # It serves, so that it holds some requests, whatever the tables say.
        return live.kv_tokens if memory is None and live.kv_tokens else max(prior(memory).kv_tokens, LEAST_KV_TOKENS)

    first = prior(None)
    defaults = Setting(first.max_num_seqs_default, first.max_num_batched_tokens_default)
    return Believed(option.name, first.source, TwinEngine(first.timer, first.law, tokens), defaults)


def most_of(arguments: argparse.Namespace, service: ServiceSpec | None, defaults: Setting) -> Setting:
    """The largest limits to look for: the options', else the manifest's, else vLLM's defaults. BadInput."""
    batching = None if service is None else service.batching
    sequences = arguments.max_num_seqs or (batching and batching.max_num_seqs) or defaults.max_num_seqs
    tokens = arguments.max_num_batched_tokens or (batching and batching.max_num_batched_tokens)
    tokens = tokens or defaults.max_num_batched_tokens
    if tokens < sequences:
        raise BadInput(
            f"{tokens} tokens per step are fewer than {sequences} sequences, which vLLM refuses: lower --max-num-seqs"
        )
    return Setting(sequences, tokens)


def _command(text: str) -> Sequence[str]:
    try:
        found = shlex.split(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}: quote it as a shell would take it") from None
    if not found:
        raise argparse.ArgumentTypeError("empty: give a program and its arguments")
    return found


def _shares(text: str) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or not all(LEAST_MEMORY <= share <= MOST_MEMORY for share in found):
        raise argparse.ArgumentTypeError(f"{text!r}: give shares from {LEAST_MEMORY} to {MOST_MEMORY}, as 0.92,0.95")
    return found
