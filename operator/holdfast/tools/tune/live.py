"""A live endpoint behind the port of trials: the client of `holdfast bench`, and limits that are set meanwhile."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import GOOD, Figure
from holdfast.tools.bench.figures.engine import FULL, Reported
from holdfast.tools.bench.figures.results import Results, Spread, measure
from holdfast.tools.bench.generators.client import OwnGenerator, lateness_p99_seconds
from holdfast.tools.bench.load import load_generator
from holdfast.tools.bench.load.load_generator import Endpoint, LatencyBounds, Planned, Run
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.pages.report import CAUSES
from holdfast.tools.bench.runs.trials import CLIENT_REMEDY, MOST_SETTLE_SECONDS, SETTLE_SHARE, watched
from holdfast.tools.tune.engine_port import CannotTry, TrialFigures, TrialLoad, Tried, UnusableTrial, figures
from holdfast.tools.tune.ladder import LadderLoad
from holdfast.tools.tune.limits import Knobs
from holdfast.tools.tune.race import Race
from holdfast.tools.tune.setting import Setting
from holdfast.twin.arrays.fleet import Workload

LONE_SECONDS = 600.0
"""After so long no more requests are sent one by one: a slow engine has said enough by then, a stuck one nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a good request is, how many of them are wanted, and how late the client itself may be, in seconds."""

    slo: LatencyBounds
    objective: float
    max_client_lag: float = 0.005
    drain_seconds: float = 60.0


class LiveTrials:
    """Sends the requests of each trial, and stops sending once the race is lost."""

    def __init__(self, endpoint: Endpoint, knobs: Knobs, asked: Asked) -> None:
        self._endpoint, self._knobs, self._asked = endpoint, knobs, asked

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        """One trial; CannotTry where no request finishes, or the client is too slow for this rate."""
        began = asyncio.get_running_loop().time()
        restarted = await self._knobs.apply(setting)
        planned = _planned(load.requests)
        judge = _Judge(planned, load.first, self._asked)
        drain = self._asked.drain_seconds
        sent = load_generator.Load(planned, len(planned), drain_seconds=drain, stopped=judge.stopped)
        started = asyncio.get_running_loop().time()
        run, engine = await self._sent(sent, judge)
        load_seconds = asyncio.get_running_loop().time() - started
        lost = judge.race.lost_after
        self._check(run, load.first, rate_rps, given_up=lost is not None)
        counted = [record for record in run.records if record.index >= load.first]
        if lost is None:
            judge.race.bad = sum(definitions.verdict(record, self._asked.slo) != GOOD for record in counted)
        else:
            await asyncio.sleep(min(MOST_SETTLE_SECONDS, SETTLE_SHARE * load_seconds))
        return Tried(
            setting,
            rate_rps,
            held=judge.race.held,
            judged=load.counted if lost is None else lost,
            bad=judge.race.bad,
            seconds=asyncio.get_running_loop().time() - began,
            load_seconds=load_seconds,
            ended=lost is not None,
            restarted=restarted,
            figures=self._figures(counted),
            memory_full=engine is not None and (engine.preemptions > 0 or engine.peak_kv_usage >= FULL),
            causes=_causes(counted, self._asked.slo, given_up=lost is not None),
        )

    async def alone(self, setting: Setting, load: TrialLoad) -> Tried:
        """So many one after another."""
        began = asyncio.get_running_loop().time()
        restarted = await self._knobs.apply(setting)
        planned = _planned(load.requests)
        drain = self._asked.drain_seconds
        stop = LONE_SECONDS
        sent = load_generator.Load(planned, len(planned), 1, stop_after_seconds=stop, drain_seconds=drain)
        run, _ = await self._sent(sent, _Judge(planned, len(planned), self._asked))
        self._check(run, 0, math.nan)
        ended = [record for record in run.records if record.outcome is not RequestOutcome.UNFINISHED]
        race = Race(len(ended), self._asked.objective)
        race.bad = sum(definitions.verdict(record, self._asked.slo) != GOOD for record in ended)
        return Tried(
            setting,
            0.0,
            held=race.held,
            judged=len(ended),
            bad=race.bad,
            seconds=asyncio.get_running_loop().time() - began,
            restarted=restarted,
            figures=self._figures(ended),
            causes=_causes(ended, self._asked.slo, given_up=False),
        )

    async def rung(self, setting: Setting, load: LadderLoad) -> Results:
        """A rung of a ladder, measured as `holdfast bench` measures. CannotTry as `run`."""
        await self._knobs.apply(setting)
        sent = load.load(self._asked.drain_seconds)
        run, watch = await watched(OwnGenerator(), self._endpoint, sent, lambda record: None)
        self._check(run, load.first, load.rate_rps or math.nan)
        found = measure(run.records, self._asked.slo, load.warm_up_seconds(run.records), 0.0, client=run.client)
        return replace(found, engine=watch.reported)

    async def _sent(self, load: load_generator.Load, judge: _Judge) -> tuple[Run, Reported | None]:
        run, watch = await watched(OwnGenerator(), self._endpoint, load, judge.ended)
        return run, watch.reported

    def _check(self, run: Run, first: int, rate_rps: float, given_up: bool = False) -> None:
        timed = definitions.timed(run.records)
        # Who is asked for far more than it carries ends nothing in time: that is a miss, and no fault.
        beyond = not math.isnan(rate_rps) and all(each.outcome is RequestOutcome.UNFINISHED for each in run.records)
        if not timed and not beyond:
            told = ", ".join(f"{count} {what}" for what, count in _causes(run.records, LatencyBounds(), given_up))
            error = next((record.error for record in run.records if record.error), "")
            raise CannotTry(
                f"{self._endpoint.url}: no request finished: {told}{': ' + error if error else ''}: check "
                "with holdfast bench that it answers"
            )
        gaps = Spread.of(np.concatenate([definitions.itl_seconds(record) for record in timed] or [np.zeros(0)]))
        # The crowd that a load begins with is due at one moment: its last one leaves as late as all of it takes.
        late = lateness_p99_seconds(record for record in run.records if record.index >= first)
        client = run.client and replace(run.client, lateness_p99_seconds=late)
        slow = client.overloaded(self._asked.max_client_lag, gaps.p50) if client is not None else ""
        if slow:
            at = "" if math.isnan(rate_rps) else f" at {rate_rps:.3g} req/s"
            raise UnusableTrial(f"result rejected{at}, the client was too slow: {slow}; {CLIENT_REMEDY}")

    def _figures(self, records: Sequence[RequestRecord]) -> TrialFigures:
        timed = definitions.timed(records)

        def each(figure: Figure) -> definitions.Floats:
            return np.array([figure(record) for record in timed], np.float64)

        ttft, tpot = each(definitions.ttft_seconds), each(definitions.tpot_seconds)
        return figures(ttft, tpot, each(definitions.e2e_seconds), self._asked.objective)


class _Judge:
    """Tells a race of each request that ends; the first requests, of the warm-up, do not count."""

    def __init__(self, planned: Sequence[Planned], warm_up: int, asked: Asked) -> None:
        self.race = Race(len(planned) - warm_up, asked.objective)
        self._due = [each.at_seconds for each in planned]
        self._warm_up, self._slo = warm_up, asked.slo

    def ended(self, record: RequestRecord) -> None:
        """One more."""
        if self.race.lost_after is not None or record.index < self._warm_up:
            return
        if definitions.verdict(record, self._slo) != GOOD:
            at = record.ended_at - record.scheduled_at + self._due[record.index]
            self.race.missed(bisect.bisect_right(self._due, at) - self._warm_up)

    def stopped(self) -> bool:
        """Whether to send no more."""
        return self.race.lost_after is not None


def _planned(load: Workload) -> list[Planned]:
    columns = (load.at.tolist(), load.prompt_tokens.tolist(), load.output_tokens.tolist())
    return list(itertools.starmap(Planned, zip(*columns, strict=True)))


def _causes(records: Sequence[RequestRecord], slo: LatencyBounds, given_up: bool) -> list[tuple[str, int]]:
    """Why requests were bad, the commonest first, in words; without requests that the trial itself gave up."""
    told = Counter(definitions.verdict(record, slo) for record in records)
    del told[GOOD]
    if given_up:
        del told[str(RequestOutcome.UNFINISHED)]
    return [(CAUSES[cause], count) for cause, count in told.most_common()]
