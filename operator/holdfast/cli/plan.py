"""`holdfast plan`: how many GPUs, which, and what will it cost, without a GPU."""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.api.llmservice import LLMService
from holdfast.api.quantities import counted
from holdfast.cli.plannotes import DEFAULT, GUESSED, notes
from holdfast.cli.waiting import simulating, waiting
from holdfast.domain.service import ServiceSpec
from holdfast.domain.typical_lengths import TYPICAL_OUTPUT_TOKENS, TYPICAL_PROMPT_TOKENS
from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import PriorSource
from holdfast.enginemodel.suggestions import like_accelerator, like_model
from holdfast.observe.objects.spec import to_spec
from holdfast.tools.bench.runs.manifest import parsed_service, read_manifest
from holdfast.tools.plan import picture, speculation
from holdfast.tools.plan.busiest_minute import read_busiest
from holdfast.tools.plan.classes import Demand, demand_of, hardest, planned
from holdfast.tools.plan.plan import MOST_PAIRS, offers
from holdfast.tools.plan.prices import with_prices
from holdfast.tools.plan.rows import Offer, Point, pareto
from holdfast.tools.plan.spec_bounds import most_replicas
from holdfast.tools.plan.speculation import Speculated, speculated
from holdfast.tools.reports import page
from holdfast.tools.reports.files import check_files, check_folders
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.replica.capacity import LengthPairs, lognormal_lengths, pairs
from holdfast.twin.scenarios.inputs import BadInput

MOST_TOKENS = 1_000_000
ASSUMED = "assumed, as in Azure's conversation trace of 2023"
HEADS = (
    "accelerator",
    "sequences,\ntokens/step",
    "req/s\na replica",
    "formula",
    "bound\nby",
    "limited\nby",
    "saturates\nat",
    "best run\nat",
    "replicas",
    "loaded\nto",
    "70 %\nwith",
)
PRICES = ("$/h", "$/M\ntokens", "M tokens\n/$")
"""Further heads, where any accelerator has a price."""

FRONT = "Cost and attainment with random requests at that rate, spread evenly (Pareto front)"

WITHOUT_PREFILL = "the prefill pool is not planned for: each replica is planned as one that computes its own prompts"

DRAFTS = "Speculative decoding, by the closed form; what drafting itself takes is not counted"


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 where no accelerator can meet the objectives, 2 for bad input."""
    try:
        if arguments.plot is not None:
            page.require()
        check_folders(arguments, "plot")
        service = _service(arguments)
        spec = with_prices(to_spec(service), arguments.cost)
        if arguments.perfect and arguments.classes:
            raise BadInput("--class and --perfect exclude each other: holdfast simulate plays classes of a scenario")
        if arguments.perfect:
            from holdfast.cli import perfect  # with all of the twin, which no other plan needs

            return perfect.run(arguments, service, spec)
        _check_plan(arguments)
        load = _load(arguments, spec.slo.window_seconds)
        demand = demand_of(service.spec, dict(arguments.classes)) if arguments.classes else None
    except BadInput as problem:
        print(f"holdfast plan: {problem}", file=sys.stderr)
        return 2
    found, whose = _offers(spec, load, demand, arguments)
    whole = [WITHOUT_PREFILL] if service.spec.prefill else []
    noted = [*whose, *whole, *notes(spec, found, load.recorded is not None, bool(whose))]
    drafts = arguments.speculate and speculated(spec, load.rate_rps, load.lengths, found, arguments.speculate)
    if arguments.json:
        drafted = {} if drafts is None else {"speculation": [asdict(each) for each in drafts]}
        sized = {"sized_for": whose} if whose else {}
        print(json.dumps(_as_json(spec, load, found) | sized | drafted, indent=1))
    else:
        _print(spec, load, found, noted, drafts or ())
    if arguments.plot is not None:
        try:
            _draw(arguments.plot, spec, load, found, noted, drafts or ())
        except OSError as problem:
            print(f"holdfast plan: cannot write {arguments.plot}: {problem.strerror}", file=sys.stderr)
            return 1
    return (
        0
        if any(offer.replicas and offer.replicas <= most_replicas(spec, offer.accelerator)[0] for offer in found)
        else 1
    )


def _check_plan(arguments: argparse.Namespace) -> None:
    """BadInput where an option stands alone that only --perfect heeds."""
    for name in ("peer", "cold_start"):
        if getattr(arguments, name) is not None:
            raise BadInput(f"--{name.replace('_', '-')} without --perfect, which alone heeds it: add that, or omit it")


def _service(arguments: argparse.Namespace) -> LLMService:
    """The manifest, or what the options that stand for one say."""
    options = ("model", "accelerator", "ttft", "tpot", "objective")
    given = [f"--{name}" for name in options if getattr(arguments, name) is not None]
    if arguments.filename is not None:
        if given:
            raise BadInput(f"{', '.join(given)} and -f: give one manifest, or no manifest")
        return read_manifest(arguments.filename)
    missing = [f"--{name}" for name in options[:4] if getattr(arguments, name) is None]
    if missing:
        raise BadInput(f"{', '.join(missing)} is missing: give -f FILE, or --model, --accelerator, --ttft and --tpot")
    slo = {"ttft": arguments.ttft, "tpot": arguments.tpot, "objective": arguments.objective or "99%"}
    accelerators = [_accelerator(each) for each in arguments.accelerator]
    spec = {"model": {"uri": arguments.model}, "slo": slo, "accelerators": accelerators}
    found = parsed_service({"metadata": {"name": "plan", "namespace": "default"}, "spec": spec}, "these options")
    if not arguments.unknown:
        _check_names(arguments.model, [each.name for each in found.spec.accelerators])
    return found


def _check_names(model: str, accelerators: Sequence[str]) -> None:
    """A misspelled name would get a plan as exact as that of a known one."""
    remedy = "holdfast catalog lists the known ones; --unknown plans with a guess"
    for name in accelerators:
        if find_accelerator(name) is None:
            raise BadInput(f"--accelerator {name} is unknown; {like_accelerator(name)}{remedy}")
    if find_model(model) is None:
        raise BadInput(f"--model {model} is unknown; {like_model(model)}{remedy}")


def _accelerator(text: str) -> dict[str, Any]:
    name, _, count = text.partition(":")
    if not count:
        return {"name": name}
    if not count.isdecimal():
        raise BadInput(f"--accelerator {text}: {count} is no number of GPUs; write {name}:2 for two")
    return {"name": name, "count": int(count)}


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests per second, lengths to draw from, and where they come from; of a trace the busiest part as it came."""

    rate_rps: float
    lengths: LengthPairs
    told: str
    recorded: Workload | None = None


def _offers(
    spec: ServiceSpec, load: _Load, demand: Demand | None, arguments: argparse.Namespace
) -> tuple[tuple[Offer, ...], list[str]]:
    """What is offered, and with classes for which of them."""
    with simulating() as show:
        # Recorded requests say nothing of their classes: sizes are played with random ones.
        shown, recorded = partial(show, "simulating"), load.recorded if demand is None else None
        sequences, speeds = arguments.max_num_seqs, arguments.plot is not None

        def made(of: ServiceSpec, rate_rps: float) -> tuple[Offer, ...]:
            return offers(of, rate_rps, load.lengths, shown, recorded, sequences, speeds)

        if demand is None:
            return made(spec, load.rate_rps), []
        sized = hardest(spec, LengthMix.from_pairs(pairs(load.lengths)[:MOST_PAIRS]), demand)
        found = [offer for each in sized for offer in planned(each, load.rate_rps * demand.part, made)]
        return tuple(found), [each.told(demand.part) for each in sized]


def _load(arguments: argparse.Namespace, window_seconds: float) -> _Load:
    prompt, output = arguments.prompt_tokens, arguments.output_tokens
    if arguments.trace is not None:
        if prompt is not None or output is not None:
            raise BadInput("--prompt-tokens and --output-tokens belong to --rate: a trace has its own lengths")
        check_files(arguments, "trace")
        with waiting("reading the trace"):
            busiest = read_busiest(arguments.trace, arguments.format, window_seconds)
        told = (
            f"the busiest minute of {arguments.trace}, {busiest.begins_seconds / 60:.4g} min after its first of "
            f"{busiest.requests} requests"
        )
        lengths = LengthPairs(busiest.prompt_tokens, busiest.output_tokens)
        return _Load(busiest.rate_rps, lengths, told, busiest.recorded)
    return _random_load(arguments.rate, prompt, output, arguments.cv)


def _random_load(rate_rps: float, prompt: float | None, output: float | None, cv: float) -> _Load:
    """Random requests; a length that is not given is that of the typical mix, and the plan says so."""
    missing = [name for name, mean in (("--prompt-tokens", prompt), ("--output-tokens", output)) if mean is None]
    prompt, output = prompt or TYPICAL_PROMPT_TOKENS, output or TYPICAL_OUTPUT_TOKENS
    if max(prompt, output) > MOST_TOKENS:
        raise BadInput(f"lengths above {MOST_TOKENS} tokens: give the mean lengths in tokens")
    told = f"{prompt:g} prompt and {output:g} output tokens on average"
    if missing:
        told += f"; {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} {ASSUMED}"
    return _Load(rate_rps, lognormal_lengths(prompt, output, cv, MOST_TOKENS), told)


def _as_json(spec: ServiceSpec, load: _Load, found: Sequence[Offer]) -> dict[str, Any]:
    told = [
        asdict(offer)
        | {
            "operating_range_rps": offer.operating_range_rps,
            "safe_replicas": offer.safe_replicas,
            "tokens_per_dollar": offer.tokens_per_dollar,
            "most_replicas": most_replicas(spec, offer.accelerator)[0],
        }
        for offer in found
    ]
    front = [
        {"accelerator": offer.accelerator, "limits": asdict(offer.limits), **asdict(point)}
        for offer, point in pareto(found)
    ]
    return {
        "rate_rps": load.rate_rps,
        "load": load.told,
        "objective": spec.slo.objective,
        "offers": told,
        "pareto": front,
    }


def _lead(spec: ServiceSpec, load: _Load) -> str:
    slo = spec.slo
    e2e = "" if slo.e2e_seconds is None else f", E2E ≤ {slo.e2e_seconds:g} s"
    return (
        f"{load.rate_rps:.3g} req/s of {spec.model_uri} ({load.told}): {100 * slo.objective:g} % with TTFT ≤ "
        f"{slo.ttft_seconds:g} s, TPOT ≤ {1000 * slo.tpot_seconds:g} ms{e2e}. Simulated; ± is one standard error."
    )


def _front_line(offer: Offer, point: Point) -> str:
    price = counted(point.gpus, "GPU") if point.cost_per_hour is None else f"${point.cost_per_hour:.2f}/h"
    return f"{price}  {100 * point.attainment:.2f} %  {point.replicas} x {offer.name}"


def _print(
    spec: ServiceSpec, load: _Load, found: Sequence[Offer], noted: Sequence[str], drafts: Sequence[Speculated]
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150, soft_wrap=True, markup=False, highlight=False)
    console.print(_lead(spec, load))
    _print_table(console, *_table(found))
    for note in noted:
        console.print(note)
    front = pareto(found)
    if front:
        console.print(f"\n{FRONT}:")
        for offer, point in front:
            console.print(f"  {_front_line(offer, point)}")
    if drafts:
        console.print(f"\n{DRAFTS}:")
        _print_table(console, speculation.HEADS, speculation.table(drafts))
        for line in speculation.told(drafts):
            console.print(line)


def _print_table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None)
    for head in heads:
        table.add_column(head, justify="left" if head == "accelerator" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table, soft_wrap=False)


def _draw(
    path: Path,
    spec: ServiceSpec,
    load: _Load,
    found: Sequence[Offer],
    noted: Sequence[str],
    drafts: Sequence[Speculated],
) -> None:
    """The picture alone, or a page with it and the table."""
    drawn = picture.picture(spec, load.rate_rps, found)
    if path.suffix == ".png":
        path.write_bytes(drawn)
        return
    heads, rows = _table(found)
    parts = [
        f'<p class="lead">{html.escape(_lead(spec, load))}</p>',
        page.image(drawn, "Cost and attainment, what a user gets against what a GPU gives, and what a replica carries"),
        f"<h2>Choices</h2>{page.table(heads, rows)}",
        *(f"<p>{html.escape(note)}</p>" for note in noted),
        f"<h2>{FRONT}</h2><ul>",
        *(f"<li>{html.escape(_front_line(offer, point))}</li>" for offer, point in pareto(found)),
        "</ul>",
        *_drafts_on_page(drafts),
    ]
    path.write_text(page.document(f"Plan for {spec.key.name}", parts), encoding="utf-8")


def _drafts_on_page(drafts: Sequence[Speculated]) -> list[str]:
    if not drafts:
        return []
    lines = [f"<p>{html.escape(line)}</p>" for line in speculation.told(drafts)]
    return [f"<h2>{DRAFTS}</h2>{page.table(speculation.HEADS, speculation.table(drafts))}", *lines]


def _table(found: Sequence[Offer]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Heads and rows; the columns of prices where there is one."""
    if not any(offer.cost_per_hour is not None for offer in found):
        return HEADS, [_row(offer) for offer in found]
    return HEADS + PRICES, [_row(offer) + _prices(offer) for offer in found]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _prices(offer: Offer) -> list[str]:
    millions = None if offer.tokens_per_dollar is None else offer.tokens_per_dollar / 1e6
    return [_number(offer.cost_per_hour, 2), _number(offer.cost_per_million_tokens, 3), _number(millions, 1)]


def _row(offer: Offer) -> list[str]:
    low, high = offer.operating_range_rps
    default = DEFAULT if offer.default_batching else ""
    return [
        offer.accelerator + (f" {GUESSED}" if offer.source != PriorSource.TABLE else ""),
        f"{offer.limits.max_num_seqs}, {offer.limits.max_num_batched_tokens}{default}",
        f"{offer.simulated.rate_rps:.2f} ± {offer.simulated.error_rps:.2f}",
        f"{offer.formula_rps:.2f}",
        offer.bound_by,
        "memory" if offer.memory_bound else "compute",
        f"{offer.saturation_rps:.2f}",
        f"{low:.2f}-{high:.2f}" if low < high else f"{high:.2f}",
        _number(offer.replicas, 0),
        "-" if offer.load is None else f"{100 * offer.load:.0f} %",
        _number(offer.safe_replicas, 0),
    ]
