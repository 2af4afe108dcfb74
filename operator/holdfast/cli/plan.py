"""`holdfast plan`: how many GPUs, which, and what will it cost, without a GPU."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from holdfast.api.llmservice import InvalidLLMService, LLMService
from holdfast.domain.service import ServiceSpec
from holdfast.observe.spec import to_spec
from holdfast.simulator.twin.capacity import Lengths, lognormal_lengths
from holdfast.simulator.twin.plan import Offer, offers, pareto
from holdfast.simulator.twin.scenario import BadInput
from holdfast.simulator.twin.traces import FORMATS, read_trace

EXAMPLE = """examples:
  holdfast plan -f examples/chat.yaml --rate 20 --prompt-tokens 1155 --output-tokens 211
  holdfast plan -f examples/chat.yaml --trace examples/traces/azure-conv-excerpt.csv

Exit 0: a size attains the objective. 1: none does; what would be possible is told."""
MOST_TOKENS = 1_000_000
BUSIEST_SECONDS = 60.0
HEADS = (
    "accelerator",
    "sequences, tokens/step",
    "req/s a replica",
    "formula",
    "bound by",
    "limited by",
    "saturates at",
    "best run at",
    "replicas",
    "$/h",
    "$/M tokens",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan",
        help="replicas, accelerator, batching and cost for a load, without a GPU",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-f", "--filename", type=Path, required=True, metavar="FILE", help="an LLMService manifest")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", type=Path, help="recorded requests; planned for its busiest minute")
    load.add_argument("--rate", type=_positive, metavar="RPS", help="requests per second; needs both lengths")
    parser.add_argument("--format", choices=sorted(FORMATS), default="csv", help="of the trace (default csv)")
    parser.add_argument("--prompt-tokens", type=_positive, help="mean prompt")
    parser.add_argument("--output-tokens", type=_positive, help="mean answer")
    parser.add_argument(
        "--cv", type=_positive, default=1.0, help="spread of both lengths: deviation / mean (default 1)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 where no accelerator can meet the objectives, 2 for bad input."""
    try:
        spec = _spec(arguments.filename)
        rate, lengths = _load(arguments)
    except BadInput as problem:
        print(f"holdfast plan: {problem}", file=sys.stderr)
        return 2
    found = offers(spec, rate, lengths)
    if arguments.json:
        print(json.dumps(_as_json(spec, rate, found), indent=1))
    else:
        _print(spec, rate, found)
    return 0 if any(offer.replicas for offer in found) else 1


def _spec(path: Path) -> ServiceSpec:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return to_spec(LLMService.parse(content))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, InvalidLLMService, AttributeError) as problem:
        raise BadInput(f"{path}: no LLMService: {' '.join(str(problem).split())}") from None


def _load(arguments: argparse.Namespace) -> tuple[float, Lengths]:
    """Requests per second, and lengths to draw from."""
    if arguments.trace is None:
        if arguments.prompt_tokens is None or arguments.output_tokens is None:
            raise BadInput("--rate needs --prompt-tokens and --output-tokens: give the mean lengths")
        if max(arguments.prompt_tokens, arguments.output_tokens) > MOST_TOKENS:
            raise BadInput(f"lengths above {MOST_TOKENS} tokens: give the mean lengths in tokens")
        return arguments.rate, lognormal_lengths(
            arguments.prompt_tokens, arguments.output_tokens, arguments.cv, MOST_TOKENS
        )
    trace = read_trace(arguments.trace, arguments.format)
    minutes = np.bincount((trace.at / BUSIEST_SECONDS).astype(np.int64))
    return float(minutes.max()) / BUSIEST_SECONDS, Lengths(trace.prompt_tokens, trace.output_tokens)


def _as_json(spec: ServiceSpec, rate: float, found: Sequence[Offer]) -> dict[str, Any]:
    told = [asdict(offer) | {"operating_range_rps": offer.operating_range_rps} for offer in found]
    front = [
        {"accelerator": offer.accelerator, "limits": asdict(offer.limits), **asdict(point)}
        for offer, point in pareto(found)
    ]
    return {"rate_rps": rate, "objective": spec.slo.objective, "offers": told, "pareto": front}


def _print(spec: ServiceSpec, rate: float, found: Sequence[Offer]) -> None:
    slo = spec.slo
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(
        f"{rate:.3g} req/s of {spec.model_uri}: {100 * slo.objective:g} % with TTFT ≤ {slo.ttft_seconds:g} s and "
        f"TPOT ≤ {1000 * slo.tpot_seconds:g} ms. Simulated engines; ± is one standard error."
    )
    table = Table(box=None)
    for head in HEADS:
        table.add_column(head, justify="left" if head == "accelerator" else "right")
    for offer in found:
        table.add_row(*_row(offer))
    console.print(table)
    for offer in found:
        if offer.impossible:
            console.print(offer.impossible)
    front = pareto(found)
    if front:
        console.print("\nCost against attainment, what nothing cheaper reaches:")
        for offer, point in front:
            console.print(
                f"  ${point.cost_per_hour:.2f}/h  {100 * point.attainment:.2f} %  {point.replicas} x "
                f"{offer.accelerator}, {offer.limits.max_num_batched_tokens} tokens/step"
            )


def _row(offer: Offer) -> list[str]:
    def dollars(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    low, high = offer.operating_range_rps
    default = " (as it is)" if offer.default_batching else ""
    return [
        offer.accelerator,
        f"{offer.limits.max_num_seqs}, {offer.limits.max_num_batched_tokens}{default}",
        f"{offer.simulated.rate_rps:.2f} ± {offer.simulated.error_rps:.2f}",
        f"{offer.formula_rps:.2f}",
        offer.bound_by,
        "memory" if offer.memory_bound else "compute",
        f"{offer.saturation_rps:.2f}",
        f"{low:.2f}-{high:.2f}",
        "-" if offer.replicas is None else str(offer.replicas),
        dollars(offer.cost_per_hour, 2),
        dollars(offer.cost_per_million_tokens, 3),
    ]


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: give a positive number")
    return value
