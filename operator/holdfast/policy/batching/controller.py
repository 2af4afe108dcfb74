"""Change batching limits of engines without the fast loop: canary replica first, then all replicas or a rollback.

vLLM reads its limits at start, so that a change restarts every replica. A change must be worth that: the length mix is
known and steady, fewer replicas would carry the load, and the error budget can absorb a mistake. Engines with the fast
loop tune their own limits and get none from here.

Source: docs/designs/0002-batching.md.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.batching.canary_test import Evidence, Outcome
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.estimate.slo_budget import NONE, Verdicts

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


class Question(NamedTuple):
    """Inputs of a search for the best limits; its result is reused while they stay the same."""

    spec: ServiceSpec
    option: AcceleratorOption
    mix: LengthMix
    slowness: float
    limits: BatchingLimits


@value
class Wanted:
    """The best limits, the rate a replica would carry with them in requests/s, and the inputs they were found for."""

    limits: BatchingLimits
    rate_rps: float
    question: Question | None = None


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
    canary: Verdicts = NONE
    rest: Verdicts = NONE
    canary_serves: bool = False
    canary_fails: bool = False

    @property
    def unchanged(self) -> BatchingTarget:
        """The limits as they are."""
        return BatchingTarget(self.accelerator, self.limits)


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

    @property
    def target(self) -> BatchingTarget:
        """The limits while it lasts."""
        return BatchingTarget(self.accelerator, self.after, self.before)


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
    considered: Wanted | None = None


def step(memory: Batching, situation: Situation) -> tuple[Batching, BatchingTarget]:
    """Continue a trial, begin one, or change nothing; return the new state and the limits for the Deployment."""
    name, trial = situation.accelerator, memory.trial
    if memory.ending is not None and memory.ending[0] == name:
        if (situation.limits, situation.before) != (memory.ending[1], None):
            return memory, BatchingTarget(*memory.ending)
        memory = replace(memory, ending=None)
    if trial is not None and trial.accelerator != name:
        trial = None
    if situation.before is not None and (trial is None or trial.after != situation.limits):
        # After a restart only the Deployment records the trial: its time starts again.
        trial = Trial(name, situation.before, situation.limits, situation.now)
    if trial is not None:
        return _continue(replace(memory, trial=trial), trial, situation)
    if not situation.free:
        return replace(memory, trial=None, better=None), situation.unchanged
    return _begin(replace(memory, trial=None), situation)


def _begin(memory: Batching, situation: Situation) -> tuple[Batching, BatchingTarget]:
    """Begin a trial if better limits have been worth it for long enough."""
    name, now, wanted = situation.accelerator, situation.now, situation.wanted
    if not situation.settled:
        return memory, situation.unchanged
    if wanted is None or not worth(situation, wanted):
        return replace(memory, better=None), situation.unchanged
    better, known = (name, wanted.limits), memory.better
    since = known[2] if known and known[:2] == better and known[2] <= now else now
    memory = replace(memory, better=(*better, since))
    recently = memory.changed_at is not None and 0.0 <= now - memory.changed_at < HORIZON_SECONDS
    rejected = any((old.accelerator, old.limits) == better and now < old.until for old in memory.returned)
    if now - since < PATIENCE_SECONDS or recently or rejected or not affordable(situation):
        return memory, situation.unchanged
    trial = Trial(name, situation.limits, wanted.limits, now)
    message = (
        f"canary: one {name} replica runs with {words(wanted.limits)}; expected {wanted.rate_rps:.1f} req/s "
        f"per replica, {situation.rate_rps:.1f} req/s with {words(situation.limits)}"
    )
    target = replace(trial.target, reason=Reason.BATCHING_TRIAL, message=message)
    return replace(memory, trial=trial, better=None), target


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
    """Return whether error budget remains, and the load is carried while one replica restarts."""
    demand_rps, others = situation.demand_rps, situation.size - 1
    if not situation.calm or demand_rps is None:
        return False
    return situation.surge or (others >= 1 and demand_rps <= others * situation.rate_rps)


def _continue(memory: Batching, trial: Trial, situation: Situation) -> tuple[Batching, BatchingTarget]:
    """Continue a trial."""
    now, since = situation.now, trial.serves_since
    if not situation.free:
        return _end(memory, trial, now, Outcome.RETURN, "Holdfast may no longer choose the limits")
    if situation.limits != trial.after:
        if trial.applied:  # an edit of the model or image has invalidated them
            return replace(memory, trial=None), replace(situation.unchanged, before=situation.before)
        return memory, trial.target
    trial = replace(trial, applied=True)
    if situation.canary_fails or (since is None and now - trial.began_at >= LONGEST_START_SECONDS):
        return _end(memory, trial, now, Outcome.RETURN, "it fails or does not become ready")
    if since is None:
        trial = replace(trial, serves_since=now if situation.canary_serves else None)
        return replace(memory, trial=trial), trial.target
    trial = replace(trial, evidence=trial.evidence.weighed(situation.canary, situation.rest))
    outcome = trial.evidence.outcome(now - since)
    if outcome is Outcome.OPEN:
        return replace(memory, trial=trial), trial.target
    often = "more" if outcome is Outcome.RETURN else "no more"
    why = f"in {trial.evidence.judged:.0f} requests it missed the objectives {often} often than the other replicas"
    return _end(memory, trial, now, outcome, why)


def _end(memory: Batching, trial: Trial, now: float, outcome: Outcome, why: str) -> tuple[Batching, BatchingTarget]:
    """End a trial: roll the new limits out, or roll them back with a backoff."""
    name, before, after = trial.accelerator, trial.before, trial.after
    ending = (name, after if outcome is Outcome.KEEP else before)
    memory = replace(memory, trial=None, better=None, changed_at=now, ending=ending)
    if outcome is Outcome.KEEP:
        message = f"all {name} replicas get {words(after)}: {why}"
        return memory, BatchingTarget(*ending, None, Reason.BATCHING_KEPT, message)
    last = next((old for old in memory.returned if (old.accelerator, old.limits) == (name, after)), None)
    delay = RETRY_SECONDS if last is None else min(2.0 * last.delay_seconds, LONGEST_RETRY_SECONDS)
    others = tuple(old for old in memory.returned if old is not last)
    memory = replace(memory, returned=(*others, Returned(name, after, now + delay, delay)))
    message = f"the {name} replica with {words(after)} returns to {words(before)}: {why}"
    return memory, BatchingTarget(*ending, None, Reason.BATCHING_RETURNED, message)


def words(limits: BatchingLimits) -> str:
    """Return the limits as a readable text."""
    parts = (
        f"{counted(limits.max_num_batched_tokens, 'token')} per step" if limits.max_num_batched_tokens else "",
        counted(limits.max_num_seqs, "sequence") if limits.max_num_seqs else "",
    )
    return " and ".join(filter(None, parts)) or "vLLM's own limits"
