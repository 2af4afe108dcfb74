"""A complete decision for people: in status, in the Event of a change, and at the operator's own endpoint."""

from __future__ import annotations

import datetime

from holdfast.api import status
from holdfast.domain.benchmark import Measured
from holdfast.domain.decision import Candidate, Decision, Verdict


def explained(verdict: Verdict, decision: Decision, stamp: str) -> status.DecisionStatus:
    """Return a verdict of the decision with its inputs, the accelerators considered, and the guards.

    A size that people set (pinned, mode Recommend) has no inputs: there the recommendation has them.
    """
    plain = status.DecisionStatus(
        time=stamp, action=verdict.action.value, reason=str(verdict.reason), message=verdict.message[:1024]
    )
    if decision.recommendation is not None and verdict is not decision.recommendation:
        return plain
    behind = decision.explanation
    return plain.model_copy(
        update={
            "inputs": _inputs(decision),
            "candidates": tuple(map(_candidate, behind.candidates)) or None,
            "guards": tuple(guard[:1024] for guard in behind.guards) or None,
        }
    )


def _inputs(decision: Decision) -> status.DecisionInputs:
    behind, capacity = decision.explanation, decision.capacity
    return status.DecisionInputs(
        arrival_rps=decision.slo.arrival_rps,
        forecast_rps=behind.forecast_rps,
        quantile=behind.quantile,
        lead_time_seconds=behind.lead_time_seconds,
        backlog_requests=behind.backlog_requests,
        accelerator=capacity.accelerator if capacity else None,
        per_replica_rps=capacity.per_replica_rps if capacity else None,
        bound_by=capacity.bound_by if capacity else None,
        capacity_source=capacity_source(capacity.measured) if capacity else None,
        learned_gain=capacity.learned_gain if capacity else None,
        learned_slowness=capacity.learned_slowness if capacity else None,
        wanted_replicas=behind.wanted_replicas,
    )


def capacity_source(measured: Measured | None) -> str | None:
    """Where a capacity comes from, with its day, so that passing time writes nothing; None for the model alone."""
    if measured is None:
        return None
    day = datetime.datetime.fromtimestamp(measured.measured_at, datetime.UTC).strftime("%Y-%m-%d")
    rate, error = measured.rate_rps, measured.standard_error_rps
    return f"benchmark {measured.benchmark} of {day}: {rate:.3g} ± {error:.2g} req/s per replica"


def _candidate(candidate: Candidate) -> status.CandidateStatus:
    return status.CandidateStatus(
        accelerator=candidate.accelerator,
        replicas=candidate.replicas,
        per_replica_rps=candidate.per_replica_rps,
        cost_per_hour=candidate.cost_per_hour,
        lost_because=candidate.lost_because[:1024] or None,
    )
