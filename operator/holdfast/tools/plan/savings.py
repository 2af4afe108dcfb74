"""What a service used in GPU-hours, and what Holdfast would have used: its recorded load, played by the twin."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from holdfast.api.llmservice import LLMService
from holdfast.domain.service import ServiceKey, ServiceSpec
from holdfast.monitoring import series
from holdfast.observe.series.promql import any_of
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import Series, usable
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.policies import Holdfast
from holdfast.twin.runs.oracle import SLOT_SECONDS, SizePlan
from holdfast.twin.runs.peak import static_peak
from holdfast.twin.runs.results import attainment, attains, gpu_hours
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.recorded import beginning_with, recorded
from holdfast.twin.scenarios.workload import renewals

AS_IT_RAN = "as it ran"
SEED = 1
LENGTHS_CV = 1.0
"""Coefficient of variation of lengths, as in `holdfast plan`: the recorded series have means alone."""

LEAST_KNOWN = 0.5
"""Share of the time that must be recorded: below it, most of the load would be invented."""

COLD_START_SECONDS = 90.0
"""Of a service that no replica was seen to start."""

MOST_ELSEWHERE = 0.05
"""Share of the GPU-hours on other accelerators: the whole load is played on the one that had most of the replicas."""

MOST_APART = 0.03
"""How far the twin's attainment with the recorded sizes may lie from the measured one for a saving to be claimed."""

MOST_REQUESTS = 2_000_000
"""Runs are kept until they are compared, and a million requests of one take 651 MiB (docs/twin.md)."""

STEP_SECONDS = 60.0
"""The recorded rates are those of the last two minutes: a longer step would not see all of the load."""

_SIZES = ("ready", "starting", "failing")
_HOLD_NO_GPU = ("desired", "unschedulable")
_ALL = "all"
_GAUGES = (series.ARRIVED, series.FINISHED, series.GOOD, series.JUDGED, series.COLD_START)

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The load and the sizes of a service every `step_seconds` from `begins_at` on; NaN where nothing was recorded.

    Requests/s, mean tokens of a request, replicas of the accelerator that had most of them, GPU-hours of each
    accelerator (None: not recorded), the good share of the requests that were judged (None: none was), and seconds of a
    start.
    """

    begins_at: float
    step_seconds: float
    rate_rps: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    accelerator: str
    replicas: Floats
    gpu_hours: Mapping[str, float | None]
    attainment: float | None
    cold_start_seconds: float

    @property
    def known_share(self) -> float:
        """Share of the time in which both requests and replicas were recorded."""
        return float(np.isfinite(self.rate_rps + self.replicas).mean())


@dataclass(frozen=True, slots=True)
class Savings:
    """Runs with the recorded sizes, under Holdfast, and of the best size that never changes."""

    history: Recorded
    as_it_ran: Finished
    holdfast: Finished
    best_size: Finished


def steps(until: float, span_seconds: float) -> tuple[float, float, float]:
    """First and last evaluation, and the step between them: every whole minute."""
    last = until // STEP_SECONDS * STEP_SECONDS
    return last - (round(span_seconds / STEP_SECONDS) - 1) * STEP_SECONDS, last, STEP_SECONDS


def query(key: ServiceKey) -> Query:
    """The range query for everything that is read of a service."""
    names = any_of((*_GAUGES, series.TOKENS, series.REPLICAS, series.GPUS))
    promql = (
        f'{{__name__=~"{names}", instance="", namespace=~"{any_of([key.namespace])}", holdfast_service="{key.name}"}}'
    )
    return Query("savings", lambda _: promql)


def read(rows: Sequence[Series], key: ServiceKey, first: float, last: float, step: float) -> Recorded:
    """The recorded load; BadInput says what Prometheus does not have."""
    count = round((last - first) / step) + 1
    found, empty = _columns(rows, first, step, count), np.full(count, np.nan)
    arrived, finished = found.get(series.ARRIVED, empty), found.get(series.FINISHED, empty)
    remedy = "check --prometheus-url and --prometheus-matcher, and that the rules of `holdfast rules` are loaded"
    if not np.isfinite(arrived).any():
        raise BadInput(f"Prometheus has no arrivals of {key} in this time ({series.ARRIVED}): {remedy}")
    if np.nansum(arrived) * step < 2.0:
        raise BadInput(f"fewer than two requests of {key} arrived in this time: give a longer --since")
    prompts, outputs = (_mean(found.get(f"tokens {kind}", empty), finished) for kind in ("prompt", "generation"))
    if not (np.isfinite(prompts).any() and np.isfinite(outputs).any()):
        raise BadInput(f"Prometheus has no lengths of the requests of {key} ({series.TOKENS}): {remedy}")
    sizes = {name.removeprefix("size "): column for name, column in found.items() if name.startswith("size ")}
    if not sizes:
        raise BadInput(f"Prometheus has no replicas of {key} in this time ({series.REPLICAS}): {remedy}")
    most = max(sizes, key=lambda name: float(np.nansum(sizes[name])))
    starts = found.get(series.COLD_START, empty)
    here = Recorded(
        first - step,
        step,
        arrived,
        prompts,
        outputs,
        most,
        sizes[most],
        {name: _hours(found, name, step) for name in _accelerators(found)},
        _good_share(found.get(series.GOOD, empty), found.get(series.JUDGED, empty)),
        float(np.nanmedian(starts)) if np.isfinite(starts).any() else COLD_START_SECONDS,
    )
    if here.known_share < LEAST_KNOWN:
        told = f"Prometheus has {100.0 * here.known_share:.0f} % of this time of {key}"
        raise BadInput(f"{told}, and at least {100.0 * LEAST_KNOWN:.0f} % is needed: give a shorter --since")
    _check_requests(here, key)
    return here


def _check_requests(history: Recorded, key: ServiceKey) -> None:
    requests = float(_filled(history.rate_rps).sum()) * history.step_seconds
    if requests > MOST_REQUESTS:
        minutes = len(history.rate_rps) * history.step_seconds / 60.0 * MOST_REQUESTS / requests
        told = f"{requests:.3g} requests of {key} arrived in this time, and at most {MOST_REQUESTS:.3g} are played"
        raise BadInput(f"{told}: give a --since of {math.floor(minutes)}m or less")


def _columns(rows: Iterable[Series], first: float, step: float, count: int) -> dict[str, Floats]:
    """Sums of what the series have, by what they are of and by step; invalid points are missing."""
    found: dict[str, Floats] = defaultdict(lambda: np.full(count, np.nan))
    for row in rows:
        for column in [found[name] for name in _columns_of(row)]:
            for at, value in row.points:
                place = round((at - first) / step)
                if usable(value) and 0 <= place < count:
                    column[place] = np.nansum([column[place], value])
    return _with_empty(found, count)


def _with_empty(found: dict[str, Floats], count: int) -> dict[str, Floats]:
    """Zero where the service was recorded and an accelerator was not: the operator omits empty phases.

    GPUs stay unknown where replicas were there. Where no replica was there or wanted, none served arrivals either.
    """
    empty = np.full(count, np.nan)
    every = found.get(_ALL, empty)
    seen = np.isfinite(every)
    for name, column in found.items():
        kind, _, accelerator = name.partition(" ")
        if kind == "size":
            column[np.isnan(column) & seen] = 0.0
        elif kind == "gpus":
            column[np.isnan(column) & seen & np.isnan(found.get(f"held {accelerator}", empty))] = 0.0
    if series.ARRIVED in found:
        found[series.ARRIVED][np.isnan(found[series.ARRIVED]) & (every == 0.0)] = 0.0
    return found


def _columns_of(row: Series) -> Iterator[str]:
    """What a series adds to."""
    name, accelerator, state = row.label("__name__"), row.label("holdfast_accelerator"), row.label("state")
    if name == series.TOKENS:
        yield f"tokens {row.label('kind')}"
    elif name == series.REPLICAS:
        yield _ALL
        if state in _SIZES:
            yield f"size {accelerator}"
        if state not in _HOLD_NO_GPU:
            yield f"held {accelerator}"
    elif name == series.GPUS:
        if state not in _HOLD_NO_GPU:
            yield f"gpus {accelerator}"
    elif name in _GAUGES:
        yield name


def _mean(tokens: Floats, finished: Floats) -> Floats:
    """Tokens of a request, where any finished."""
    return np.asarray(np.divide(tokens, finished, out=np.full(len(tokens), np.nan), where=finished > 0.0))


def _good_share(good: Floats, judged: Floats) -> float | None:
    """Of the requests that were judged while both were recorded; None where none was."""
    both = np.isfinite(good + judged)
    total = float(judged[both].sum())
    return float(good[both].sum()) / total if total > 0.0 else None


def _accelerators(found: Iterable[str]) -> list[str]:
    """Whatever had replicas or GPUs."""
    parts = (name.partition(" ") for name in found)
    return sorted({accelerator for kind, _, accelerator in parts if kind in ("size", "gpus")})


def _hours(found: Mapping[str, Floats], accelerator: str, step: float) -> float | None:
    """GPU-hours, with the mean in gaps; None where none are recorded."""
    gpus = found.get(f"gpus {accelerator}")
    if gpus is None or not np.isfinite(gpus).any():
        return None
    return float(np.nanmean(gpus)) * len(gpus) * step / 3600.0


def savings(service: LLMService, spec: ServiceSpec, history: Recorded, plugin: bool, progress: Progress) -> Savings:
    """Play the recorded load with the recorded sizes, under Holdfast and with the best size; BadInput as `recorded`.

    `plugin`: whether its engines have the plugin.
    """
    option = next((each for each in spec.accelerators if each.name == history.accelerator), None)
    if option is None:
        raise BadInput(f"accelerator {history.accelerator} had most of the replicas, and the service lists it no more")
    _check_elsewhere(history)
    sizes = _slots(_filled(history.replicas), history)
    most = max(spec.max_replicas, int(sizes.max()))
    spec = replace(spec, accelerators=(option,), recommend_only=False, pinned_replicas=None)
    began = datetime.datetime.fromtimestamp(history.begins_at, datetime.UTC)
    scenario, declared = recorded(service, replace(spec, max_replicas=most), drawn(history), history.cold_start_seconds)
    scenario = scenario.model_copy(update={"begins": began, "duration": len(history.rate_rps) * history.step_seconds})
    begun = [beginning_with(replace(declared, spec=spec), int(sizes[0]))]
    plan = SizePlan(sizes, 0.0, history.begins_at)
    plan.name, plan.fast_loop = AS_IT_RAN, plugin
    return Savings(
        history,
        simulate(scenario, begun, plan, SEED, partial(progress, AS_IT_RAN)),
        simulate(scenario, begun, Holdfast(plugin), SEED, partial(progress, "holdfast")),
        static_peak(scenario, begun, SEED, partial(progress, "one size")),
    )


def _check_elsewhere(history: Recorded) -> None:
    others = [name for name in history.gpu_hours if name != history.accelerator]
    hours = {name: each for name, each in history.gpu_hours.items() if each is not None}
    if others and len(hours) < len(history.gpu_hours):
        raise BadInput(f"the GPU-hours of {' and '.join(history.gpu_hours)} are not all recorded ({series.GPUS})")
    if sum(hours[name] for name in others) > MOST_ELSEWHERE * sum(hours.values()):
        raise BadInput(
            f"more than {100.0 * MOST_ELSEWHERE:.0f} % of the GPU-hours were on {', '.join(others)}, and all requests "
            f"would be played on {history.accelerator}: give a --since in which {history.accelerator} served alone"
        )


def doubt(found: Savings) -> str:
    """Why no saving may be claimed, in one clause; empty where one may."""
    (service,) = found.holdfast.services
    if not attains(found.holdfast):
        good, objective = attainment(found.holdfast, service), service.spec.slo.objective
        return f"Holdfast misses the objective here, {100.0 * good:.2f} % good of {100.0 * objective:g} %"
    if gpu_hours(found.as_it_ran) <= 0.0:
        return "no GPU was used in this time"
    measured = found.history.attainment
    if measured is None:
        return "no verdicts are recorded to hold the twin against"
    played = attainment(found.as_it_ran, found.as_it_ran.services[0])
    if abs(played - measured) > MOST_APART:
        told = f"with the recorded sizes the twin has {100.0 * played:.2f} % good, and {100.0 * measured:.2f} % were"
        return f"{told}; at most {100.0 * MOST_APART:.0f} points may lie between them"
    return ""


def _slots(column: Floats, history: Recorded) -> Integers:
    """Replicas in each slot of a plan of sizes."""
    return np.repeat(np.rint(column), round(history.step_seconds / SLOT_SECONDS)).astype(np.int64)


def _filled(column: Floats) -> Floats:
    """What is missing lies on straight lines between its neighbours."""
    known = np.flatnonzero(np.isfinite(column))
    return np.asarray(np.interp(np.arange(len(column)), known, column[known]))


def drawn(history: Recorded) -> Workload:
    """Random requests at the recorded rates, with lognormal lengths around the recorded means."""
    draw, step = np.random.default_rng([SEED, 6]), history.step_seconds
    rates = _filled(history.rate_rps)
    expected: Floats = np.concatenate([[0.0], np.cumsum(rates * step)])
    at = renewals(step * np.arange(float(len(expected))), expected, 1.0, draw)
    place = np.minimum((at / step).astype(np.int64), len(rates) - 1)
    sigma = math.sqrt(math.log1p(LENGTHS_CV**2))

    def column(means: Floats) -> Integers:
        shape = np.exp(sigma * draw.standard_normal(len(at)) - 0.5 * sigma**2)
        return np.maximum(1, np.rint(_filled(means)[place] * shape)).astype(np.int64)

    return Workload(at, column(history.prompt_tokens), column(history.output_tokens), np.zeros(len(at), np.int64))
