"""A result in 4 KiB: what a Job of an LLMBenchmark leaves as its container's termination message."""

from __future__ import annotations

import math
from pathlib import Path

from holdfast.api.benchmark_summary import RunFigures, Summary, SweepFigures, figure
from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.figures.sweep import RateTrial, SweepResult


def of_run(results: Results) -> Summary:
    """One run."""
    return Summary(run=_figures(results))


def of_sweep(found: SweepResult) -> Summary:
    """A sweep: its borders, every trial in a row, and the trial at the objective's border (else the lowest) whole."""
    shown = next((trial for trial in found.trials if trial.rate_rps == found.at_objective_rps), found.trials[0])
    missing = [
        trial.rate_rps
        for trial in found.trials
        if trial.rate_rps > found.at_objective_rps and (trial.saturated or not trial.results.attains(found.objective))
    ]
    borders = SweepFigures(
        objective=found.objective,
        carried_rps=figure(found.carried_rps) or 0.0,
        saturates_rps=figure(found.saturates_rps),
        attains_rps=figure(found.at_objective_rps) or 0.0,
        misses_rps=figure(min(missing, default=None)),
        trials=tuple(_row(trial) for trial in found.trials),
    )
    return Summary(run=_figures(shown.results), sweep=borders)


def write(path: Path, summary: Summary) -> None:
    """Write it; OSError as it comes."""
    path.write_text(summary.to_json(), encoding="utf-8")


def _figures(results: Results) -> RunFigures:
    bad = {str(cause): count for cause, count in results.verdicts.items() if cause != definitions.GOOD}
    return RunFigures(
        attainment=results.attainment if math.isfinite(results.attainment) else None,
        requests=results.requests,
        arrival_rps=figure(results.arrival_rps),
        request_rps=figure(results.request_rps),
        goodput_rps=figure(results.goodput_rps),
        output_tokens_per_second=figure(results.output_tokens_per_second),
        prompt_tokens=figure(results.prompt_tokens),
        output_tokens=figure(results.output_tokens),
        ttft_p50_seconds=figure(results.ttft.p50),
        ttft_p95_seconds=figure(results.ttft.p95),
        ttft_p99_seconds=figure(results.ttft.p99),
        tpot_p50_seconds=figure(results.tpot.p50),
        tpot_p95_seconds=figure(results.tpot.p95),
        tpot_p99_seconds=figure(results.tpot.p99),
        itl_p99_seconds=figure(results.itl.p99),
        e2e_p99_seconds=figure(results.e2e.p99),
        concurrency_p50=figure(results.under_way.p50),
        concurrency_p90=figure(results.under_way.p90),
        concurrency_p99=figure(results.under_way.p99),
        compute_bound=results.compute_bound,
        tokens_per_dollar=figure(results.tokens_per_dollar),
        bad=bad,
    )


def _row(trial: RateTrial) -> tuple[float | None, ...]:
    """In the order of `TRIAL_COLUMNS`."""
    results = trial.results
    values = (
        trial.rate_rps,
        results.attainment,
        results.goodput_rps,
        results.output_tokens_per_second,
        results.ttft.p99,
        results.tpot.p99,
        float(results.requests),
        float(bool(trial.saturated)),
    )
    return tuple(figure(value) for value in values)
