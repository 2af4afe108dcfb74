"""Range queries -> History. It is read once after a start, so that no database is needed.

Resolution falls with age. This bounds the points per service (400 over 30 days) and keeps the last hour detailed.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import AcceleratorTraffic, ClassTraffic, HeldSample, History, RateSample, abandoned
from holdfast.observe.series import queries
from holdfast.observe.series.histograms import is_at_most
from holdfast.observe.series.samples import Series, service_key, usable
from holdfast.observe.signals.traffic import FINISHED_REASONS, TrafficRequest

HOUR = 3600.0
_STEPS = ((900.0, 30.0), (HOUR, 60.0), (24 * HOUR, 900.0), (30 * 24 * HOUR, 3 * HOUR))
"""(Reaches back to, one point every): bursts are learned from the last quarter of an hour."""

_OF_ACTIVATORS = frozenset({queries.HELD, queries.HELD_BUCKET})
_WAITED, _TURNED_AWAY = ("forwarded", "gone"), "turned_away"

Timed = TypeVar("Timed", RateSample, HeldSample)

_EXACT = frozenset({queries.COVERED, queries.ARRIVED, queries.GOOD, queries.BAD})


@dataclass(frozen=True, slots=True)
class HistoryLevel:
    """Points every `step_seconds` whose intervals lie between two ages, in seconds before now."""

    step_seconds: float
    oldest_age_seconds: float
    newest_age_seconds: float

    def bounds(self, now: float) -> tuple[float, float]:
        """First and last evaluation time: a point covers the step that ends at it."""
        return now - self.oldest_age_seconds + self.step_seconds, now - self.newest_age_seconds


def levels(window_seconds: float, scrape_seconds: float) -> tuple[HistoryLevel, ...]:
    """Return the levels that cover the window, newest first; they meet without overlapping."""
    found: list[HistoryLevel] = []
    covered = 0.0
    for reach, step in _STEPS:
        step = max(step, 2 * scrape_seconds)
        steps = int((min(reach, window_seconds) - covered) // step)
        if steps > 0:
            found.append(HistoryLevel(step, covered + steps * step, covered))
            covered += steps * step
    return tuple(found)


def read(
    rows: Sequence[Series], level: HistoryLevel, requests: Sequence[TrafficRequest]
) -> dict[ServiceKey, tuple[RateSample, ...]]:
    """Return the samples of one level, oldest first; NaN and infinite points are omitted."""
    wanted = {request.key: request.slo for request in requests}
    by_service: dict[ServiceKey, list[Series]] = defaultdict(list)
    for row in rows:
        key = service_key(row)
        if key in wanted and row.label("metric") not in _OF_ACTIVATORS:
            by_service[key].append(row)
    return {key: _samples(series, level, wanted[key]) for key, series in by_service.items()}


def read_held(rows: Sequence[Series], requests: Sequence[TrafficRequest]) -> dict[ServiceKey, tuple[HeldSample, ...]]:
    """Return the counts of activators in one level, oldest first; services without such series are omitted.

    A request whose client gave up is lost if it had waited too long; a rejected request is always lost.
    """
    limits = {request.key: request.slo.ttft_seconds for request in requests}
    counts: dict[ServiceKey, dict[float, dict[str, float]]] = {}
    for row in rows:
        key = service_key(row)
        if key not in limits or row.label("metric") not in _OF_ACTIVATORS:
            continue
        found, name = counts.setdefault(key, defaultdict(dict)), _held_column(row, limits[key])
        for at, value in row.points if name else ():
            if usable(value):
                found[at][name] = max(found[at].get(name, 0.0), value)
    return {key: tuple(_held(at, found[at]) for at in sorted(found)) for key, found in counts.items()}


def oldest(rows: Iterable[Series], level: HistoryLevel) -> float:
    """Return when the oldest step of any series begins, infinity if there is none; NaN points are ignored."""
    ends = (next((at for at, value in row.points if usable(value)), math.inf) for row in rows)
    return min(ends, default=math.inf) - level.step_seconds


def joined(
    parts: Iterable[Mapping[ServiceKey, tuple[RateSample, ...]]],
    held: Iterable[Mapping[ServiceKey, tuple[HeldSample, ...]]] = (),
    keys: Iterable[ServiceKey] = (),
    since: float = math.inf,
    whole: bool = True,
) -> dict[ServiceKey, History]:
    """Join levels into one History per service, oldest first; `keys` have one even if Prometheus has no data."""
    samples, held_by_key = _by_time(parts), _by_time(held)
    reach = since if math.isfinite(since) else None
    return {
        key: History(samples.get(key, ()), held_by_key.get(key), reach, whole)
        for key in samples.keys() | held_by_key.keys() | set(keys)
    }


def _by_time(parts: Iterable[Mapping[ServiceKey, tuple[Timed, ...]]]) -> dict[ServiceKey, tuple[Timed, ...]]:
    samples: dict[ServiceKey, list[Timed]] = defaultdict(list)
    for part in parts:
        for key, some in part.items():
            samples[key].extend(some)
    return {key: tuple(sorted(some, key=lambda sample: sample.at)) for key, some in samples.items()}


def _held_column(row: Series, ttft_seconds: float) -> str:
    """Name what a series of an activator counts; empty if it is irrelevant for lateness."""
    outcome, le = row.label("outcome"), row.label("le")
    if row.label("metric") == queries.HELD:
        return outcome if outcome == _TURNED_AWAY else ""
    try:
        edge = float(le)
    except ValueError:
        return ""
    if edge == math.inf:
        return outcome
    return f"{outcome} within" if is_at_most(edge, ttft_seconds) else ""


def _held(at: float, counts: Mapping[str, float]) -> HeldSample:
    late, given_up = (max(0.0, counts.get(name, 0.0) - counts.get(f"{name} within", 0.0)) for name in _WAITED)
    return HeldSample(at, late, given_up + counts.get(_TURNED_AWAY, 0.0))


def good_lower_bound(finished: float, within: Sequence[float]) -> float:
    """Frechet: at least this many of `finished` requests met every bound, if `within[i]` of them met bound i."""
    missed = sum(max(0.0, finished - count) for count in within)
    return max(0.0, finished - missed)


def _samples(series: Sequence[Series], level: HistoryLevel, slo: Slo) -> tuple[RateSample, ...]:
    counts: dict[float, dict[str, float]] = defaultdict(dict)
    for row in series:
        column = _column(row, slo)
        together = max if row.label("le") else operator.add  # of the edges within the objective, the largest is taken
        for at, value in row.points if column else ():
            if usable(value):
                counts[at][column] = together(counts[at].get(column, 0.0), value)
                if name := row.label("class"):
                    counts[at][f"{column} {name}"] = counts[at].get(f"{column} {name}", 0.0) + value
        for at, native in row.histograms if column else ():
            if native.finite:
                started, within = f"{column}_count", native.within(_limits(slo).get(column) or 0.0)
                counts[at][column] = counts[at].get(column, 0.0) + within
                counts[at][started] = counts[at].get(started, 0.0) + native.count
    return tuple(_judged(counts, level.step_seconds, slo))


def _judged(counts: Mapping[float, Mapping[str, float]], step_seconds: float, slo: Slo) -> Iterator[RateSample]:
    begun, before = None, -math.inf
    for at in sorted(counts):
        begun = begun if at - before <= 1.5 * step_seconds else None
        late, begun = abandoned(_traffic(counts[at]), slo.ttft_seconds, step_seconds, 1.0, begun)
        yield _sample(at, counts[at], step_seconds, slo, late)
        before = at


def _traffic(counts: Mapping[str, float]) -> AcceleratorTraffic:
    running, waiting = (counts.get(gauge, 0.0) for gauge in queries.IN_FLIGHT)
    started = counts.get(f"{queries.TTFT}_count", math.inf)  # where it is missing, no abort is proven to lack a token
    finished, aborted = counts.get("finished", 0.0), counts.get("aborted", 0.0)
    started = min(started, finished + aborted)
    return AcceleratorTraffic(finished=finished, aborted=aborted, ttft_count=started, running=running, waiting=waiting)


def _column(row: Series, slo: Slo) -> str:
    """Name what a series counts; empty if it is an edge above this service's objective."""
    name = row.label("metric").removesuffix("_bucket")
    if name == queries.SUCCESS:
        return FINISHED_REASONS.get(row.label("finished_reason"), "finished")
    name = queries.TPOT if name == queries.TPOT_BEFORE_0_11 else name
    limit = _limits(slo).get(name, math.inf)
    try:
        return name if limit is not None and is_at_most(float(row.label("le") or 0.0), limit) else ""
    except ValueError:
        return ""


def _limits(slo: Slo) -> dict[str, float | None]:
    return {queries.TTFT: slo.ttft_seconds, queries.TPOT: slo.tpot_seconds, queries.E2E: slo.e2e_seconds}


def _sample(at: float, counts: Mapping[str, float], step_seconds: float, slo: Slo, late_aborts: float) -> RateSample:
    """Counts of the plugins if they were active in every engine; else bounds, as for the newest interval.

    No request is judged where Prometheus had no buckets.
    """
    if counts.keys() >= _EXACT:
        arrived, good, bad = (counts[metric] for metric in (queries.ARRIVED, queries.GOOD, queries.BAD))
        classes = tuple(_of_class(counts, each.name) for each in slo.classes)
        return RateSample(at, step_seconds, arrived, good, bad, classes)
    finished, failed = counts.get("finished", 0.0), counts.get("failed", 0.0)
    rejected = counts.get(queries.REJECTIONS, 0.0)
    bounds = (queries.TTFT, queries.TPOT) + ((queries.E2E,) if slo.e2e_seconds is not None else ())
    arrivals = finished + failed + rejected + counts.get("aborted", 0.0)
    if finished and not counts.keys() >= set(bounds):
        return RateSample(at, step_seconds, arrivals, 0.0, 0.0)
    good = good_lower_bound(finished, [counts.get(name, 0.0) for name in bounds])
    return RateSample(at, step_seconds, arrivals, good, finished - good + failed + rejected + late_aborts)


def _of_class(counts: Mapping[str, float], name: str) -> ClassTraffic:
    return ClassTraffic(name, *(counts.get(f"{metric} {name}", 0.0) for metric in (queries.GOOD, queries.BAD)))
