"""Other batching limits for engines without the fast loop: one replica first, then the rest, or back.

vLLM reads its limits when it starts, so that a change costs every replica a start. It is made only where it pays: the
length mix is known and steady, fewer replicas would carry the load, and the error budget can bear a mistake. Engines
with the fast loop find their limits themselves and are told none (docs/designs/0002-batching.md).
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
"""How many times as much other limits must carry."""

PATIENCE_SECONDS = 600.0
"""How long the same limits must have been the better ones."""

HORIZON_SECONDS = 3600.0
"""How long limits are expected to stay the best, and are left alone at least."""

WORTH = 2.0
"""How many times the capacity that replicas lose while they restart must be gained within the horizon."""

LEAST_BUDGET = 0.5
"""Share of the error budget that must be left."""

LONGEST_START_SECONDS = 3600.0
"""How long a replica on trial may take to serve."""

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 6 * 3600.0, 7 * 24 * 3600.0
"""After how long limits that were sent back may be tried again; doubles each time."""


@value
class Wanted:
    """Limits and what a replica would carry within them, requests/s."""

    limits: BatchingLimits
    rate_rps: float


class Question(NamedTuple):
    """What the best limits depend on; the answer holds as long as all of it is the same."""

    spec: ServiceSpec
    option: AcceleratorOption
    mix: LengthMix
    slowness: float
    limits: BatchingLimits


@value
class Considered:
    """The best limits, and the question they are the answer to."""

    question: Question
    wanted: Wanted


@value
class Situation:
    """What the controller looks at: one accelerator's replicas, all of them a service has.

    `limits` are those that its Deployment has, `before` what they replace while they are on trial. `settled`: metrics
    are fresh, nothing starts, drains, fails, or moves, and the lengths are known. `surge`: one more replica finds a
    place. `canary` and `rest` are what both sides did in the time since the last look, empty where nobody knows.
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
    """Whether the objective is kept and nothing burns, with enough of the budget left."""
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
    """Limits on one replica: what they replace, since when it serves, and what speaks for them.

    `applied`: the Deployment has shown them.
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
    """Limits that were sent back, and until when they are not tried again."""

    accelerator: str
    limits: BatchingLimits
    until: float
    delay_seconds: float


@value
class Batching:
    """What is carried from tick to tick.

    `better` are limits that would carry more, and since when they would; `ending` are those that a trial ended with,
    until the Deployment shows them.
    """

    trial: Trial | None = None
    ending: tuple[str, BatchingLimits] | None = None
    returned: tuple[Returned, ...] = ()
    better: tuple[str, BatchingLimits, float] | None = None
    changed_at: float | None = None
    considered: Considered | None = None


@value
class NextLimits:
    """What follows: limits for the Deployment, on trial while `before` says what they replace, and what to tell."""

    limits: BatchingLimits
    before: BatchingLimits | None = None
    reason: Reason | None = None
    message: str = ""


def step(memory: Batching, seen: Situation) -> tuple[Batching, NextLimits]:
    """Go on with a trial, begin one, or leave everything as it is."""
    if memory.ending is not None and memory.ending[0] == seen.accelerator:
        if (seen.limits, seen.before) != (memory.ending[1], None):
            return memory, NextLimits(memory.ending[1])
        memory = replace(memory, ending=None)
    trial = memory.trial if memory.trial and memory.trial.accelerator == seen.accelerator else None
    if seen.before is not None and (trial is None or trial.after != seen.limits):
        # A trial that nobody remembers: the Deployment does, and its time begins anew.
        trial = Trial(seen.accelerator, seen.before, seen.limits, seen.now)
    if trial is not None:
        return _go_on(replace(memory, trial=trial), trial, seen)
    if not seen.free:
        return _without(memory), NextLimits(seen.limits)
    return _begin(memory if memory.trial is None else replace(memory, trial=None), seen)


def _without(memory: Batching) -> Batching:
    """Neither a trial nor limits that would be better: as a rule there were none before."""
    return memory if memory.trial is None and memory.better is None else replace(memory, trial=None, better=None)


def _begin(memory: Batching, seen: Situation) -> tuple[Batching, NextLimits]:
    wanted, stay = seen.wanted, NextLimits(seen.limits)
    if wanted is None or not seen.settled or not worth(seen, wanted):
        return _without(memory) if seen.settled else memory, stay
    known = memory.better
    since = known[2] if known and known[:2] == (seen.accelerator, wanted.limits) and known[2] <= seen.now else seen.now
    memory = replace(memory, better=(seen.accelerator, wanted.limits, since))
    recently = memory.changed_at is not None and 0.0 <= seen.now - memory.changed_at < HORIZON_SECONDS
    if seen.now - since < PATIENCE_SECONDS or recently or _refused(memory, seen, wanted.limits) or not affordable(seen):
        return memory, stay
    trial = Trial(seen.accelerator, seen.limits, wanted.limits, seen.now)
    message = (
        f"one {seen.accelerator} replica tries {words(wanted.limits)}: "
        f"{wanted.rate_rps:.1f} req/s per replica expected, {seen.rate_rps:.1f} with {words(seen.limits)}"
    )
    return replace(memory, trial=trial, better=None), NextLimits(
        wanted.limits, seen.limits, Reason.BATCHING_TRIAL, message
    )


def worth(seen: Situation, wanted: Wanted) -> bool:
    """Fewer replicas would do, and what is gained within the horizon pays for the starts."""
    if wanted.limits == seen.limits or seen.demand_rps is None or not seen.rate_rps > 0.0:
        return False
    gain = wanted.rate_rps / seen.rate_rps
    if not gain >= HYSTERESIS:
        return False
    saves = replicas_for(seen.demand_rps, wanted.rate_rps) < replicas_for(seen.demand_rps, seen.rate_rps)
    return saves and (gain - 1.0) * HORIZON_SECONDS >= WORTH * seen.cold_start_seconds


def affordable(seen: Situation) -> bool:
    """The objective can bear the trial: budget is left, and the load is carried while one replica starts anew."""
    if not seen.calm or seen.demand_rps is None:
        return False
    return seen.surge or (seen.size >= 2 and seen.demand_rps <= (seen.size - 1) * seen.rate_rps)


def _refused(memory: Batching, seen: Situation, limits: BatchingLimits) -> bool:
    return any(
        (old.accelerator, old.limits) == (seen.accelerator, limits) and seen.now < old.until for old in memory.returned
    )


def _go_on(memory: Batching, trial: Trial, seen: Situation) -> tuple[Batching, NextLimits]:
    if not seen.free:
        return _end(memory, trial, seen, Outcome.RETURN, "its limits are no longer to be chosen")
    if seen.limits != trial.after:
        if trial.applied:  # an edit of the model or image has made them void
            return replace(memory, trial=None), NextLimits(seen.limits, seen.before)
        return memory, NextLimits(trial.after, trial.before)
    trial = replace(trial, applied=True)
    if seen.canary_fails or (trial.serves_since is None and seen.now - trial.began_at >= LONGEST_START_SECONDS):
        return _end(memory, trial, seen, Outcome.RETURN, "it does not come up, or fails")
    since = trial.serves_since
    if since is None:
        since = seen.now if seen.canary_serves else None
        return replace(memory, trial=replace(trial, serves_since=since)), NextLimits(trial.after, trial.before)
    evidence = trial.evidence.weighed(seen.canary, seen.rest)
    trial = replace(trial, evidence=evidence)
    outcome = evidence.outcome(seen.now - since)
    if outcome is Outcome.OPEN:
        return replace(memory, trial=trial), NextLimits(trial.after, trial.before)
    said = f"of {evidence.judged:.0f} requests it missed {'more' if outcome is Outcome.RETURN else 'no more'}"
    return _end(memory, trial, seen, outcome, f"{said} than the other replicas")


def _end(memory: Batching, trial: Trial, seen: Situation, outcome: Outcome, why: str) -> tuple[Batching, NextLimits]:
    limits = trial.after if outcome is Outcome.KEEP else trial.before
    ending = (trial.accelerator, limits)
    memory = replace(memory, trial=None, better=None, changed_at=seen.now, ending=ending)
    if outcome is Outcome.KEEP:
        message = f"all {trial.accelerator} replicas get {words(trial.after)}: {why}"
        return memory, NextLimits(trial.after, None, Reason.BATCHING_KEPT, message)
    last = next((r for r in memory.returned if (r.accelerator, r.limits) == (trial.accelerator, trial.after)), None)
    delay = RETRY_SECONDS if last is None else min(2.0 * last.delay_seconds, LONGEST_RETRY_SECONDS)
    returned = Returned(trial.accelerator, trial.after, seen.now + delay, delay)
    kept = tuple(r for r in memory.returned if r is not last)
    message = f"the {trial.accelerator} replica with {words(trial.after)} goes back to {words(trial.before)}: {why}"
    return replace(memory, returned=(*kept, returned)), NextLimits(
        trial.before, None, Reason.BATCHING_RETURNED, message
    )


def words(limits: BatchingLimits) -> str:
    """Limits as people read them."""
    parts = (
        f"{limits.max_num_batched_tokens} tokens per step" if limits.max_num_batched_tokens else "",
        f"{limits.max_num_seqs} sequences" if limits.max_num_seqs else "",
    )
    return " and ".join(filter(None, parts)) or "vLLM's own limits"
