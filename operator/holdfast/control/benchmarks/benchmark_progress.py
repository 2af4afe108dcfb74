"""Progress of a benchmark: each spec runs once, with one run at a time per target, and each end has a reason.

Pure functions; `control.benchmarks.benchmarks` carries them out.
"""

from __future__ import annotations

from holdfast.api.benchmark_summary import Failed, Summary, TuneFigures
from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.benchmark import Engines, JobSeen, JobState, Phase, Remembered
from holdfast.domain.value import value

_REASONS = {
    Failed.UNREACHABLE: Reason.TARGET_UNREACHABLE,
    Failed.REFUSED: Reason.CLIENT_OVERLOADED,
    Failed.INVALID: Reason.INVALID,
    Failed.FAILED: Reason.BENCHMARK_FAILED,
}
_EXHAUSTED = "the search ran out of trials or time; raise tune.maxTrials or timeout"


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


def waiting(reason: Reason, message: str) -> Progress:
    """Return the progress of a run that cannot begin yet; the cause is checked again every tick."""
    return Progress(Phase.PENDING, reason, message)


def begun(target: str, engines: Engines | None) -> Progress:
    """Return the progress of a run that has begun."""
    if engines is not None and engines.own:
        text = f"limits are tested on a separate engine, configured like {target} on {engines.accelerator}"
        return Progress(Phase.RUNNING, Reason.BENCHMARK_RUNNING, f"{text}; serving replicas get no load from it")
    what = f" ({counted(engines.count, 'replica')})" if engines else ""
    return Progress(Phase.RUNNING, Reason.BENCHMARK_RUNNING, f"the benchmark sends load to {target}{what}")


def look(job: JobSeen, target: str, engines: Engines | None, timeout: str) -> Progress:
    """Return the progress that the Job of a run shows."""
    match job.state:
        case JobState.ACTIVE:
            return begun(target, engines)
        case JobState.LEAVING:
            return waiting(Reason.QUEUED, "the Job of an earlier benchmark with this name is still being deleted")
        case JobState.ENDED:
            return _ended(job)
        case JobState.BROKEN:
            what = f"the benchmark engine does not start: {job.last_words}"
            return _failed(Reason.BENCHMARK_FAILED, f"{what}; fix it, then change spec.revision to run again")
        case JobState.ABSENT:
            return _failed(Reason.BENCHMARK_FAILED, "the Job was deleted; change spec.revision to run again")
        case JobState.FOREIGN:
            what = "a Job with that name exists and does not belong to this benchmark"
            return _failed(Reason.NAME_CONFLICT, f"{what}; rename one of them")
        case JobState.TIMED_OUT:
            words = f": {job.last_words}" if job.last_words else ""
            text = f"not finished within {timeout}{words}; raise spec.timeout or shorten the load"
            return _failed(Reason.TIMED_OUT, text)


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
        return _failed(
            Reason.TARGET_UNREACHABLE, f"none of {counted(run.requests, 'request')} was answered; check spec.target"
        )
    return Progress(Phase.SUCCEEDED, Reason.MEASURED, _measured(summary), summary)


def _measured(summary: Summary) -> str:
    """Return the message about a run or sweep."""
    run, sweep = summary.run, summary.sweep
    assert run is not None
    good = "unknown" if run.attainment is None else f"{100 * run.attainment:.4g} %"
    if sweep is None:
        return f"{good} of {counted(run.requests, 'request', 'was', 'were')} good at {_rps(run.arrival_rps)}"
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
    early = f"; {_EXHAUSTED}" if found.exhausted else ""
    if found.rate_rps is None:
        return f"{found.note or 'no limits were found'}{early}"
    limits = f"{found.max_num_seqs} sequences and {found.max_num_batched_tokens} tokens per step"
    carried = f"{_rps(found.rate_rps)} with {100 * found.objective:g} % good"
    if found.confirmed:
        text = f"{limits} carry {carried}, confirmed with new requests"
    else:
        why = "" if found.note else ": new requests missed the objective"
        text = f"{limits} are the best limits found, but {carried} is not confirmed{why}"
    note = f"; the search ended early: {found.note}" if found.note else ""
    return f"{text}; {found.made} trials{early}{note}"


def _failed(reason: Reason, message: str) -> Progress:
    return Progress(Phase.FAILED, reason, message)


def _rps(rate: float | None) -> str:
    return "an unknown rate" if rate is None else f"{rate:.3g} req/s"
