"""One trial of a sweep: a rate for some time, watched, ended early where it is beyond what the endpoint carries."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace

from holdfast.enginemodel.catalog import find_model
from holdfast.tools.bench.figures.engine import EngineWatch
from holdfast.tools.bench.figures.results import measure
from holdfast.tools.bench.figures.sweep import (
    OverSaturation,
    RateTrial,
    SaturationSearch,
    SweepLoad,
    SweepResult,
    saturation,
)
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load.load_generator import ClientTooSlow, Endpoint, Generator, Load, Run
from holdfast.tools.bench.load.records import RequestRecord
from holdfast.tools.bench.runs import loads

CLIENT_REMEDY = (
    "lower the load, give the client a core of its own, or raise --max-client-lag where such an error is small "
    "compared to what is measured"
)
START_RPS, SECONDS, LEAST_REQUESTS = 1.0, 30.0, 50
"""Where a sweep begins, how long a trial lasts, and how many requests it has at least."""

SETTLE_SHARE, MOST_SETTLE_SECONDS = 0.1, 2.0
"""Of a trial, before the next: what was given up leaves the engine."""


def sweep_load(arguments: argparse.Namespace, endpoint: Endpoint) -> SweepLoad:
    """What every trial sends, as the options ask for it; BadInput where a file of lengths cannot be used."""
    prompts, answers = loads.spreads_of(arguments)
    return SweepLoad(
        model=endpoint.model,
        url=endpoint.url,
        api=str(endpoint.api),
        gaps_cv=arguments.cv,
        prompt_tokens_mean=prompts[0],
        prompt_tokens_cv=prompts[1],
        output_tokens_mean=answers[0],
        output_tokens_cv=answers[1],
        lengths_from=None if arguments.lengths is None else arguments.lengths.name,
        trial_seconds=arguments.duration or SECONDS,
        least_requests=LEAST_REQUESTS,
    )


async def watched(
    generator: Generator, endpoint: Endpoint, load: Load, ended: Callable[[RequestRecord], None]
) -> tuple[Run, EngineWatch]:
    """Send a load, and look at the engine's metrics meanwhile."""
    watch = EngineWatch(endpoint)
    looking = asyncio.create_task(watch.run())
    try:
        return await generator.run(endpoint, load, ended), watch
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


class SweepRunner:
    """All trials of a sweep; `tell` hears a line before and after each."""

    def __init__(self, arguments: argparse.Namespace, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        self._arguments, self._endpoint, self._tell = arguments, endpoint, tell
        self._tried = 0

    async def sweep(self) -> SweepResult:
        """Find the borders, from --rate on. ClientTooSlow where the client itself is too slow for the first rate."""
        start = self._arguments.rate or START_RPS
        most = self._arguments.sweep_trials
        search = SaturationSearch(self._trial, self._arguments.objective, most_trials=most, lowest_rps=start / 8.0)
        return await search.sweep(start)

    async def _trial(self, rate: float) -> RateTrial:
        given = self._arguments
        seconds = max(given.duration or SECONDS, LEAST_REQUESTS / rate)
        self._tried += 1
        self._tell(f"trial {self._tried}: {rate:.3g} req/s for {seconds:.0f} s")
        load = loads.at_rate(given, rate, seconds, given.seed + self._tried)
        stop = OverSaturation(tuple(load.planned))
        load = replace(load, stopped=stop.stopped)
        run, watch = await watched(OwnGenerator(), self._endpoint, load, stop.ended)
        cuts, cost = (given.warm_up, given.cool_down), given.cost_per_hour
        results = measure(run.records, given.slo, *cuts, cost, run.client, classes=given.classes)
        slow = run.client.overloaded(given.max_client_lag, results.itl.p50) if run.client is not None else ""
        await asyncio.sleep(min(MOST_SETTLE_SECONDS, SETTLE_SHARE * seconds))
        if slow:
            self._tell(f"  excluded, the client was too slow: {slow}")
            raise ClientTooSlow(
                f"result rejected at {rate:.3g} req/s, the client was too slow: {slow}; {CLIENT_REMEDY}"
            )
        beyond = saturation(results, run.records, stop.found)
        self._tell(f"  {100 * results.attainment:.1f} % good{', saturated: ' + beyond if beyond else ''}")
        kv_model = given.kv_model or find_model(self._endpoint.model)
        results = replace(results, engine=watch.reported, accelerator=given.accelerator, kv_model=kv_model)
        return RateTrial(rate, results, beyond, watch.reported)
