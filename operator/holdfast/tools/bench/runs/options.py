"""The options of `holdfast bench`: checked, and turned into an endpoint, a load and a generator."""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.api.quantities import parse_duration_seconds, parse_percent
from holdfast.enginemodel.catalog import ACCELERATORS, AcceleratorShape, ModelShape, find_accelerator, find_model
from holdfast.enginemodel.suggestions import like_accelerator, like_model
from holdfast.tools.bench.figures.thresholds import Threshold
from holdfast.tools.bench.load.load_generator import (
    BATCH,
    MOST_REQUESTS,
    MOST_TOKENS,
    Api,
    ClassShare,
    Endpoint,
    LatencyBounds,
    LoadStep,
    PromptKind,
)
from holdfast.twin.scenarios.inputs import TRACE_FORMATS, BadInput
from holdfast_engine.objectives.rules import is_class_name

KEYS = ("HOLDFAST_API_KEY", "OPENAI_API_KEY")
AUTO = "auto"
PICTURES = (".html", ".png")
PREFIX_TOKENS = 256
"""Of a session by default."""
_BOUNDS = ("ttft", "tpot", "e2e")


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add where requests go and how they are put: what `endpoint_of` reads."""
    where = parser.add_argument_group("endpoint")
    where.add_argument("--url", type=_url, help="address of an OpenAI-compatible server, with or without /v1")
    where.add_argument("--model", default="", help="model name (default: the one that is served)")
    where.add_argument("--api", type=Api, choices=list(Api), default=Api.COMPLETIONS, help="default: completions")
    where.add_argument("--api-key-file", type=Path, help=f"file with the key (default: from {' or '.join(KEYS)})")
    where.add_argument("--ca-file", type=Path, help="file with CA certificates to trust for https")
    where.add_argument("--timeout", type=some_time_option, default=600.0, help="timeout of one request (default 600s)")
    where.add_argument(
        "--prompts",
        type=PromptKind,
        choices=list(PromptKind),
        default=PromptKind.WORDS,
        help="prompts of words or of token ids (default words)",
    )
    where.add_argument(
        "--sessions",
        type=whole_option,
        default=0,
        metavar="N",
        help="number of sessions: each prompt begins with the prefix of one of them, which x-session-id names (default:"
        " no two prompts begin alike)",
    )
    where.add_argument(
        "--prefix-tokens", type=tokens_option, metavar="N", help="length of a session's prefix (default 256)"
    )
    where.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="let the model end its answers; needed if the server does not support ignore_eos",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    add_endpoint(parser)
    _add_load(parser)
    _add_counting(parser)
    out = parser.add_argument_group("what is written")
    out.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="file for all figures as JSON; without FILE, standard output",
    )
    add_plot(out)
    out.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="the result, or why there is none, in 4 KiB of JSON; exit 0 then says that it was measured",
    )
    out.add_argument(
        "--records",
        type=Path,
        metavar="FILE.jsonl",
        help="file for the outcome of each request, with the time of each token",
    )


def add_plot(out: argparse._ArgumentGroup) -> None:
    """Add --plot, a list of files that is empty where it is not given."""
    told = "file for an HTML page or a picture; may be repeated"
    out.add_argument("--plot", type=picture_option, action="append", default=[], metavar="FILE.html|.png", help=told)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load: give one of the first ten")
    _add_kinds_of_load(load)
    _add_arrivals(load)
    add_lengths(load)
    _add_extent(load)


def _add_kinds_of_load(load: argparse._ArgumentGroup) -> None:
    load.add_argument("--rate", type=positive_option, metavar="RPS", help="requests per second")
    load.add_argument(
        "--steps", type=_steps, metavar="0s=2,60s=10", help="steps of requests per second, each from a given time on"
    )
    load.add_argument("--trace", type=Path, metavar="FILE", help="file with recorded arrivals and lengths to replay")
    load.add_argument(
        "--concurrency",
        type=whole_option,
        metavar="N",
        help="number of concurrent requests; the next one is sent when one ends",
    )
    load.add_argument(
        "--latency",
        type=whole_option,
        nargs="?",
        const=BATCH,
        metavar="BATCH",
        help="offline: one batch after another, as vLLM's latency; by default 8 requests, 32 tokens in, 128 out",
    )
    load.add_argument("--throughput", action="store_true", help="offline: all at once, as vLLM's throughput")
    load.add_argument(
        "--compare-batching",
        type=whole_option,
        nargs="?",
        const=BATCH,
        metavar="BATCH",
        help="static batches (default 8) against continuous batching, with uniform and with variable lengths",
    )
    load.add_argument("--sweep", action="store_true", help="find saturation and operating range, from --rate on")
    load.add_argument(
        "--sweep-trials",
        type=whole_option,
        default=16,
        metavar="N",
        help="maximum number of rates to test (default 16)",
    )
    load.add_argument(
        "--from", dest="source", type=Path, metavar="FILE.jsonl", help="file of --records to evaluate, without a load"
    )
    load.add_argument(
        "--overlay",
        nargs="+",
        default=[],
        metavar="FILE.json[:GPUS]",
        help="files of --json, of several endpoints, to show in one picture: tokens/s of a user against tokens/s of a "
        "GPU and against $/M tokens; without a load",
    )


def _add_arrivals(load: argparse._ArgumentGroup) -> None:
    load.add_argument(
        "--cv",
        type=cv_option,
        default=1.0,
        help="coefficient of variation of the gaps: 1 is Poisson, above 1 is gamma (default 1)",
    )
    load.add_argument("--ramp", action="store_true", help="change the rate linearly between the steps")
    load.add_argument("--format", choices=TRACE_FORMATS, default="csv", help="format of the trace (default csv)")
    load.add_argument("--speed", type=positive_option, default=1.0, help="factor of the replay speed")
    load.add_argument(
        "--trace-start",
        type=duration_option,
        default=0.0,
        metavar="DURATION",
        help="start the replay at this offset into the trace",
    )


def _add_extent(load: argparse._ArgumentGroup) -> None:
    load.add_argument(
        "--duration", type=some_time_option, metavar="DURATION", help="duration of the arrivals (default 60s)"
    )
    load.add_argument("--requests", type=requests_option, metavar="N", help="number of requests to send")
    load.add_argument(
        "--drain", type=duration_option, default=60.0, help="time to wait for the last answers (default 60s)"
    )
    load.add_argument(
        "--seed", type=seed_option, default=1, help="random seed of lengths and arrival times; prompts are always new"
    )
    load.add_argument(
        "--class",
        dest="classes",
        type=class_option,
        action="append",
        default=[],
        metavar="NAME=20%[:ttft=300ms,tpot=30ms]",
        help="share of the requests that claim a class by x-slo-class, or of those for a LoRA adapter, and its bounds "
        "(default: those of --slo); may be repeated; with --from only the bounds are used",
    )
    load.add_argument(
        "--generator",
        choices=("holdfast", "vllm"),
        default="holdfast",
        help="load generator: this client, or vllm bench serve",
    )
    load.add_argument("--tokenizer", default="", help="--generator vllm: a model's name or folder (default: the model)")


def add_lengths(load: argparse._ArgumentGroup) -> None:
    """Add what `loads.lengths_of` reads; --format is that of the trace."""
    load.add_argument(
        "--prompt-tokens", type=tokens_option, help="mean length of prompts (default 512; 32 with --latency)"
    )
    load.add_argument("--output-tokens", type=tokens_option, help="mean length of answers (default 128)")
    load.add_argument(
        "--length-cv", type=_share_or_more, default=0.0, help="coefficient of variation of both lengths (default 0)"
    )
    load.add_argument(
        "--lengths", type=Path, metavar="FILE", help="file with a trace of --format from which lengths are drawn"
    )


def _add_counting(parser: argparse.ArgumentParser) -> None:
    counting = parser.add_argument_group("what counts")
    counting.add_argument(
        "--slo", type=slo_option, default=LatencyBounds(), metavar="ttft=500ms,tpot=30ms,e2e=20s", help="a good request"
    )
    counting.add_argument(
        "--objective", type=percent_option, default=0.99, help="share of requests that must be good (default 99%%)"
    )
    counting.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        default=[],
        metavar="'p99 E2E <= 500 ms'",
        help="statistic (mean or pNN) of TTFT, ITL, TPOT or E2E that must not exceed a bound; may be repeated",
    )
    counting.add_argument(
        "--warm-up",
        type=_cut,
        default=None,
        help="excluded time at the start: auto (default) or a duration such as 30s",
    )
    counting.add_argument(
        "--cool-down",
        type=_cut,
        default=None,
        help="excluded time at the end: auto (default) or a duration such as 30s",
    )
    counting.add_argument(
        "--max-client-lag",
        type=duration_option,
        default=0.005,
        help="reject the result of a slower client (default 5ms)",
    )
    counting.add_argument(
        "--cost-per-hour",
        type=positive_option,
        metavar="DOLLARS",
        help="dollars per hour of the endpoint, for tokens per dollar",
    )
    counting.add_argument(
        "--accelerator",
        type=_accelerator,
        metavar="NAME",
        help="accelerator of the endpoint (h100, ...), to find out whether compute or memory limits it",
    )
    counting.add_argument(
        "--kv-model", type=_kv_model, metavar="MODEL", help="model for the bytes of the KV cache (default: --model)"
    )


def endpoint_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Endpoint:
    """Where requests go; its model may still have to be asked for."""
    if arguments.prefix_tokens and not arguments.sessions:
        raise BadInput("--prefix-tokens: give --sessions too, whose prompts begin alike")
    return Endpoint(
        url=arguments.url,
        model=arguments.model,
        api=arguments.api,
        api_key=_api_key(arguments.api_key_file, environment),
        prompts=arguments.prompts,
        ignore_eos=not arguments.no_ignore_eos,
        timeout_seconds=arguments.timeout,
        ca_file=_readable(arguments.ca_file),
        sessions=arguments.sessions,
        prefix_tokens=(arguments.prefix_tokens or PREFIX_TOKENS) if arguments.sessions else 0,
    )


def _api_key(path: Path | None, environment: Mapping[str, str]) -> str:
    if path is None:
        key = next((environment[name] for name in KEYS if environment.get(name)), "")
        told = " or ".join(KEYS)
    else:
        told = f"--api-key-file {path}"
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{told}: cannot be read: give a file with only the key") from None
        if not key:
            raise BadInput(f"{told}: empty: put the key into it")
    if not (key.isascii() and key.isprintable()):
        raise BadInput(f"{told}: the key has characters that are not allowed in an HTTP header")
    return key


def _readable(path: Path | None) -> str:
    if path is None:
        return ""
    if not os.access(path, os.R_OK):
        raise BadInput(f"--ca-file {path}: cannot be read: give a file with certificates")
    return str(path)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: give one such as http://host:8000") from None
    if "@" in parts.netloc:
        raise argparse.ArgumentTypeError("an address with a user or password: give the key with --api-key-file")
    host = parts.hostname or ""
    writable = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme not in ("http", "https") or not host or port == 0 or not writable:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: give one such as http://host:8000")
    return text


def _steps(text: str) -> tuple[LoadStep, ...]:
    remedy = f"{text!r}: give moments and rates as 0s=2,60s=10, the first at 0s, each later than the previous one"
    try:
        pairs = [part.split("=") for part in text.split(",")]
        steps = tuple(LoadStep(parse_duration_seconds(at), float(rps)) for at, rps in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(remedy) from None
    moments = [step.at_seconds for step in steps]
    rising = all(later > earlier for earlier, later in itertools.pairwise(moments))
    rates = [step.rps for step in steps]
    if moments[0] != 0.0 or not rising or not all(0.0 <= rate < 1e6 for rate in rates) or not any(rates):
        raise argparse.ArgumentTypeError(remedy)
    return steps


def slo_option(text: str) -> LatencyBounds:
    """Bounds as ttft=500ms,tpot=30ms,e2e=20s."""
    remedy = f"{text!r}: give bounds as ttft=500ms,tpot=30ms,e2e=20s, at least one, each above 0"
    bounds: dict[str, float] = {}
    try:
        for part in text.split(","):
            name, value = part.split("=")
            if name not in _BOUNDS or name in bounds:
                raise ValueError
            bounds[name] = parse_duration_seconds(value)
        if not all(seconds > 0.0 for seconds in bounds.values()):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(remedy) from None
    return LatencyBounds(**{f"{name}_seconds": seconds for name, seconds in bounds.items()})


def class_option(text: str) -> ClassShare:
    """A class as premium=20% or premium=20%:ttft=300ms,tpot=30ms."""
    head, _, bounds = text.partition(":")
    name, _, share = head.partition("=")
    if not is_class_name(name):
        raise argparse.ArgumentTypeError(f"{text!r}: give a class whose name is a DNS label, as premium=20%")
    return ClassShare(name, percent_option(share), slo_option(bounds) if bounds else None)


def _threshold(text: str) -> Threshold:
    try:
        return Threshold.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def duration_option(text: str) -> float:
    """Seconds of a duration as 500ms, 30s or 10m."""
    try:
        return parse_duration_seconds(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def some_time_option(text: str) -> float:
    """A duration above 0."""
    seconds = duration_option(text)
    if not 0.0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a duration above 0")
    return seconds


def _cut(text: str) -> float | None:
    return None if text == AUTO else duration_option(text)


def percent_option(text: str) -> float:
    """A share above 0 % and up to 100 %."""
    try:
        share = parse_percent(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a share above 0% and up to 100%")
    return share


def _number(least: float, most: float, wanted: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
        return value

    return parse


def _integer(most: int, wanted: str, least: int = 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
        return int(text)

    return parse


cv_option = _number(1e-6, 100.0, "a number above 0 and up to 100")
positive_option = _number(1e-6, 1e9, "a positive number")
_share_or_more = _number(0.0, 100.0, "a number from 0 to 100")
whole_option = _integer(100_000, "a whole number from 1 to 100000")
tokens_option = _integer(MOST_TOKENS, f"whole tokens from 1 to {MOST_TOKENS}")
seed_option = _integer(10**12, "a whole number of at most 12 digits", least=0)
requests_option = _integer(MOST_REQUESTS, f"a whole number from 1 to {MOST_REQUESTS}")


def picture_option(text: str) -> Path:
    """A file that is a page or a picture."""
    path = Path(text)
    if path.suffix not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r}: give a file name that ends with {' or '.join(PICTURES)}")
    return path


def _accelerator(text: str) -> AcceleratorShape:
    shape = find_accelerator(text)
    if shape is None:
        known = ", ".join(shape.system for _, shape in ACCELERATORS)
        remedy = f"{like_accelerator(text)}give one of {known}, or omit --accelerator"
        raise argparse.ArgumentTypeError(f"{text!r} is unknown: {remedy}")
    return shape


def _kv_model(text: str) -> ModelShape:
    shape = find_model(text)
    if shape is None:
        remedy = "holdfast catalog lists the known ones; omit --kv-model for another one"
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; {like_model(text)}{remedy}")
    return shape
