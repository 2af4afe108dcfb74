"""The parser of `holdfast plan`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from holdfast.api.quantities import parse_percent
from holdfast.cli.commands import COMMANDS
from holdfast.cli.values import duration_seconds
from holdfast.domain.speculation import Speculation
from holdfast.domain.typical_lengths import TYPICAL_OUTPUT_TOKENS, TYPICAL_PROMPT_TOKENS
from holdfast.twin.scenarios.inputs import PEER_NAMES, TRACE_FORMATS

EXAMPLE = """examples:
  holdfast plan -f examples/chat.yaml --rate 20 --prompt-tokens 1155 --output-tokens 211
  holdfast plan --model Qwen/Qwen3-8B --accelerator h100 --ttft 500ms --tpot 30ms --rate 20
  holdfast plan --model Qwen/Qwen3-8B --accelerator h100 --ttft 1s --tpot 50ms --rate 20 --cost h100=2.95
  holdfast plan -f examples/chat.yaml --trace examples/traces/azure-conv-excerpt.csv --plot plan.html
  holdfast plan -f examples/chat.yaml --trace examples/traces/azure-conv-excerpt.csv --perfect

Exit 0: a size within the spec attains the objective. 1: none does; the output says what would be possible."""
MOST_DRAFTED = 64
DEFAULT_PEER, COLD_START_SECONDS = "hpa", 90.0
PICTURES = (".html", ".png")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan",
        help=COMMANDS["plan"],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-f", "--filename", type=Path, metavar="FILE", help="file with an LLMService manifest")
    _add_service(parser)
    _add_load(parser)
    _add_choices(parser)
    _add_perfect(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--plot", type=_picture, default=None, metavar="FILE.html|.png", help="write a chart to this file"
    )


def _add_service(parser: argparse.ArgumentParser) -> None:
    service = parser.add_argument_group("instead of a manifest")
    service.add_argument("--model", help="model URI, such as Qwen/Qwen3-8B")
    service.add_argument(
        "--accelerator",
        action="append",
        metavar="NAME[:COUNT]",
        help="accelerator by catalogue name (see holdfast catalog), with GPUs per replica; may be repeated",
    )
    service.add_argument(
        "--unknown", action="store_true", help="accept a model or accelerator that is not in the catalog, and guess"
    )
    service.add_argument("--ttft", help="objective for the time to first token, such as 500ms")
    service.add_argument("--tpot", help="objective for the time per output token, such as 50ms")
    service.add_argument("--objective", help="share of requests that must meet both (default 99%%)")


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", type=Path, help="file with recorded requests; the plan is for their busiest minute")
    load.add_argument("--rate", type=_positive, metavar="RPS", help="requests per second, of random lengths")
    parser.add_argument("--format", choices=TRACE_FORMATS, default="csv", help="format of the trace (default csv)")
    parser.add_argument(
        "--prompt-tokens", type=_positive, help=f"mean length of prompts (default {TYPICAL_PROMPT_TOKENS:g})"
    )
    parser.add_argument(
        "--output-tokens", type=_positive, help=f"mean length of answers (default {TYPICAL_OUTPUT_TOKENS:g})"
    )
    parser.add_argument(
        "--class",
        dest="classes",
        type=_class,
        action="append",
        default=[],
        metavar="NAME=20%",
        help="share of the requests that claim a class of the manifest, or are for an adapter with an slo; may be "
        "repeated",
    )
    parser.add_argument(
        "--cv", type=_positive, default=1.0, help="coefficient of variation of both lengths (default 1)"
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-num-seqs",
        type=_sequences,
        default=(),
        metavar="8,16,64",
        help="numbers of sequences to plan for, in place of the manifest's or vLLM's own",
    )
    parser.add_argument(
        "--speculate",
        type=_speculation,
        metavar="TOKENS:ACCEPTANCE",
        help="also tell what drafts gain and where they lose: tokens drafted a step, and the share of them that is "
        "accepted, such as 3:0.62 (vLLM logs it; in the status it is acceptedDraftTokens / speculativeTokens)",
    )
    parser.add_argument(
        "--cost",
        action="append",
        default=[],
        metavar="h100=2.95",
        help="dollars per GPU and hour of an accelerator, in place of the manifest's costPerHour; may be repeated",
    )


def _add_perfect(parser: argparse.ArgumentParser) -> None:
    perfect = parser.add_argument_group("a perfect system")
    perfect.add_argument(
        "--perfect",
        action="store_true",
        help="GPU-hours that the whole trace takes of an autoscaler that knows every arrival, of Holdfast, of the best "
        "fixed size and of a peer, in place of the plan",
    )
    perfect.add_argument("--peer", choices=PEER_NAMES, help=f"the other autoscaler (default {DEFAULT_PEER})")
    perfect.add_argument(
        "--cold-start",
        type=duration_seconds,
        help=f"time from a new replica to its first token (default {COLD_START_SECONDS:g}s)",
    )


def _sequences(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part[:9]) > 0 and len(part) <= 6 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers of sequences above 0, such as 8,16,64")
    return tuple(dict.fromkeys(map(int, parts)))


def _class(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    try:
        return name, parse_percent(share)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: give a class and its share, as premium=20%: {problem}") from None


def _speculation(text: str) -> Speculation:
    tokens, _, share = text.partition(":")
    try:
        accepted = float(share)
    except ValueError:
        accepted = math.nan
    if not (tokens.isascii() and tokens.isdigit() and 0 < int(tokens[:9]) <= MOST_DRAFTED and 0.0 <= accepted <= 1.0):
        remedy = f"give 1 to {MOST_DRAFTED} tokens drafted a step, and the share of them that is accepted, as 3:0.62"
        raise argparse.ArgumentTypeError(f"{text!r}: {remedy}")
    return Speculation(int(tokens), accepted)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: give a positive number below a billion")
    return value


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r}: give a file name that ends with {' or '.join(PICTURES)}")
    return path
