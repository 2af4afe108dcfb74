"""A run in words and tables, the same for a terminal and for a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from holdfast.tools.bench.figures import definitions, memory, roofline
from holdfast.tools.bench.figures.engine import Reported
from holdfast.tools.bench.figures.results import Results, Spread
from holdfast.tools.bench.figures.thresholds import Judged
from holdfast.tools.bench.load.load_generator import LatencyBounds

HEADS = ("", "mean", "p50", "p90", "p95", "p99", "max", "objective")
UNKNOWN = "-"

CAUSES = {
    "late_ttft": "first token too late",
    "late_tpot": "tokens too slow",
    "late_e2e": "complete too late",
    "impossible_times": "with impossible times",
    "empty": "complete without text",
    "rate_limited": "refused with 429",
    "overloaded": "refused with 503",
    "http_error": "failed with another status",
    "unreachable": "without connection or answer",
    "truncated": "broken off",
    "stream_error": "with an error in the stream",
    "garbage": "with an unreadable answer",
    "not_streamed": "answered at once, not as a stream",
    "timed_out": "timed out",
    "unfinished": "unfinished at the end of the run",
}


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A line of the table of latencies, in the unit that is easiest to read."""

    name: str
    cells: tuple[str, ...]


def latencies(results: Results) -> list[LatencyRow]:
    """TTFT, ITL (ours, then as two other tools have it), TPOT, E2E, tokens per second of a user, then by class."""
    slo = results.slo
    rows = [
        _row("TTFT, ms", results.ttft, 1000.0, slo.ttft_seconds),
        _row("ITL, ms", results.itl, 1000.0, None),
        _row("ITL of Inference Perf, ms", results.itl_inference_perf, 1000.0, None),
        _row("ITL of LLMPerf, ms", results.itl_llmperf, 1000.0, None),
        _row("TPOT, ms", results.tpot, 1000.0, slo.tpot_seconds),
        _row("E2E, ms", results.e2e, 1000.0, slo.e2e_seconds),
        _row("tokens/s of a user", results.user_tokens_per_second, 1.0, None),
        _row("1 / TPOT, tokens/s", results.interactivity, 1.0, None),
    ]
    for name, each in results.classes.items():
        rows.append(_row(f"TTFT {_of_class(name)}, ms", each.ttft, 1000.0, each.slo.ttft_seconds))
        rows.append(_row(f"TPOT {_of_class(name)}, ms", each.tpot, 1000.0, each.slo.tpot_seconds))
    return rows


def _of_class(name: str) -> str:
    return f"of {name}" if name else "without a class"


def rates(results: Results) -> list[tuple[str, str]]:
    """What passed per second, and what it cost."""
    told = [
        ("arrivals", f"{_number(results.arrival_rps)} req/s"),
        ("finished", f"{_number(results.request_rps)} req/s"),
        ("goodput", f"{_number(results.goodput_rps)} req/s"),
        ("output", f"{_number(results.output_tokens_per_second)} tokens/s"),
        ("output, system", f"{_number(results.system_tokens_per_second)} tokens/s, first request to last response"),
        ("prompt and output", f"{_number(results.total_tokens_per_second)} tokens/s"),
        ("a request", f"{_number(results.prompt_tokens)} prompt and {_number(results.output_tokens)} output tokens"),
        ("under way", _over_time(results.under_way)),
        (
            "at most under way",
            f"{results.peak_in_flight} requests, {results.peak_resident_tokens:,.0f} tokens of KV cache",
        ),
    ]
    if 0.0 < results.tokens_per_dollar < math.inf:
        millions = results.tokens_per_dollar / 1e6
        told.append(("a dollar", f"{_number(millions)} M output tokens (${_number(1.0 / millions)} a million)"))
    if results.engine is not None:
        told += _engine(results.engine)
        position = roofline.told(results.engine.work, results.accelerator)
        told += [("roofline", position)] if position else []
        for name, work in results.phases.by_name().items():
            position = roofline.told(work, results.accelerator)
            if work and position:
                told.append((f"roofline, {name}", f"{position} (a step of {1000 * work.seconds:.3g} ms)"))
    if math.isfinite(results.kv_bytes_per_token):
        each, need = results.kv_bytes_per_token, results.peak_resident_tokens * results.kv_bytes_per_token
        told.append(("KV cache by formula", f"{need / 2**30:.3g} GiB at most, {each / 2**10:g} KiB a token"))
    parts = memory.told(results.engine, results.kv_model, results.accelerator)
    return told + ([("KV cache by parts", parts)] if parts else [])


def _over_time(spread: Spread) -> str:
    """How many requests were under way at once, weighed by time."""
    shares = ", ".join(f"{name} {_number(getattr(spread, name))}" for name in ("p50", "p90", "p99"))
    return f"{_number(spread.mean)} requests on average over time, {shares}"


def _engine(engine: Reported) -> list[tuple[str, str]]:
    usage = f"at most {_percent(engine.peak_kv_usage)}"
    if math.isfinite(engine.kv_capacity_tokens):
        usage += f" of {engine.kv_capacity_tokens:,.0f} tokens, {engine.peak_kv_tokens:,.0f}"
    work = f"{engine.peak_running:,.0f} running, {engine.peak_waiting:,.0f} waiting at most"
    told = [("KV cache, engine", usage), ("engine", f"{work}, {engine.preemptions:,.0f} preemptions")]
    if engine.cached_share > 0.0:
        told.append(("prefix cache, engine", f"{_percent(engine.cached_share)} of the prompt tokens were found in it"))
    return told


def verdict(results: Results, objective: float) -> str:
    """Good requests of all, in one line."""
    good, total = results.verdicts.get(definitions.GOOD, 0), results.requests
    against = "" if results.is_unbounded else f" (objective {100 * objective:g} %)"
    own = "; classes by their own bounds" if any(each.slo != results.slo for each in results.classes.values()) else ""
    return f"{good} of {total} requests good, {_percent(results.attainment)}{against}: {good_request(results.slo)}{own}"


def classes(results: Results) -> list[str]:
    """A line for each class: good requests of all that claimed it."""
    return [
        f"{each.verdicts.get(definitions.GOOD, 0)} of {each.requests} requests {_of_class(name)} good, "
        f"{_percent(each.attainment)}: {good_request(each.slo)}"
        for name, each in results.classes.items()
    ]


def thresholds(results: Results) -> list[str]:
    """A line for each: whether it passes, and the figure it was held against."""
    return [_threshold(each) for each in results.thresholds]


def _threshold(each: Judged) -> str:
    share = "" if not each.unanswered else f"; {each.unanswered} of {each.requests} requests have no answer"
    told = f"{'pass' if each.passed else 'FAIL'}: {each.threshold}: "
    if math.isinf(each.seconds):
        return f"{told}not kept by any bound{share}, and count as later than any"
    if math.isnan(each.seconds):
        return f"{told}unknown, no request has this figure{share}"
    return f"{told}{_number(1000.0 * each.seconds)} ms{share}"


def good_request(slo: LatencyBounds) -> str:
    """What a good request is."""
    return "finished" + "".join(f", {bound}" for bound in bounds(slo))


def bounds(slo: LatencyBounds) -> list[str]:
    """The given bounds, each in words."""
    named = (("TTFT", slo.ttft_seconds), ("TPOT", slo.tpot_seconds), ("E2E", slo.e2e_seconds))
    return [f"{name} ≤ {1000 * bound:g} ms" for name, bound in named if bound is not None]


def gaps(cv: float) -> str:
    """How the times between arrivals are spread, by their CV."""
    return "Poisson" if cv == 1.0 else f"gamma, CV {cv:g}"


def badput(results: Results) -> list[str]:
    """How many requests were lost to each cause, the commonest first."""
    causes = [(cause, count) for cause, count in results.verdicts.items() if cause != definitions.GOOD]
    return [f"{count} {CAUSES[cause]} ({_percent(count / results.requests)})" for cause, count in causes]


def notes(results: Results) -> list[str]:
    """What the figures leave out, and what they were counted from."""
    told: list[str] = []
    cut = results.window
    if not cut.whole:
        told.append(f"counted: arrivals of {cut.seconds:.1f} s; {results.left_out} of warm-up and cool-down excluded")
    if not cut.steady and results.ttft.count:
        told.append("no steady state was found, latencies still change; run longer, or at a lower rate")
    if results.client is None:
        told.append("its client does not tell whether it kept up: what it was late itself counts as the endpoint's")
    elif math.isnan(results.client.lag_p99_seconds):
        told.append("records tell how late requests left, not how late their events were read")
    if results.engine is not None and results.engine.looks < 2:
        told.append("the engine was looked at once only: its peaks may be higher, as longer runs tell")
    for count, what in (
        (results.without_usage, "without a usage block: tokens are events with text"),
        (results.without_tokens, "without a number of tokens: TPOT and tokens/s of them are unknown"),
        (results.one_token, "of one token: they have no TPOT"),
        (results.shorter_than_asked, "shorter than asked for"),
    ):
        if count:
            told.append(f"{count} answers {what}")
    if results.statuses:
        told.append("statuses: " + ", ".join(f"{count} x {status}" for status, count in results.statuses.items()))
    return told + [f"error: {error}" for error in results.errors]


def _row(name: str, spread: Spread, factor: float, bound: float | None) -> LatencyRow:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.most)
    cells = tuple(_number(value * factor) for value in values)
    return LatencyRow(name, (*cells, "" if bound is None else f"≤ {_number(bound * factor)}"))


def _percent(share: float) -> str:
    return UNKNOWN if not math.isfinite(share) else f"{100 * share:.2f} %"


def _number(value: float) -> str:
    """Three digits or more, without exponent."""
    if not math.isfinite(value):
        return UNKNOWN
    if value and abs(value) < 100:
        return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"
    return f"{value:,.0f}"


def lines(items: Iterable[tuple[str, str]]) -> list[str]:
    """Pairs in two columns."""
    told = list(items)
    width = max((len(name) for name, _ in told), default=0)
    return [f"{name:<{width}}  {value}" for name, value in told]


def drawn(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal; columns without a head are text."""
    found = Table(box=None)
    for head in heads:
        found.add_column(head, justify="right" if head else "left")
    for row in rows:
        found.add_row(*row)
    return found


def told(results: Results, objective: float) -> list[str]:
    """Everything but the table, line by line."""
    return [
        *lines(rates(results)),
        *thresholds(results),
        verdict(results, objective),
        *(f"  {line}" for line in badput(results)),
        *classes(results),
        *notes(results),
    ]
