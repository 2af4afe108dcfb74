"""What the result of a benchmark says of one replica, and which fields of it only the operator can fill.

Pure functions; `control.benchmarks.benchmark_report` writes what they find into status.
"""

from __future__ import annotations

import math

from holdfast.api.benchmark_summary import RunFigures, Summary, TuneFigures, figure
from holdfast.domain.benchmark import Engines, tokens_per_dollar
from holdfast.domain.value import value

MOST_OTHER_SHARE = 0.1
"""Share of the measured load: where more other traffic arrives, the result says too little about a replica."""


@value
class PerReplica:
    """Rate of one replica at the border of the objective, and its standard error, in requests/s."""

    rate_rps: float
    standard_error_rps: float


def per_replica(summary: Summary, engines: Engines | None, moved: str) -> PerReplica | str:
    """Return what one replica carries within the objectives, or why that is unknown."""
    if summary.run is None or engines is None or not engines.own or summary.tune is None:
        return _of_sweep(summary, engines, moved)
    return _of_own_engine(summary.tune, summary.run, moved)


def _of_sweep(summary: Summary, engines: Engines | None, moved: str) -> PerReplica | str:
    """Return the rate between the highest rate that attains the objective and the lowest one that misses it.

    The border is assumed to be uniform on the logarithmic scale between the two: its standard deviation is the width /
    sqrt(12). The arrivals of a trial are random as well: their rate has the relative error 1 / sqrt(requests).
    """
    sweep, run = summary.sweep, summary.run
    if sweep is None or run is None:
        return "only a sweep or a tuning run measures the capacity of a replica"
    if engines is None:
        return "the target is an address, so the engines that answered are unknown"
    if moved:
        return f"{moved}; pin spec.replicas of the service and run again"
    if not engines.accelerator or engines.count < 1:
        return "replicas on several accelerators answered; run the service on one accelerator and measure again"
    if not sweep.attains_rps:
        return "no tested rate attains the objective; lower sweep.startRps"
    if sweep.misses_rps is None or not sweep.misses_rps > sweep.attains_rps:
        return "every tested rate attains the objective; raise sweep.startRps or sweep.maxTrials"
    if engines.other_rps > MOST_OTHER_SHARE * sweep.attains_rps:
        return f"other traffic of {engines.other_rps:.3g} req/s arrived at the start; measure without other traffic"
    rate = math.sqrt(sweep.attains_rps * sweep.misses_rps) / engines.count
    return PerReplica(rate, _error(rate, sweep.attains_rps, sweep.misses_rps, run.requests))


def _of_own_engine(tune: TuneFigures, run: RunFigures, moved: str) -> PerReplica | str:
    """Return the rate of a dedicated engine at its best limits, as confirmed by further requests."""
    if moved:
        return f"{moved}; change spec.revision to run again"
    if not tune.rate_rps:
        return "no limits attain the objective"
    if not tune.confirmed:
        return "the rate is not confirmed; run a sweep with these limits"
    if tune.missed_rps is None or not tune.missed_rps > tune.rate_rps:
        return "every tested rate attains the objective; raise tune.maxTrials"
    return PerReplica(tune.rate_rps, _error(tune.rate_rps, tune.rate_rps, tune.missed_rps, run.requests))


def _error(rate: float, attains: float, misses: float, requests: int) -> float:
    """Return the standard error of a rate between two rates."""
    width = math.log(misses / attains)
    return rate * math.sqrt(width * width / 12.0 + 1.0 / max(1, requests))


def completed(summary: Summary, engines: Engines | None, moved: str, replica_dollars_per_hour: float | None) -> Summary:
    """Return the result with the fields that only the operator knows.

    These are the tokens per dollar at the present price, if the same replicas answered throughout. The client reads
    whether compute binds from the counters of one engine, so that field is removed where several engines answered.
    """
    run = summary.run
    if run is None:
        return summary
    same = engines if engines is not None and not moved else None
    update = {
        "compute_bound": run.compute_bound if same is not None and same.count == 1 else None,
        "tokens_per_dollar": None if same is None else _tokens_per_dollar(run, same, replica_dollars_per_hour),
    }
    return summary.model_copy(update={"run": run.model_copy(update=update)})


def _tokens_per_dollar(run: RunFigures, engines: Engines, replica_dollars_per_hour: float | None) -> float | None:
    """Return the tokens per dollar; None where other traffic exceeds a tenth of the load.

    Other traffic on the replicas also costs money, and its share of the price is unknown.
    """
    if replica_dollars_per_hour is None or not engines.accelerator or run.output_tokens_per_second is None:
        return None
    if engines.other_rps > MOST_OTHER_SHARE * (run.arrival_rps or 0.0):
        return None
    return figure(tokens_per_dollar(run.output_tokens_per_second, engines.count * replica_dollars_per_hour))


def moved(before: Engines, now: Engines | None) -> str:
    """Return what changed about the engines during the measurement; empty where nothing did.

    Engines on several accelerators are not recorded, because their result says nothing about one replica anyway.
    """
    if now is None:
        return "the service was deleted"
    if before.accelerator and now.replicas != before.replicas:
        return f"replicas changed from {_counts(before)} to {_counts(now)} during the run"
    known = now.digest == before.digest if before.digest else now.generation == before.generation
    if before.accelerator and not known:  # a run begun by an older operator has no digest
        return "engine, limits or objectives of the service were edited during the run"
    return ""


def _counts(engines: Engines) -> str:
    return ", ".join(f"{count} {name}" for name, count in engines.replicas) or "none"
