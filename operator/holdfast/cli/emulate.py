"""`holdfast emulate`: an emulated vLLM engine; takes vLLM's own flags."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from holdfast.emulator.fast_loop import SCHEDULER_CLASS
from holdfast.emulator.metrics import BadBuckets, checked_buckets
from holdfast.emulator.options import DRAIN_FILE, BadOptions, EmulatorOptions
from holdfast.emulator.server import serve
from holdfast_engine.limits import DEFAULT_LIMITS, LIMITS_VARIABLE

ENVIRONMENT = "HOLDFAST_EMULATE_"
HELP = "an OpenAI-compatible server with vLLM's timing and metrics, without a GPU"
EXAMPLE = """examples:
  holdfast emulate --model Qwen/Qwen3-8B --accelerator h100 --port 8000
  holdfast emulate serve Qwen/Qwen3-8B --max-num-seqs=64 --max-num-queued-tokens=20k

Flags of `vllm serve` that change nothing here are accepted and named on standard error. The emulator's own flags can
also come from the environment: --cold-start from HOLDFAST_EMULATE_COLD_START and so on."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its arguments are parsed in `run`, where flags of vLLM that are unknown here may pass."""
    parser = subparsers.add_parser("emulate", help=HELP, add_help=False, prefix_chars="\0")
    parser.add_argument("engine_arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop; 2 for bad flags."""
    try:
        options, ignored = parse_options(arguments.engine_arguments, os.environ)
        if ignored:
            print(f"holdfast emulate: flags without effect: {' '.join(ignored)}", file=sys.stderr)
        asyncio.run(serve(options, _announce))
    except (BadOptions, BadBuckets) as problem:
        print(f"holdfast emulate: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"holdfast emulate: cannot serve: {problem}; choose another --host or --port", file=sys.stderr)
        return 1
    return 0


def parse_options(given: Sequence[str], environment: Mapping[str, str]) -> tuple[EmulatorOptions, list[str]]:
    """The options, and the arguments without effect; BadOptions names the flag at fault."""
    arguments = [_dashed(argument) for argument in given]
    if arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    parsed, ignored = _parser(environment).parse_known_args(arguments)
    model = parsed.model or parsed.model_flag
    if not model:
        raise BadOptions("--model is missing; give a model, such as --model Qwen/Qwen3-8B")
    keys = parsed.api_key or ([environment["VLLM_API_KEY"]] if environment.get("VLLM_API_KEY") else [])
    options = EmulatorOptions(
        model=model,
        accelerator=parsed.accelerator,
        tensor_parallel_size=parsed.tensor_parallel_size,
        pipeline_parallel_size=parsed.pipeline_parallel_size,
        data_parallel_size=parsed.data_parallel_size,
        quantization=parsed.quantization,
        served_names=tuple(parsed.served_model_name or ()),
        host=parsed.host,
        port=parsed.port,
        api_keys=tuple(keys),
        max_model_len=parsed.max_model_len,
        max_num_seqs=parsed.max_num_seqs,
        max_num_batched_tokens=parsed.max_num_batched_tokens,
        max_num_active_seqs=parsed.max_num_active_seqs,
        max_num_queued_tokens=parsed.max_num_queued_tokens,
        max_num_queued_reqs=parsed.max_num_queued_reqs,
        long_prefill_token_threshold=parsed.long_prefill_token_threshold,
        kv_tokens=parsed.kv_tokens,
        custom_buckets=parsed.custom_histogram_buckets,
        mfu_metrics=parsed.enable_mfu_metrics,
        shutdown_timeout_seconds=parsed.shutdown_timeout,
        cold_start_seconds=parsed.cold_start,
        async_scheduling=parsed.async_scheduling,
        enforce_eager=parsed.enforce_eager,
        max_cudagraph_capture_size=parsed.max_cudagraph_capture_size,
        host_factor=parsed.host_factor,
        front_end_factor=parsed.front_end_factor,
        speed=parsed.speed,
        connection_close_share=parsed.connection_close_share,
        drain_file=environment.get("HOLDFAST_DRAIN_FILE", DRAIN_FILE),
        keep_alive_seconds=_keep_alive_seconds(environment),
        replica=environment.get("HOSTNAME", ""),
        engine_limits=_engine_limits(parsed, environment),
    )
    return options, ignored


def _engine_limits(parsed: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The files of the fast loop, None without it: the scheduler class turns it on as in vLLM."""
    if parsed.scheduler_cls not in (None, SCHEDULER_CLASS):
        raise BadOptions(f"--scheduler-cls {parsed.scheduler_cls}: only {SCHEDULER_CLASS} can be emulated")
    if parsed.scheduler_cls is None and parsed.engine_limits is None:
        return None
    named = parsed.engine_limits or environment.get(LIMITS_VARIABLE) or DEFAULT_LIMITS
    return tuple(named.split(os.pathsep))


def _keep_alive_seconds(environment: Mapping[str, str]) -> float:
    try:
        return _seconds(environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75"))
    except argparse.ArgumentTypeError as problem:
        raise BadOptions(f"VLLM_HTTP_TIMEOUT_KEEP_ALIVE: {problem}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise BadOptions(message.removeprefix("argument "))


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast emulate",
        description=HELP[0].upper() + HELP[1:] + ".",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", help="model, as `serve MODEL` names it")
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same as a flag")
    _add_engine_flags(parser)
    _add_emulator_flags(parser, environment)
    return parser


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("flags of vllm serve")
    count, tokens = _whole(1), _tokens
    engine.add_argument(
        "--served-model-name", nargs="+", help="model names that clients use; the first one is the label of metrics"
    )
    engine.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - a pod's address
    engine.add_argument("--port", type=_port, default=8000, help="port to listen on, 0 for any free one")
    engine.add_argument("--api-key", nargs="+", help="API keys that clients must send (VLLM_API_KEY)")
    engine.add_argument("--tensor-parallel-size", "-tp", type=count, default=1, help="number of GPUs of each stage")
    engine.add_argument("--pipeline-parallel-size", "-pp", type=count, default=1, help="number of stages of an engine")
    engine.add_argument(
        "--data-parallel-size", "-dp", type=count, default=1, help="number of engines behind the server"
    )
    engine.add_argument(
        "--quantization", "-q", help="quantization, such as fp8: uses the timing table of the quantized model"
    )
    engine.add_argument("--max-model-len", type=tokens, help="context length in tokens")
    engine.add_argument("--max-num-seqs", type=count, help="maximum number of running sequences")
    engine.add_argument("--max-num-batched-tokens", type=tokens, help="maximum number of tokens per step")
    engine.add_argument("--max-num-active-seqs", type=count, help="maximum number of sequences admitted to run")
    engine.add_argument(
        "--max-num-queued-tokens", type=_tokens_or_zero, help="maximum number of queued prompt tokens; above it 503"
    )
    engine.add_argument(
        "--max-num-queued-reqs", type=_whole(0), help="maximum number of requests in the engine; above it 503"
    )
    engine.add_argument(
        "--long-prefill-token-threshold", type=_whole(0), default=0, help="maximum size of a prompt chunk in tokens"
    )
    engine.add_argument(
        "--custom-histogram-buckets", type=_buckets, default={}, help="JSON: bucket edges by metric family"
    )
    engine.add_argument(
        "--enable-mfu-metrics",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="count estimated FLOPs and bytes moved per GPU",
    )
    engine.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="schedule the next step while one is computed",
    )
    engine.add_argument(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="launch every step kernel by kernel, without CUDA graphs",
    )
    engine.add_argument(
        "--max-cudagraph-capture-size", type=count, help="tokens of the largest step that has a CUDA graph"
    )
    engine.add_argument("--scheduler-cls", help=f"{SCHEDULER_CLASS} turns the fast loop on")
    engine.add_argument("--shutdown-timeout", type=_seconds, default=0.0, help="seconds to drain after SIGTERM")


def _add_emulator_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    own = parser.add_argument_group("flags of the emulator")

    def add(flag: str, kind: Callable[[str], object], default: str | None, text: str) -> None:
        # argparse converts defaults given as text, so the environment is checked like a flag.
        name = ENVIRONMENT + flag.removeprefix("--").replace("-", "_").upper()
        own.add_argument(flag, type=kind, default=environment.get(name, default), help=f"{text} ({name})")

    add(
        "--accelerator",
        str,
        environment.get("HOLDFAST_ACCELERATOR", "h100"),
        "GPU whose timing is emulated, by name or product label",
    )
    add("--kv-tokens", _tokens, None, "size of the KV cache in tokens (default: what fits into the GPU memory)")
    add("--cold-start", _seconds, "0", "seconds before the server listens")
    add("--host-factor", _factor, "1", "factor on the host time of every step, 0 for none")
    add("--front-end-factor", _factor, "0", "factor on the time of a usual API server, added to that of this one")
    add("--speed", _positive, "1", "factor by which every step runs faster")
    add(
        "--engine-limits",
        str,
        None,
        f"file with the fast loop's limits, which it turns on ({LIMITS_VARIABLE} names it too)",
    )
    close_share = environment.get("HOLDFAST_CONNECTION_CLOSE_SHARE", "0")
    add("--connection-close-share", _share, close_share, "share of answers that close their connection")


def _dashed(argument: str) -> str:
    """vLLM takes --max_num_seqs as well as --max-num-seqs."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least {least}")
        return int(text)

    return parse


def _tokens_or_zero(text: str) -> int:
    """vLLM's notation: 20000, 20k, 2.5k (thousands), 32K (1024s), and m, g the same way."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])|(\d+)([KMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give tokens, e.g. 20000, 20k or 32K")
    if match[2]:
        return int(float(match[1]) * 1000.0 ** (" kmg".index(match[2])))
    return int(match[3]) << 10 * " KMG".index(match[4] or " ")


def _tokens(text: str) -> int:
    tokens = _tokens_or_zero(text)
    if tokens < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give at least 1 token")
    return tokens


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: give a port, 0..65535")
    return int(text)


def _number(text: str, least: float, most: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
    return value


def _seconds(text: str) -> float:
    return _number(text, 0.0, 86_400.0, "seconds from 0 to a day, e.g. 0.5")


def _positive(text: str) -> float:
    return _number(text, 1e-3, 1e6, "a number from 0.001, e.g. 2")


def _factor(text: str) -> float:
    return _number(text, 0.0, 100.0, "a number from 0 to 100, e.g. 1.5")


def _share(text: str) -> float:
    return _number(text, 0.0, 1.0, "a share from 0 to 1, e.g. 0.02")


def _buckets(text: str) -> dict[str, list[float]]:
    try:
        given = json.loads(text)
        checked_buckets(given if isinstance(given, dict) else {"": []})
    except (ValueError, BadBuckets) as problem:
        raise argparse.ArgumentTypeError(f'{problem}; give JSON like {{"time_to_first_token": [0.25, 0.5]}}') from None
    return {str(family): edges for family, edges in given.items()}


def _announce(port: int) -> None:
    print(f"holdfast emulate: serving on port {port}", flush=True)
