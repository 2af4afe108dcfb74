"""The search: ask what can still beat the best, try that, and stop when nothing can.

A setting leaves the race once it has missed at a rate that would not beat the best, or once the model, corrected by
the trials so far, has it clearly below. So most settings are never tried, and a bad one costs one short trial.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.tools.bench.generators.endpoint import NoEndpoint
from holdfast.tools.tune.engine_port import CannotTry, EndpointModel, TrialEndpoint, TrialRequests, Tried
from holdfast.tools.tune.setting import Setting

STEP = 0.02
"""What carries so much more is better."""

CLOSE = 1.0 / (1.0 + STEP)
"""Of the rate that is believed, at which a setting is tried: one that holds tells more than one that just misses."""

LEAST_STRIDE, MOST_STRIDE = 0.95, 0.5
"""Where a setting missed at less than the model still has it carry: as far below as that is off, in these bounds.

But no further than what was good there: requests that were good at one rate are so at a lower one. That is believed of
the first NEAR_MISSES, for some requests may be bad at any rate.
"""

NEAR_MISSES = 2

HOPELESS_TRIALS = 4
"""After so many misses without a hold it is asked what an idle engine keeps."""

LEAST_SHARE = 0.01
"""Of the first rate tried: below it nothing is looked for."""

CONFIRMATIONS, BACK = 3, 0.95
"""Other requests are sent at the rate found; where they miss, at so much less, so often in all."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What was found. `rate_rps` is what the best trial carried, less what does not last; 0 for none.

    `confirmed`: other requests kept the objective at it.
    `missed_rps` is the lowest at which the best setting missed, infinite where it never did; `alone` what an idle
    engine keeps, where nothing was found; `exhausted`: trials or time ran out before the race was over, `ended_early`
    what else ended it.
    """

    best: Setting | None
    rate_rps: float
    missed_rps: float
    trials: tuple[Tried, ...]
    confirmed: bool = False
    alone: Tried | None = None
    exhausted: bool = False
    memory_full: bool = False
    ended_early: str = ""

    @property
    def seconds(self) -> float:
        """All that was spent on the endpoint."""
        return sum(tried.seconds for tried in (*self.trials, *filter(None, (self.alone,))))


@dataclass(slots=True)
class _Candidate:
    setting: Setting
    held_rps: float = 0.0
    missed_rps: float = math.inf
    missed_good: float = 0.0  # share of good requests there; requests cut off by the end of a trial are bad
    misses: int = 0


@dataclass(slots=True)
class LimitsSearch:
    """One search; `on_trial` is called with each trial."""

    trials: TrialEndpoint
    model: EndpointModel
    requests: TrialRequests
    most_trials: int = 60
    most_seconds: float = math.inf
    on_trial: Callable[[Tried], None] = lambda tried: None
    _tried: list[Tried] = field(default_factory=list)
    _known: dict[Setting, _Candidate] = field(default_factory=dict)
    _alone: Tried | None = None

    async def tune(self, settings: Sequence[Setting], with_more_memory: Sequence[Setting] = ()) -> TuningResult:
        """The best of `settings`; of those with more memory only where that is what the best one lacks."""
        ended_early = await self._raced(settings)
        best = self._best()
        full = best is not None and any(t.memory_full for t in self._tried if t.setting == best.setting)
        if best is not None and full and with_more_memory and not ended_early:
            limits = best.setting.max_num_seqs, best.setting.max_num_batched_tokens
            more = [s for s in with_more_memory if (s.max_num_seqs, s.max_num_batched_tokens) == limits]
            ended_early = await self._raced(more)
            best = self._best()
        if best is None:
            return TuningResult(None, 0.0, math.inf, tuple(self._tried), alone=self._alone, exhausted=self._spent())
        exhausted = self._spent()
        rate, confirmed, problem = await self._confirmed(best)
        return TuningResult(
            best.setting,
            rate,
            best.missed_rps,
            tuple(self._tried),
            confirmed,
            exhausted=exhausted,
            memory_full=full,
            ended_early=problem or ended_early,
        )

    async def _raced(self, settings: Sequence[Setting]) -> str:
        """What ended a race early: memory that an engine cannot have, a client that stalled. What was found stands."""
        try:
            await self._race(settings)
        except (CannotTry, NoEndpoint) as problem:
            if self._best() is None:
                raise
            return str(problem)
        return ""

    async def _race(self, settings: Sequence[Setting]) -> None:
        proposals = self.model.proposals(settings)
        while not self._spent():
            await asyncio.sleep(0)  # the twin waits for nothing, and who ends the search is heard only here
            following = self._next(proposals)
            if following is None:
                return
            if self._hopeless and not await self._possible(following[0]):
                return
            if await self._try(*following):
                proposals = self.model.proposals(settings)

    def _next(self, proposals: Sequence[Setting]) -> tuple[Setting, float] | None:
        """The most promising setting that can still beat the best, and the rate to try it at; None where none can."""
        best = self._best()
        racing = [each for each in map(self._candidate, proposals) if self._races(each, best)]
        if not racing:
            return None
        chosen = max(racing, key=self._believed)
        rate = max(CLOSE * self._believed(chosen), (1.0 + STEP) * best.held_rps if best else 0.0)
        least = LEAST_SHARE * self._tried[0].rate_rps if self._tried else 0.0
        return (chosen.setting, rate) if rate > least else None

    def _races(self, candidate: _Candidate, best: _Candidate | None) -> bool:
        """Whether a trial of it may show more than the best has: in doubt of the model, of settings not yet tried."""
        if best is None:
            return True
        believed, better = self._believed(candidate), (1.0 + STEP) * best.held_rps
        if candidate is best:
            return CLOSE * believed > better
        rivals = (1.0 + self.model.doubt) * believed > (1.0 + STEP) * self._believed(best)
        return rivals and believed > best.held_rps and candidate.missed_rps > better * (1.0 + 1e-9)

    def _believed(self, candidate: _Candidate) -> float:
        """The most that it is thought to carry, by the model and by what it has shown."""
        predicted, held, missed = self.model.rate(candidate.setting), candidate.held_rps, candidate.missed_rps
        if predicted < missed:
            return max(predicted, held)
        near = candidate.missed_good if candidate.misses <= NEAR_MISSES else 0.0
        stride = min(LEAST_STRIDE, max(MOST_STRIDE, missed / predicted, near))
        return math.sqrt(held * missed) if held else stride * missed

    async def _try(self, setting: Setting, rate: float) -> bool:
        """One trial; whether the model has changed by it."""
        load = self.requests.at(rate, self.model.residence_seconds(setting, rate))
        tried = await self.trials.run(setting, rate, load)
        self._note(tried)
        candidate = self._candidate(setting)
        if tried.held:
            candidate.held_rps = max(candidate.held_rps, rate)
        elif rate < candidate.missed_rps:
            candidate.missed_rps, candidate.missed_good = rate, (tried.judged - tried.bad) / load.counted
            candidate.misses += 1
        return self.model.learn(tried, load)

    async def _confirmed(self, best: _Candidate) -> tuple[float, bool, str]:
        """The rate at which other requests keep the objective too; of several that did not, what is left to believe.

        And what kept them from being sent, where that is why.
        """
        rate, problem = best.held_rps * self.model.sustained(best.setting), ""
        for _ in range(CONFIRMATIONS):
            load = self.requests.others().at(rate, self.model.residence_seconds(best.setting, rate))
            try:
                tried = await self.trials.run(best.setting, rate, load)
            except (CannotTry, NoEndpoint) as found:
                problem = str(found)
                continue
            self._note(tried)
            if tried.held:
                return rate, True, ""
            rate *= BACK
        return rate, False, problem

    async def _possible(self, setting: Setting) -> bool:
        """Whether an idle engine keeps the objective at all."""
        self._alone = self._alone or await self.trials.alone(setting, self.requests.alone())
        return self._alone.held

    @property
    def _hopeless(self) -> bool:
        return len(self._tried) >= HOPELESS_TRIALS and not any(tried.held for tried in self._tried)

    def _note(self, tried: Tried) -> None:
        self._tried.append(tried)
        self.on_trial(tried)

    def _best(self) -> _Candidate | None:
        held = [candidate for candidate in self._known.values() if candidate.held_rps > 0.0]
        return max(held, key=lambda candidate: candidate.held_rps, default=None)

    def _candidate(self, setting: Setting) -> _Candidate:
        return self._known.setdefault(setting, _Candidate(setting))

    def _spent(self) -> bool:
        seconds = sum(tried.seconds for tried in self._tried)
        return len(self._tried) >= self.most_trials or seconds >= self.most_seconds
