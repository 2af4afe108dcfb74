"""The parsers of `holdfast emulate`: the command, and the flags of an engine."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.cli.commands import COMMANDS
from holdfast.cli.values import number
from holdfast_engine.objectives.limits import LIMITS_VARIABLE, SCHEDULER_CLASS

ENVIRONMENT = "HOLDFAST_EMULATE_"
EXAMPLE = """examples:
  holdfast emulate --model Qwen/Qwen3-8B --accelerator h100 --port 8000
  holdfast emulate serve Qwen/Qwen3-8B --max-num-seqs=64 --max-num-queued-tokens=20k

Other flags of `vllm serve` are accepted and named on standard error; they change nothing here. Flags that vLLM does not
know are refused as vLLM does. The emulator's own flags can also come from the environment: --cold-start from
HOLDFAST_EMULATE_COLD_START and so on."""
VLLM_FLAGS = Path(__file__).parents[2] / "emulator" / "vllm_flags.json"
"""Every flag of `vllm serve` by its spellings and how many values it takes; `python -m e2e.vllm flags` writes it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its arguments are parsed later, as an engine's."""
    parser = subparsers.add_parser("emulate", help=COMMANDS["emulate"], add_help=False, prefix_chars="\0")
    parser.add_argument("engine_arguments", nargs=argparse.REMAINDER, action=_Remainder)


class _Remainder(argparse._StoreAction):
    """Keeps the arguments for the engine's parser, but shows its help at once: the engine takes long to load."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if {"-h", "--help"} & set(values):
            flag_parser(os.environ).parse_args(["--help"])
        super().__call__(parser, namespace, values, option)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise argparse.ArgumentError(None, message.removeprefix("argument "))


def flag_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of an engine's flags; it raises ArgumentError with the flag at fault."""
    about = COMMANDS["emulate"]
    parser = _Parser(
        prog="holdfast emulate",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="model, as `serve MODEL` names it")
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same as a flag")
    _add_engine_flags(parser)
    _add_emulator_flags(parser, environment)
    _add_flags_without_effect(parser)
    return parser


class _WithoutEffect(argparse.Action):
    """Remembers that a flag was given, and its values."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        told = [values] if isinstance(values, str) else values or []
        namespace.without_effect = [*namespace.without_effect, " ".join([option or "", *told])]


def _add_flags_without_effect(parser: argparse.ArgumentParser) -> None:
    """Add the flags of vLLM that are not there yet."""
    parser.set_defaults(without_effect=[])
    for spellings, values in json.loads(VLLM_FLAGS.read_text()):
        missing = [each for each in spellings if each not in parser._option_string_actions]
        if len(missing) == len(spellings):
            parser.add_argument(
                *spellings, nargs=values, action=_WithoutEffect, default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("flags of vllm serve")
    _add_server(engine)
    _add_hardware(engine)
    _add_limits(engine)
    _add_steps(engine)


def _add_server(engine: argparse._ArgumentGroup) -> None:
    engine.add_argument(
        "--served-model-name", nargs="+", help="model names that clients use; the first one is the label of metrics"
    )
    engine.add_argument(
        "--lora-modules",
        nargs="+",
        type=_adapter,
        default=[],
        help="adapters, as NAME=PATH or JSON",
    )
    engine.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - a pod's address
    engine.add_argument("--port", type=_port, default=8000, help="port to listen on, 0 for any free one")
    engine.add_argument("--api-key", nargs="+", help="API keys that clients must send (VLLM_API_KEY)")
    engine.add_argument("--shutdown-timeout", type=seconds_option, default=0.0, help="seconds to drain after SIGTERM")
    engine.add_argument(
        "--custom-histogram-buckets", type=_buckets, default={}, help="JSON: bucket edges by metric family"
    )
    engine.add_argument(
        "--enable-mfu-metrics",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="count estimated FLOPs and bytes moved per GPU",
    )


def _add_hardware(engine: argparse._ArgumentGroup) -> None:
    count = _whole(1)
    engine.add_argument("--tensor-parallel-size", "-tp", type=count, default=1, help="number of GPUs of each stage")
    engine.add_argument("--pipeline-parallel-size", "-pp", type=count, default=1, help="number of stages of an engine")
    engine.add_argument(
        "--data-parallel-size", "-dp", type=count, default=1, help="number of engines behind the server"
    )
    engine.add_argument(
        "--quantization", "-q", help="quantization, such as fp8: uses the timing table of the quantized model"
    )
    engine.add_argument(
        "--gpu-memory-utilization",
        "--device-memory-utilization",
        type=_some_share,
        help="share of the GPU's memory that the engine may use (default 0.92)",
    )


def _add_limits(engine: argparse._ArgumentGroup) -> None:
    count, tokens = _whole(1), _tokens
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


def _add_steps(engine: argparse._ArgumentGroup) -> None:
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
        "--max-cudagraph-capture-size", type=_whole(1), help="tokens of the largest step that has a CUDA graph"
    )
    engine.add_argument("--scheduler-cls", help=f"{SCHEDULER_CLASS} turns the fast loop on")


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
    own.add_argument(
        "--unknown", action="store_true", help="accept an --accelerator that is not in the catalog, and guess"
    )
    add("--kv-tokens", _tokens, None, "size of the KV cache in tokens (default: what fits into the GPU memory)")
    add("--cold-start", seconds_option, "0", "seconds before the server listens")
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


def seconds_option(text: str) -> float:
    """Seconds up to a day."""
    return number(text, 0.0, 86_400.0, "seconds from 0 to a day, e.g. 0.5")


def _positive(text: str) -> float:
    return number(text, 1e-3, 1e6, "a number from 0.001, e.g. 2")


def _factor(text: str) -> float:
    return number(text, 0.0, 100.0, "a number from 0 to 100, e.g. 1.5")


def _share(text: str) -> float:
    return number(text, 0.0, 1.0, "a share from 0 to 1, e.g. 0.02")


def _some_share(text: str) -> float:
    return number(text, 1e-3, 1.0, "a share above 0 and up to 1, e.g. 0.3")


def _adapter(text: str) -> str:
    """The name of an adapter; its files are not read."""
    name, equals, path = text.partition("=")
    try:
        given = {"name": name, "path": path} if equals and "," not in text else json.loads(text)
        if given["name"] and given["path"]:
            return str(given["name"])
    except (ValueError, KeyError, TypeError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: give NAME=PATH or JSON with name and path")


def _buckets(text: str) -> dict[str, list[float]]:
    from holdfast.emulator.metrics import BadBuckets, checked_buckets  # the metrics load only if this flag is given

    try:
        given = json.loads(text)
        checked_buckets(given if isinstance(given, dict) else {"": []})
    except (ValueError, BadBuckets) as problem:
        raise argparse.ArgumentTypeError(f'{problem}; give JSON like {{"time_to_first_token": [0.25, 0.5]}}') from None
    return {str(family): edges for family, edges in given.items()}
