"""The options of `holdfast tune`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from holdfast.tools.bench.runs import options
from holdfast.tools.tune.rungs import listed
from holdfast.twin.scenarios.inputs import TRACE_FORMATS

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
    _add_limits(parser)
    _add_ladder(parser)
    _add_model(parser)
    _add_load(parser)
    _add_output(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
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


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model that proposes")
    model.add_argument(
        "--accelerator", default="", metavar="NAME", help="accelerator that the endpoint runs on, such as h100"
    )
    model.add_argument(
        "--unknown", action="store_true", help="accept an accelerator that is not in the catalog, and guess"
    )
    model.add_argument(
        "--gpus", type=options.whole_option, default=1, metavar="N", help="number of GPUs of one engine (default 1)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    out = parser.add_argument_group("what is written")
    out.add_argument("--json", nargs="?", const="-", metavar="FILE", help="without FILE to standard output")
    options.add_plot(out)
    out.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="of an endpoint: the result, or why there is none, in 4 KiB of JSON; exit 0 says that it was measured",
    )


def _add_ladder(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_argument_group("one load against more and more sequences, instead of a search")
    steps.add_argument(
        "--ladder",
        nargs="?",
        const="",
        type=_rungs,
        metavar="1,2,4",
        help="measure these numbers of sequences (default: 1, 2, 4, ... up to the limit) until more are clearly worse",
    )
    steps.add_argument(
        "--concurrency", type=options.whole_option, metavar="N", help="of the ladder: concurrent requests"
    )
    steps.add_argument("--rate", type=options.positive_option, metavar="RPS", help="of the ladder: requests per second")


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("requests, and when they are good")
    load.add_argument("--slo", type=options.slo_option, metavar="ttft=500ms,tpot=30ms,e2e=20s", help="a good request")
    load.add_argument(
        "--objective", type=options.percent_option, help="share of requests that must be good (default 99%%)"
    )
    options.add_lengths(load)
    load.add_argument("--format", choices=TRACE_FORMATS, default="csv", help="format of --lengths (default csv)")
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


def _rungs(text: str) -> tuple[int, ...]:
    try:
        return listed(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


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
