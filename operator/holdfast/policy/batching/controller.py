"""Change batching limits of engines without the fast loop: canary replica first, then all replicas or a rollback.

vLLM reads its limits at start, so that a change restarts every replica. A change must be worth that: the length mix is
known and steady, fewer replicas would carry the load, and the error budget can absorb a mistake. Engines with the fast
loop tune their own limits and get none from here.

Source: docs/designs/0002-batching.md.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from holdfast.api.reasons import Reason
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.batching.canary_test import Evidence, Outcome, Side
from holdfast.policy.estimate.demand import replicas_for

HYSTERESIS = 1.05
"""Factor on the rate that other limits must reach."""

PATIENCE_SECONDS = 600.0
"""How long the same limits must have been the better ones."""

HORIZON_SECONDS = 3600.0
"""How long limits are expected to stay the best; they are not changed again for that time."""

WORTH = 2.0
"""The gain within the horizon, relative to the capacity lost to restarts, that a change must reach."""

LEAST_BUDGET = 0.5
"""Share of the error budget that must remain."""

LONGEST_START_SECONDS = 3600.0
"""How long the canary replica may take to become ready."""

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 6 * 3600.0, 7 * 24 * 3600.0
"""Backoff before rejected limits may be tried again, and its upper bound; it doubles each time."""


@value
class Wanted:
    """Limits, and the rate a replica would carry with them in requests/s."""

    limits: BatchingLimits
    rate_rps: float


class Question(NamedTuple):
    """Inputs of a search for the best limits; its result is reused while they stay the same."""

    spec: ServiceSpec
    option: AcceleratorOption
    mix: LengthMix
    slowness: float
    limits: BatchingLimits


@value
class Considered:
    """The best limits, and the inputs they were found for."""

    question: Question
    wanted: Wanted


@value
class Situation:
    """Inputs of the controller: one accelerator with all replicas of a service.

    `limits` are those in its Deployment; during a trial, `before` are the limits they replace. `settled`: metrics are
    fresh, no replica starts, drains, fails or moves, and the lengths are known. `surge`: there is room for one more
    replica. `canary` and `rest` are the requests of both sides since the last tick, empty where unknown.
    """

    now: float
    accelerator: str
    limits: BatchingLimits
    before: BatchingLimits | None
    size: int
    settled: bool
    surge: bool
    free: bool
    """Whether limits may be chosen: not Fixed, not Recommend, no fast loop."""
    calm: bool
    """Whether the objective is met, no alert fires, and enough of the error budget remains."""
    demand_rps: float | None
    rate_rps: float
    cold_start_seconds: float
    wanted: Wanted | None = None
    canary: Side = field(default_factory=Side)
    rest: Side = field(default_factory=Side)
    canary_serves: bool = False
    canary_fails: bool = False


@value
class Trial:
    """Limits under test on a canary replica: the limits before, since when it serves, and the evidence.

    `applied`: the Deployment has shown the limits under test.
    """

    accelerator: str
    before: BatchingLimits
    after: BatchingLimits
    began_at: float
    serves_since: float | None = None
    applied: bool = False
    evidence: Evidence = field(default_factory=Evidence)


@value
class Returned:
    """Rejected limits, and until when they are in backoff."""

    accelerator: str
    limits: BatchingLimits
    until: float
    delay_seconds: float


@value
class Batching:
    """State between ticks.

    `better` are limits that would carry more, and since when. `ending` are the final limits of a trial, until the
    Deployment shows them.
    """

    trial: Trial | None = None
    ending: tuple[str, BatchingLimits] | None = None
    returned: tuple[Returned, ...] = ()
    better: tuple[str, BatchingLimits, float] | None = None
    changed_at: float | None = None
    considered: Considered | None = None


@value
class NextLimits:
    """Limits for the Deployment, and a message; during a trial `before` are the limits they replace."""

    limits: BatchingLimits
    before: BatchingLimits | None = None
    reason: Reason | None = None
    message: str = ""


def step(memory: Batching, situation: Situation) -> tuple[Batching, NextLimits]:
    """Continue a trial, begin one, or change nothing."""
    if memory.ending is not None and memory.ending[0] == situation.accelerator:
        if (situation.limits, situation.before) != (memory.ending[1], None):
            return memory, NextLimits(memory.ending[1])
        memory = replace(memory, ending=None)
    trial = memory.trial if memory.trial and memory.trial.accelerator == situation.accelerator else None
    if situation.before is not None and (trial is None or trial.after != situation.limits):
        # After a restart only the Deployment records the trial: its time starts again.
        trial = Trial(situation.accelerator, situation.before, situation.limits, situation.now)
    if trial is not None:
        return _continue(replace(memory, trial=trial), trial, situation)
    if not situation.free:
        return _without(memory), NextLimits(situation.limits)
    return _begin(memory if memory.trial is None else replace(memory, trial=None), situation)


def _without(memory: Batching) -> Batching:
    """Return the state without a trial and without better limits; usually it is unchanged."""
    return memory if memory.trial is None and memory.better is None else replace(memory, trial=None, better=None)


def _begin(memory: Batching, situation: Situation) -> tuple[Batching, NextLimits]:
    """Begin a trial if better limits have been worth it for long enough."""
    wanted, stay = situation.wanted, NextLimits(situation.limits)
    if wanted is None or not situation.settled or not worth(situation, wanted):
        return _without(memory) if situation.settled else memory, stay
    known = memory.better
    since = (
        known[2]
        if known and known[:2] == (situation.accelerator, wanted.limits) and known[2] <= situation.now
        else situation.now
    )
    memory = replace(memory, better=(situation.accelerator, wanted.limits, since))
    recently = memory.changed_at is not None and 0.0 <= situation.now - memory.changed_at < HORIZON_SECONDS
    if (
        situation.now - since < PATIENCE_SECONDS
        or recently
        or _in_backoff(memory, situation, wanted.limits)
        or not affordable(situation)
    ):
        return memory, stay
    trial = Trial(situation.accelerator, situation.limits, wanted.limits, situation.now)
    message = (
        f"canary: one {situation.accelerator} replica runs with {words(wanted.limits)}; "
        f"expected {wanted.rate_rps:.1f} req/s per replica, {situation.rate_rps:.1f} req/s "
        f"with {words(situation.limits)}"
    )
    return replace(memory, trial=trial, better=None), NextLimits(
        wanted.limits, situation.limits, Reason.BATCHING_TRIAL, message
    )


def worth(situation: Situation, wanted: Wanted) -> bool:
    """Return whether fewer replicas would suffice, and the gain within the horizon exceeds the cost of restarts."""
    if wanted.limits == situation.limits or situation.demand_rps is None or not situation.rate_rps > 0.0:
        return False
    gain = wanted.rate_rps / situation.rate_rps
    if not gain >= HYSTERESIS:
        return False
    saves = replicas_for(situation.demand_rps, wanted.rate_rps) < replicas_for(situation.demand_rps, situation.rate_rps)
    return saves and (gain - 1.0) * HORIZON_SECONDS >= WORTH * situation.cold_start_seconds


def affordable(situation: Situation) -> bool:
    """Return whether the objective can bear a trial.

    Error budget must remain, and the load must be carried while one replica restarts.
    """
    if not situation.calm or situation.demand_rps is None:
        return False
    return situation.surge or (
        situation.size >= 2 and situation.demand_rps <= (situation.size - 1) * situation.rate_rps
    )


def _in_backoff(memory: Batching, situation: Situation, limits: BatchingLimits) -> bool:
    """Return whether these limits were rejected and are in backoff."""
    return any(
        (old.accelerator, old.limits) == (situation.accelerator, limits) and situation.now < old.until
        for old in memory.returned
    )


def _continue(memory: Batching, trial: Trial, situation: Situation) -> tuple[Batching, NextLimits]:
    """Continue a trial."""
    if not situation.free:
        return _end(memory, trial, situation, Outcome.RETURN, "Holdfast may no longer choose the limits")
    if situation.limits != trial.after:
        if trial.applied:  # an edit of the model or image has invalidated them
            return replace(memory, trial=None), NextLimits(situation.limits, situation.before)
        return memory, NextLimits(trial.after, trial.before)
    trial = replace(trial, applied=True)
    if situation.canary_fails or (
        trial.serves_since is None and situation.now - trial.began_at >= LONGEST_START_SECONDS
    ):
        return _end(memory, trial, situation, Outcome.RETURN, "it fails or does not become ready")
    since = trial.serves_since
    if since is None:
        since = situation.now if situation.canary_serves else None
        return replace(memory, trial=replace(trial, serves_since=since)), NextLimits(trial.after, trial.before)
    evidence = trial.evidence.weighed(situation.canary, situation.rest)
    trial = replace(trial, evidence=evidence)
    outcome = evidence.outcome(situation.now - since)
    if outcome is Outcome.OPEN:
        return replace(memory, trial=trial), NextLimits(trial.after, trial.before)
    said = (
        f"in {evidence.judged:.0f} requests it missed the objectives "
        f"{'more' if outcome is Outcome.RETURN else 'no more'} often"
    )
    return _end(memory, trial, situation, outcome, f"{said} than the other replicas")


def _end(
    memory: Batching, trial: Trial, situation: Situation, outcome: Outcome, why: str
) -> tuple[Batching, NextLimits]:
    """End a trial: roll the new limits out, or roll them back with a backoff."""
    limits = trial.after if outcome is Outcome.KEEP else trial.before
    ending = (trial.accelerator, limits)
    memory = replace(memory, trial=None, better=None, changed_at=situation.now, ending=ending)
    if outcome is Outcome.KEEP:
        message = f"all {trial.accelerator} replicas get {words(trial.after)}: {why}"
        return memory, NextLimits(trial.after, None, Reason.BATCHING_KEPT, message)
    last = next((r for r in memory.returned if (r.accelerator, r.limits) == (trial.accelerator, trial.after)), None)
    delay = RETRY_SECONDS if last is None else min(2.0 * last.delay_seconds, LONGEST_RETRY_SECONDS)
    returned = Returned(trial.accelerator, trial.after, situation.now + delay, delay)
    others = tuple(r for r in memory.returned if r is not last)
    message = f"the {trial.accelerator} replica with {words(trial.after)} returns to {words(trial.before)}: {why}"
    return replace(memory, returned=(*others, returned)), NextLimits(
        trial.before, None, Reason.BATCHING_RETURNED, message
    )


def words(limits: BatchingLimits) -> str:
    """Return the limits as a readable text."""
    parts = (
        f"{limits.max_num_batched_tokens} tokens per step" if limits.max_num_batched_tokens else "",
        f"{limits.max_num_seqs} sequences" if limits.max_num_seqs else "",
    )
    return " and ".join(filter(None, parts)) or "vLLM's own limits"
