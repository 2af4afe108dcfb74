"""Figures from before this process led, read once from the series that the recording rules keep."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from holdfast.domain.service import ServiceKey
from holdfast.monitoring import series
from holdfast.observe.series import queries
from holdfast.observe.series.promql import any_of
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import QueryError, Series, service_key
from holdfast.observe.signals.prometheus import MetricsClient
from holdfast.page.board import Board
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, span_of

_LOG = logging.getLogger(__name__)
PORTION = 16
"""Services of one query: 30 series of 240 points each make 115,000 points, some 10 MB while they are read."""
_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 15.0, 300.0

_PLAIN = {
    series.ARRIVED: "arrival_rps",
    series.GOOD: "good_rps",
    series.FORECAST: "forecast_rps",
    series.ATTAINMENT: "attainment",
    series.BUDGET_LEFT: "budget_remaining",
    series.COST: "dollars_per_hour",
}
_LABELLED = {
    series.BAD_BY_CAUSE: ("cause", "bad_{}_rps"),
    **{name: ("latency", f"{{}}_p{100 * quantile:.0f}_seconds") for quantile, name in series.QUANTILES},
}
_PHASES = {"desired": "desired", "ready": "ready", "draining": "draining"}  # all others are starting

Figures = Mapping[str, float | None]


def query(keys: Iterable[ServiceKey]) -> Query:
    """Return the range query for all figures of these services; what was scraped has the label `instance`."""
    names = any_of((*_PLAIN, *_LABELLED, series.REPLICAS, series.CAPACITY))
    these = any_of(key.label for key in keys)
    promql = f'{{__name__=~"{names}", instance="", latency!="itl", holdfast_service=~"{these}"}}'
    return Query("page_history", lambda _: promql)  # recorded of all engines: none is selected


def figures_of(rows: Iterable[Series]) -> dict[ServiceKey, dict[float, Figures]]:
    """Return figures by service and time, by the names of `COLUMNS`; what no series tells is missing."""
    found: dict[ServiceKey, dict[float, dict[str, float]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(float))
    )
    for row in rows:
        points = found[service_key(row)]
        for column in _columns(row):
            for at, value in row.points:
                points[at][column] += value
    return {key: {at: _completed(seen) for at, seen in points.items()} for key, points in found.items()}


def _columns(row: Series) -> Iterator[str]:
    name, accelerator, state = row.label("__name__"), row.label("holdfast_accelerator"), row.label("state")
    if name in _PLAIN:
        yield _PLAIN[name]
    elif name in _LABELLED:
        label, column = _LABELLED[name]
        value = row.label(label)
        yield column.format("error" if value == queries.KILLED else value)
    elif name == series.CAPACITY:
        yield f"rate {accelerator}"
    elif name == series.REPLICAS:
        yield f"{_PHASES.get(state, 'starting')}_replicas"
        if state == "ready":
            yield f"ready {accelerator}"


def _completed(seen: Mapping[str, float]) -> Figures:
    """Empty phases have no series; capacity is known where that of every Ready replica is."""
    found: dict[str, float | None] = {name: seen.get(name) for name in COLUMNS}
    if "attainment" in seen:
        found["missed_share"] = 1.0 - seen["attainment"]
    if "desired_replicas" in seen:
        found |= {name: seen.get(name, 0.0) for name in COLUMNS if name.endswith("_replicas")}
    ready = {name.removeprefix("ready "): count for name, count in seen.items() if name.startswith("ready ")}
    rates = {name: seen.get(f"rate {name}") for name in ready}
    if ready and None not in rates.values():
        found["capacity_rps"] = sum(count * (rates[name] or 0.0) for name, count in ready.items())
    return found


class Recall:
    """Reads the history of all services that the first tick showed, in the background; then it is done."""

    def __init__(self, client: MetricsClient, board: Board, wall: Callable[[], float]) -> None:
        self._client = client
        self._board = board
        self._wall = wall

    async def run(self) -> None:
        """Read one portion after the other; one that fails is asked for again later, until it would be too old."""
        try:
            await self._board.shown.wait()
            await self._read_all(sorted(self._board.keys))
        finally:
            self._client.close()

    async def _read_all(self, keys: Sequence[ServiceKey]) -> None:
        due = deque(keys[first : first + PORTION] for first in range(0, len(keys), PORTION))
        pause = _PAUSE_SECONDS
        while due and self._wall() - self._board.leads_since < POINTS * SPAN_SECONDS:
            if await self._read(due[0]):
                due.popleft()
                pause = _PAUSE_SECONDS
            else:
                due.rotate(-1)
                await asyncio.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE_SECONDS)

    async def _read(self, keys: Sequence[ServiceKey]) -> bool:
        """Whether Prometheus answered; a bug of ours must not end the operator."""
        last = (span_of(self._board.leads_since) - 1) * SPAN_SECONDS
        first = last - (POINTS - 1) * SPAN_SECONDS
        try:
            rows = await asyncio.to_thread(self._client.range, query(keys), first, last, SPAN_SECONDS, _TIMEOUT_SECONDS)
            found = await asyncio.to_thread(figures_of, rows)
        except QueryError as error:
            _LOG.warning(
                "reading the status page's history of %d services failed; it is repeated: %s", len(keys), error
            )
            return False
        except Exception:
            _LOG.exception("reading the status page's history of %d services failed; it stays empty", len(keys))
            return True
        for key in keys:
            for at, figures in found.get(key, {}).items():
                self._board.recall(key, at, figures)
        return True
