"""The twin as the endpoint, on its virtual clock, and as the model that proposes; both play a trial's own requests.

The model believes in the step times of a table or a law, and trials correct them in three parts: what every step takes,
what prompt tokens add and what decodes add. Everything else follows from these.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel import steadystate
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.enginetimer import EngineTimer, slowed
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.enginemodel.working import WorkingPoint, working_point
from holdfast.tools.tune.engine_port import TrialFigures, TrialLoad, TrialRequests, Tried, figures
from holdfast.tools.tune.fit import least_squares
from holdfast.tools.tune.race import Race
from holdfast.tools.tune.setting import Setting
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.arrays.state_arrays import Records
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.replica.capacity import Bench, bisected, good, latencies, pairs

SETTLE_SECONDS = 2.0
"""Between two trials: what was given up leaves the engine."""

SAME = 0.01
"""A correction that changes no part of a step by more than this is none."""

SURE = 0.04
"""How well figures are reproduced / how well the parts of a step are known before any trial: little."""

SHIFTS = np.linspace(-1.0, 1.0, 11)
"""Of all step times, in logarithms: where the search for parts of a step begins."""

PARTS, LAST_TRIALS = 3, 5
"""What is learned: the factor of all step times, and of the seconds of every step and of prompt tokens within that."""

SHORTLIST = 0.75
"""Share of the best by the closed form below which a setting is not played: the two may be 15 % apart."""

CLEARLY = 1.03
"""How much more fewer sequences have to carry: they protect an engine only as long as lengths stay what they are."""

MOST_PAIRS, LONG_DRAWS, LEAST_SUSTAINED = 20_000, 3, 0.5
TRICKLE, BUSIEST = 0.3, 0.95

KvTokens = Callable[[Setting], int]


@dataclass(frozen=True, slots=True)
class TwinEngine:
    """An engine whose steps take `stretch` times what the timer says; its KV cache depends on the setting."""

    timer: EngineTimer
    law: StepLaw
    kv_tokens: KvTokens
    stretch: float = 1.0

    def corrected(self, logarithms: Floats) -> TwinEngine:
        """With the factors of the parts of a step that these are the logarithms of."""
        gain, fixed, prompt = np.exp(logarithms).tolist()
        timer, law = self.timer.parted(fixed, prompt), self.law.parted(fixed, prompt)
        return replace(self, timer=timer, law=law, stretch=self.stretch * gain)

    def play(self, setting: Setting, load: Workload, slo: Slo) -> tuple[Records, bool]:
        """Every request's record, and whether the KV cache was too small for them."""
        fleet, number = self.started(setting, load, slo)
        fleet.advance(math.inf)
        return fleet.requests, bool(fleet.state(number)["preemptions"][0])

    def started(self, setting: Setting, load: Workload, slo: Slo) -> tuple[EngineFleet, int]:
        """One such engine before its first request, and its number."""
        limits = SchedulerLimits(setting.max_num_seqs, setting.max_num_batched_tokens, self.kv_tokens(setting))
        fleet = EngineFleet(load, [EngineSpec(self.timer, limits)], slo, Routing("round-robin"))
        number = fleet.add()
        fleet.stretch(number, self.stretch)
        return fleet, number


class TwinTrials:
    """The endpoint port on the twin's clock: deterministic, and over in moments.

    `started` is what the engine runs with at first; beyond it, or with other memory, it has to be restarted.
    """

    def __init__(self, engine: TwinEngine, slo: Slo, started: Setting, restart_seconds: float = 60.0) -> None:
        self._engine, self._slo = engine, slo
        self._started, self._restart_seconds = started, restart_seconds

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        """Play a load; what comes after the race is lost is as if it had never been sent."""
        restarted = self._apply(setting)
        records, full = self._engine.play(setting, load.requests, self._slo)
        race = Race(load.counted, self._slo.objective)
        ended_at, judged = _raced(race, records, load.first, self._slo)
        seen = records[load.first :][:judged]
        seen = seen[_ended(seen) <= ended_at]
        return Tried(
            setting,
            rate_rps,
            held=race.held,
            judged=judged,
            bad=race.bad,
            seconds=ended_at + SETTLE_SECONDS + (self._restart_seconds if restarted else 0.0),
            load_seconds=ended_at,
            ended=race.lost_after is not None,
            restarted=restarted,
            memory_full=full,
            figures=_figures(seen, self._slo),
        )

    async def alone(self, setting: Setting, load: TrialLoad) -> Tried:
        """One request at a time."""
        restarted = self._apply(setting)
        records, full = self._engine.play(setting, load.requests, self._slo)
        race = Race(load.counted, self._slo.objective)
        race.bad = int((1.0 - good(records, self._slo)).sum())
        seconds = float(latencies(records)[2][np.isfinite(records["last_at"])].sum())
        seconds += self._restart_seconds if restarted else 0.0
        told = _figures(records, self._slo)
        return Tried(setting, 0.0, race.held, load.counted, race.bad, seconds, memory_full=full, figures=told)

    def _apply(self, setting: Setting) -> bool:
        """Whether that takes a restart."""
        most = self._started
        if setting.within(most):
            return False
        self._started = Setting(
            max(setting.max_num_seqs, most.max_num_seqs),
            max(setting.max_num_batched_tokens, most.max_num_batched_tokens),
            setting.gpu_memory_utilization,
        )
        return True


class TwinModel:
    """The proposing port: closed form for a short list, then the twin with the requests of the trials themselves."""

    def __init__(self, engine: TwinEngine, slo: Slo, requests: TrialRequests) -> None:
        self._prior = self._engine = engine
        self._slo, self._requests = slo, requests
        self._learned, self.doubt = np.zeros(PARTS), 0.0
        self._seen: deque[tuple[Tried, TrialLoad]] = deque(maxlen=LAST_TRIALS)
        self._mix = LengthMix.from_pairs(pairs(requests.lengths)[:MOST_PAIRS])
        self._rates: dict[Setting, float] = {}
        self._points: dict[Setting, WorkingPoint] = {}

    def lasting(self, settings: Sequence[Setting]) -> TrialRequests:
        """As many requests as show the steady state of the best of these, by the closed form; used from now on."""
        points = [self._point(setting).capacity for setting in settings]
        self._requests = self._requests.lasting(max(points, key=lambda point: point.rate_rps).sequences)
        return self._requests

    @property
    def gain(self) -> float:
        """By what factor steps are believed to take longer than the timer says."""
        return self._engine.stretch

    def rate(self, setting: Setting) -> float:
        """By the twin, with the requests of the trials; where it finds none, a trickle to begin with."""
        if setting not in self._rates:
            self._rates[setting] = self._simulated(setting)
        return self._rates[setting]

    def proposals(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those near the best by the closed form; fewer sequences only where the twin finds that they carry more."""
        formula = {setting: self._point(setting).capacity.rate_rps for setting in settings}
        least = SHORTLIST * max(formula.values(), default=0.0)
        found: dict[tuple[int, float | None], Setting] = {}
        for setting in sorted(settings, key=lambda each: -each.max_num_seqs):
            group = setting.max_num_batched_tokens, setting.gpu_memory_utilization
            if formula[setting] < least:
                continue
            if group not in found or self.rate(setting) > CLEARLY * self.rate(found[group]):
                found[group] = setting
        return sorted(found.values(), key=lambda each: -self.rate(each))

    def residence_seconds(self, setting: Setting, rate_rps: float) -> float:
        """By the closed form, as far as it goes: beyond what an engine carries there is no steady state."""
        law, slo = self._point(setting).law, self._slo
        engine = self._closed_form(setting, law)
        rate = min(rate_rps, BUSIEST * engine.most_rate)
        step = float(steadystate.steady_state(engine, np.array([rate])).step_seconds[0])
        return min(self._mix.output_tokens * min(step, slo.tpot_seconds), slo.e2e_seconds or math.inf)

    def sustained(self, setting: Setting) -> float:
        """The rate of long loads drawn at random / that of a trial, both by the twin."""
        short = self.rate(setting)
        limits = SchedulerLimits(setting.max_num_seqs, setting.max_num_batched_tokens, self._engine.kv_tokens(setting))
        # An engine whose steps take twice as long is one with half the time: for the requests, and for the bounds.
        slo, gain = self._slo, self.gain
        e2e = None if slo.e2e_seconds is None else slo.e2e_seconds / gain
        slo = replace(slo, ttft_seconds=slo.ttft_seconds / gain, tpot_seconds=slo.tpot_seconds / gain, e2e_seconds=e2e)
        bench = Bench(EngineSpec(self._engine.timer, limits), slo, self._requests.lengths, LONG_DRAWS)
        return min(1.0, max(LEAST_SUSTAINED, bench.rate(short * gain).rate_rps / gain / short))

    def learn(self, tried: Tried, load: TrialLoad) -> bool:
        """Fit the parts of a step to the thirds of TTFT and TPOT of the last trials."""
        if not tried.figures.tpot_seconds > 0.0:
            return False
        self._seen.append((tried, load))
        learned = self._fitted()
        left = self._misfit(learned)[PARTS:]
        self.doubt = math.sqrt(float(left @ left) / max(1, len(left) - PARTS))
        if np.abs(learned - self._learned).max() <= SAME:
            return False
        self._learned, self._engine = learned, self._prior.corrected(learned)
        self._rates.clear()
        self._points.clear()
        return True

    def _fitted(self) -> Floats:
        """From near: of an engine that is far beyond what it carries, a slope tells little."""
        starts = [self._learned + np.array([shift, 0.0, 0.0]) for shift in SHIFTS]
        return least_squares(self._misfit, min(starts, key=lambda each: float(np.square(self._misfit(each)).sum())))

    def _misfit(self, logarithms: Floats) -> Floats:
        """How far the parts of a step are from what was believed, and what the twin shows with them from the trials."""
        engine = self._prior.corrected(logarithms)
        return np.concatenate([SURE * logarithms, *(self._off(engine, *each) for each in self._seen)])

    def _off(self, engine: TwinEngine, tried: Tried, load: TrialLoad) -> Floats:
        """Logarithms of the twin's thirds / a trial's; where the twin ends nothing in that time, it is too slow."""
        records, _ = engine.play(tried.setting, load.requests, self._slo)
        counted = records[load.first :]
        if tried.ended:
            counted = counted[_ended(counted) <= tried.load_seconds]
        shown = _figures(counted, self._slo).thirds
        ratios = np.array(shown) / np.array(tried.figures.thirds)
        off: Floats = np.nan_to_num(np.log(ratios), nan=1.0, posinf=1.0, neginf=-1.0)
        # Beyond what an engine carries TTFT tells of its queue, which grows and grows, and hardly of its steps.
        return off if tried.held else off[len(off) // 2 :]

    def _simulated(self, setting: Setting) -> float:
        point = self._point(setting)
        trickle = TRICKLE * self._closed_form(setting, point.law).most_rate

        def holds(rate: float) -> bool:
            load = self._load(setting, rate)
            records, _ = self._engine.play(setting, load.requests, self._slo)
            return float(good(records[load.first :], self._slo).mean()) >= self._slo.objective

        return bisected(holds, point.capacity.rate_rps or trickle) or trickle

    def _load(self, setting: Setting, rate: float) -> TrialLoad:
        return self._requests.at(rate, self.residence_seconds(setting, rate))

    def _closed_form(self, setting: Setting, law: StepLaw) -> steadystate.Engine:
        limits = setting.max_num_seqs, setting.max_num_batched_tokens
        return steadystate.Engine(law, self._mix, *limits, self._engine.kv_tokens(setting))

    def _point(self, setting: Setting) -> WorkingPoint:
        """Where the engine works by the closed form."""
        if setting not in self._points:
            self._points[setting] = self._worked_out(setting)
        return self._points[setting]

    def _worked_out(self, setting: Setting) -> WorkingPoint:
        limits = BatchLimits(setting.max_num_seqs, setting.max_num_batched_tokens)
        timer, law = slowed(self._engine.timer, self.gain), self._engine.law.scaled(self.gain)
        kv_tokens = self._engine.kv_tokens(setting)
        return working_point(timer, self._mix, limits, kv_tokens, self._slo, start=law)


def _raced(race: Race, records: Records, warm_up: int, slo: Slo) -> tuple[float, int]:
    """Tell a race of every bad request as it ends, until it is lost; when it was over, and how many were judged."""
    counted = records[warm_up:]
    bad = good(counted, slo) < 1.0
    ended = _ended(counted)
    for place in np.argsort(ended, kind="stable"):
        if bad[place]:
            arrived = int(np.searchsorted(counted["at"], ended[place], side="right"))
            if race.missed(arrived):
                return float(ended[place]), arrived
    return float(_ended(records).max()), len(counted)


def _ended(records: Records) -> Floats:
    """When each request ended; a refused one ends when it arrives."""
    return np.asarray(np.where(records["state"] == state_arrays.FINISHED, records["last_at"], records["at"]))


def _figures(records: Records, slo: Slo) -> TrialFigures:
    done = records[records["state"] == state_arrays.FINISHED]
    ttft, tpot, e2e = latencies(done)
    return figures(ttft, np.where(done["output"] > 1, tpot, math.nan), e2e, slo.objective)
