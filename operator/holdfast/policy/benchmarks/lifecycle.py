"""Lifecycle of a benchmark: each spec runs once, with one run at a time per target, and each end has a reason."""

from __future__ import annotations

import math

from holdfast.api.benchmark_summary import Failed, RunFigures, Summary, TuneFigures, figure
from holdfast.api.reasons import Reason
from holdfast.domain.benchmark import Engines, JobSeen, JobState, Phase, Remembered, tokens_per_dollar
from holdfast.domain.value import value

_REASONS = {
    Failed.UNREACHABLE: Reason.TARGET_UNREACHABLE,
    Failed.REFUSED: Reason.CLIENT_OVERLOADED,
    Failed.INVALID: Reason.INVALID,
    Failed.FAILED: Reason.BENCHMARK_FAILED,
}
_EXHAUSTED = "the search ran out of trials or time; raise tune.maxTrials or timeout"
MOST_OTHER_SHARE = 0.1
"""Share of the measured load: where more other traffic arrives, the result says too little about a replica."""


@value
class Obstacle:
    """Why a run cannot begin; it is checked again every tick."""

    reason: Reason
    message: str


@value
class Progress:
    """Phase of a benchmark, and its reason. `summary` is set in the tick in which a result is read."""

    phase: Phase
    reason: Reason
    message: str
    summary: Summary | None = None


def is_at_rest(known: Remembered, run: str) -> bool:
    """Return whether this spec has already run: nothing more is to be done."""
    return known.phase.ended and known.run == run


def is_outdated(known: Remembered, run: str) -> bool:
    """Return whether a run of an earlier spec is in progress."""
    return known.phase is Phase.RUNNING and known.run != run


def waiting(obstacle: Obstacle) -> Progress:
    """Return the progress of a run that an obstacle delays."""
    return Progress(Phase.PENDING, obstacle.reason, obstacle.message)


def begun(target: str, engines: Engines | None) -> Progress:
    """Return the progress of a run that has begun."""
    if engines is not None and engines.own:
        text = f"limits are tested on a separate engine, configured like {target} on {engines.accelerator}"
        return Progress(Phase.RUNNING, Reason.BENCHMARK_RUNNING, f"{text}; serving replicas get no load from it")
    what = f" ({engines.count} replicas)" if engines else ""
    return Progress(Phase.RUNNING, Reason.BENCHMARK_RUNNING, f"the benchmark sends load to {target}{what}")


def look(job: JobSeen, target: str, engines: Engines | None, timeout: str) -> Progress:
    """Return the progress that the Job of a run shows."""
    match job.state:
        case JobState.ACTIVE:
            return begun(target, engines)
        case JobState.BROKEN:
            text = (
                f"the benchmark engine does not start: {job.last_words}; fix it, then change spec.revision to run again"
            )
            return _failed(Reason.BENCHMARK_FAILED, text)
        case JobState.ABSENT:
            return _failed(Reason.BENCHMARK_FAILED, "the Job was deleted; change spec.revision to run again")
        case JobState.LEAVING:
            return waiting(
                Obstacle(Reason.QUEUED, "the Job of an earlier benchmark with this name is still being deleted")
            )
        case JobState.FOREIGN:
            return _failed(
                Reason.NAME_CONFLICT,
                "a Job with that name exists and does not belong to this benchmark; rename one of them",
            )
        case JobState.TIMED_OUT:
            text = f": {job.last_words}" if job.last_words else ""
            return _failed(
                Reason.TIMED_OUT, f"not finished within {timeout}{text}; raise spec.timeout or shorten the load"
            )
        case JobState.ENDED:
            return _ended(job)


def _ended(job: JobSeen) -> Progress:
    """Return the progress of a run whose Job has ended."""
    summary = Summary.read(job.message)
    if summary is None:
        words = job.last_words or "its pod is deleted"
        return _failed(Reason.BENCHMARK_FAILED, f"the benchmark wrote no result: {words}; see the log of its pod")
    if summary.failure is not None:
        return _failed(_REASONS[summary.failure.why], summary.failure.message)
    assert summary.run is not None
    run = summary.run
    if summary.tune is not None:
        return Progress(Phase.SUCCEEDED, Reason.MEASURED, _tuned(summary.tune), summary)
    if not run.requests:
        return _failed(Reason.BENCHMARK_FAILED, "no request was counted; make the load longer")
    if run.bad.get("unreachable", 0) >= run.requests:
        return _failed(Reason.TARGET_UNREACHABLE, f"none of {run.requests} requests was answered; check spec.target")
    return Progress(Phase.SUCCEEDED, Reason.MEASURED, _measured(summary), summary)


def _measured(summary: Summary) -> str:
    """Return the message about a run or sweep."""
    run, sweep = summary.run, summary.sweep
    assert run is not None
    good = "unknown" if run.attainment is None else f"{100 * run.attainment:.4g} %"
    if sweep is None:
        return f"{good} of {run.requests} requests were good at {_rps(run.arrival_rps)}"
    if not sweep.carried_rps:
        return "saturated at every tested rate; lower sweep.startRps"
    if sweep.saturates_rps is None:
        first = f"not saturated at {_rps(sweep.carried_rps)}, the highest tested rate"
    else:
        first = f"saturates between {_rps(sweep.carried_rps)} and {_rps(sweep.saturates_rps)}"
    objective = f"{100 * sweep.objective:g} %"
    if not sweep.attains_rps:
        return f"{first}; no tested rate had {objective} good requests"
    return f"{first}; {objective} of requests are good up to {_rps(sweep.attains_rps)}"


def _tuned(found: TuneFigures) -> str:
    """Return the message about a search for limits."""
    if found.rate_rps is None:
        early = f"; {_EXHAUSTED}" if found.exhausted else ""
        return f"{found.note or 'no limits were found'}{early}"
    limits = f"{found.max_num_seqs} sequences and {found.max_num_batched_tokens} tokens per step"
    carried = f"{_rps(found.rate_rps)} with {100 * found.objective:g} % good"
    if found.confirmed:
        text = f"{limits} carry {carried}, confirmed with new requests"
    else:
        why = "" if found.note else ": new requests missed the objective"
        text = f"{limits} are the best limits found, but {carried} is not confirmed{why}"
    early = f"; {_EXHAUSTED}" if found.exhausted else ""
    note = f"; the search ended early: {found.note}" if found.note else ""
    return f"{text}; {found.made} trials{early}{note}"


def _failed(reason: Reason, message: str) -> Progress:
    return Progress(Phase.FAILED, reason, message)


def _rps(rate: float | None) -> str:
    return "an unknown rate" if rate is None else f"{rate:.3g} req/s"


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
        return f"other traffic of {_rps(engines.other_rps)} arrived at the start; measure without other traffic"
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
