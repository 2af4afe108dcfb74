"""A search in 4 KiB: what a Job that tunes leaves as its container's termination message."""

from __future__ import annotations

import math

from holdfast.api.benchmark_summary import MOST_TRIALS, MOST_WORDS, RunFigures, Summary, TuneFigures, figure
from holdfast.tools.tune.engine_port import Tried
from holdfast.tools.tune.report import Report, impossible


def of_search(report: Report) -> Summary:
    """What was found, every trial in a row, and the last one (of what was found: its confirmation) whole."""
    found = report.found
    best = found.best
    tuned = TuneFigures(
        objective=report.wanted.slo.objective,
        max_num_seqs=None if best is None else best.max_num_seqs,
        max_num_batched_tokens=None if best is None else best.max_num_batched_tokens,
        rate_rps=figure(found.rate_rps) if best else None,
        missed_rps=figure(found.missed_rps) if best else None,
        confirmed=found.confirmed,
        exhausted=found.exhausted,
        made=len(found.trials),
        note=(found.ended_early if best else "; ".join(impossible(report)))[:MOST_WORDS],
        trials=tuple(_row(tried) for tried in found.trials[-MOST_TRIALS:]),
    )
    last = (found.alone if best is None else None) or (found.trials[-1] if found.trials else None)
    return Summary(run=RunFigures() if last is None else _figures(last, report.mean_tokens), tune=tuned)


def _figures(tried: Tried, mean_tokens: tuple[float, float] | None) -> RunFigures:
    prompt, output = mean_tokens or (None, None)
    return RunFigures(
        attainment=tried.attainment if math.isfinite(tried.attainment) else None,
        requests=tried.judged,
        arrival_rps=figure(tried.rate_rps) or None,
        prompt_tokens=figure(prompt),
        output_tokens=figure(output),
        ttft_p50_seconds=figure(tried.figures.ttft_seconds),
        tpot_p50_seconds=figure(tried.figures.tpot_seconds),
    )


def _row(tried: Tried) -> tuple[float | None, ...]:
    """In the order of `TUNE_COLUMNS`."""
    values = (
        float(tried.setting.max_num_seqs),
        float(tried.setting.max_num_batched_tokens),
        tried.rate_rps,
        tried.attainment,
        tried.figures.ttft_seconds,
        tried.figures.tpot_seconds,
        float(tried.judged),
        float(tried.held),
    )
    return tuple(figure(value) for value in values)
