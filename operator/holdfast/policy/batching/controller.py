"""Change batching limits of engines without the fast loop: canary replica first, then all replicas or a rollback.

vLLM reads its limits at start, so that a change restarts every replica. A change must be worth that: the length mix is
known and steady, fewer replicas would carry the load, and the error budget can absorb a mistake. Engines with the fast
loop tune their own limits and get none from here.

The Deployment records the trial. Both sides serve their share of the same requests at the same time, so that any other
problem of the load affects both.

Source: docs/designs/0002-batching.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.estimate.slo_budget import NONE, Verdicts, plus

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
"""Pause after rejected limits, and its upper bound; it doubles from one rejection to the next."""

TRIAL_SECONDS, LEAST_JUDGED = 1500.0, 200.0
"""How long the canary serves before its limits are kept, and the fewest requests that show anything."""

CHANCE, LEAST_MISSED, MISSED_AT_END = 3.0, 5.0, 2.0
"""What the canary may miss beyond the share of the other replicas: deviations of a Poisson count, and requests."""


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
    """Limits under test on a canary replica: the limits before, since when it serves, and the requests since then.

    `canary` and `rest` are those of both sides. `ends_with` are the final limits, until the Deployment shows them.
    """

    accelerator: str
    before: BatchingLimits
    after: BatchingLimits
    began_at: float
    serves_since: float | None = None
    canary: Verdicts = NONE
    rest: Verdicts = NONE
    ends_with: BatchingLimits | None = None

    def with_more(self, canary: Verdicts, rest: Verdicts) -> Trial:
        """Return the trial with the requests since the last tick; impossible or empty sides add nothing."""
        possible = all(math.isfinite(each.judged) and min(each.good, each.bad) >= 0.0 for each in (canary, rest))
        if not possible or min(canary.judged, rest.judged) <= 0.0:
            return self
        return replace(self, canary=plus(self.canary, canary), rest=plus(self.rest, rest))

    def misses_more(self, is_over: bool) -> bool:
        """Whether the canary missed more than its share, by more than chance; at the end, by more than half of it."""
        share = self.canary.judged / self.rest.judged if self.rest.judged > 0.0 else 0.0
        expected = share * self.rest.bad
        chance = CHANCE * math.sqrt(expected * (1.0 + share)) + LEAST_MISSED
        return self.canary.bad > expected + (min(chance, 0.5 * expected + MISSED_AT_END) if is_over else chance)


@value
class Batching:
    """State between ticks.

    `better` are limits that would carry more, and since when. No trial begins before `paused_until`; `pause_seconds`
    is the pause after the last rejection, 0 after limits that were kept.
    """

    trial: Trial | None = None
    better: tuple[str, BatchingLimits, float] | None = None
    paused_until: float = 0.0
    pause_seconds: float = 0.0
    considered: Wanted | None = None


def step(memory: Batching, situation: Situation) -> tuple[Batching, BatchingTarget]:
    """Continue a trial, begin one, or change nothing; return the new state and the limits for the Deployment."""
    name, before, trial = situation.accelerator, situation.before, memory.trial
    if before is None:
        return _begin(replace(memory, trial=None), situation)
    if trial is None or (trial.accelerator, trial.after) != (name, situation.limits):
        # After a restart only the Deployment records the trial: its time starts again.
        trial = Trial(name, before, situation.limits, situation.now)
    if trial.ends_with is not None:
        return memory, BatchingTarget(name, trial.ends_with)
    return _continue(memory, trial, situation)


def _begin(memory: Batching, situation: Situation) -> tuple[Batching, BatchingTarget]:
    """Begin a trial if better limits have been worth it for long enough; asked for again until it is recorded."""
    name, now, wanted = situation.accelerator, situation.now, situation.wanted
    if situation.free and not situation.settled:
        return memory, situation.unchanged
    if not situation.free or wanted is None or not worth(situation, wanted):
        return replace(memory, better=None), situation.unchanged
    better, known = (name, wanted.limits), memory.better
    since = known[2] if known and known[:2] == better and known[2] <= now else now
    memory = replace(memory, better=(*better, since))
    if now - since < PATIENCE_SECONDS or now < memory.paused_until or not affordable(situation):
        return memory, situation.unchanged
    message = (
        f"canary: one {name} replica runs with {words(wanted.limits)}; expected {wanted.rate_rps:.1f} req/s "
        f"per replica, {situation.rate_rps:.1f} req/s with {words(situation.limits)}"
    )
    return memory, BatchingTarget(name, wanted.limits, situation.limits, Reason.BATCHING_TRIAL, message)


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
    """Continue a trial; limits that miss more are rejected at once, all others are kept when its time is over."""
    now, since = situation.now, trial.serves_since
    if not situation.free:
        return _reject(memory, trial, now, "Holdfast may no longer choose the limits")
    if situation.canary_fails or (since is None and now - trial.began_at >= LONGEST_START_SECONDS):
        return _reject(memory, trial, now, "it fails or does not become ready")
    if since is None:
        trial = replace(trial, serves_since=now if situation.canary_serves else None)
    else:
        trial = trial.with_more(situation.canary, situation.rest)
    judged, seconds = trial.canary.judged, 0.0 if since is None else now - since
    if trial.misses_more(is_over=seconds >= TRIAL_SECONDS and judged >= LEAST_JUDGED):
        often = "it missed the objectives more often than the other replicas"
        return _reject(memory, trial, now, f"in {judged:.0f} requests {often}")
    if seconds < TRIAL_SECONDS:
        return replace(memory, trial=trial, better=None), BatchingTarget(trial.accelerator, trial.after, trial.before)
    if judged < LEAST_JUDGED:
        return _reject(memory, trial, now, f"{judged:.0f} requests are too few to judge it")
    memory = replace(memory, trial=replace(trial, ends_with=trial.after), better=None)
    memory = replace(memory, paused_until=now + HORIZON_SECONDS, pause_seconds=0.0)
    why = f"in {judged:.0f} requests it missed the objectives about as often as the other replicas, or less"
    message = f"all {trial.accelerator} replicas get {words(trial.after)}: {why}"
    return memory, BatchingTarget(trial.accelerator, trial.after, None, Reason.BATCHING_KEPT, message)


def _reject(memory: Batching, trial: Trial, now: float, why: str) -> tuple[Batching, BatchingTarget]:
    """Return to the limits before, and try none for a while."""
    name, before = trial.accelerator, trial.before
    pause = min(max(RETRY_SECONDS, 2.0 * memory.pause_seconds), LONGEST_RETRY_SECONDS)
    memory = replace(memory, trial=replace(trial, ends_with=before), better=None)
    memory = replace(memory, paused_until=now + pause, pause_seconds=pause)
    message = f"the {name} replica with {words(trial.after)} returns to {words(before)}: {why}"
    return memory, BatchingTarget(name, before, None, Reason.BATCHING_RETURNED, message)


def words(limits: BatchingLimits) -> str:
    """Return the limits as a readable text."""
    parts = (
        f"{counted(limits.max_num_batched_tokens, 'token')} per step" if limits.max_num_batched_tokens else "",
        counted(limits.max_num_seqs, "sequence") if limits.max_num_seqs else "",
    )
    return " and ".join(filter(None, parts)) or "vLLM's own limits"
