"""After a restart the page shows what Prometheus kept of the time before; without it the history starts empty."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.domain.service import ServiceKey
from holdfast.monitoring import series
from holdfast.monitoring.rules import recordings
from holdfast.observe.series.samples import Series
from holdfast.page import recall
from holdfast.page.board import Board
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS
from holdfast.page.recall import Recall, figures_of
from tests.fakes import ManualClock, ScriptedRanges
from tests.page.scenes import NOW, board, scene

KEY = scene()[0].spec.key
BEFORE = NOW - 10 * SPAN_SECONDS


def row(name: str, value: float, at: float = BEFORE, key: ServiceKey = KEY, **labels: str) -> Series:
    named = {"__name__": name, "namespace": key.namespace, "holdfast_service": key.label}
    return Series({**named, **labels}, ((at, value),))


def replicas(count: float, accelerator: str, state: str) -> Series:
    return row(series.REPLICAS, count, holdfast_accelerator=accelerator, state=state)


WHOLE = [
    row(series.ARRIVED, 20.0),
    row(series.GOOD, 19.0),
    row(series.FORECAST, 24.0),
    row(series.ATTAINMENT, 0.995),
    row(series.BUDGET_LEFT, -0.5),
    row(series.COST, 9.0),
    row(series.BAD_BY_CAUSE, 0.7, cause="ttft"),
    row(series.BAD_BY_CAUSE, 0.3, cause="rejected"),
    row(series.BAD_BY_CAUSE, 0.2, cause="error"),
    row(series.BAD_BY_CAUSE, 0.1, cause="killed"),
    *(row(name, quantile, latency="ttft") for quantile, name in series.QUANTILES),
    replicas(3.0, "h100", "desired"),
    replicas(2.0, "h100", "ready"),
    replicas(1.0, "h100", "failing"),
    row(series.CAPACITY, 8.0, holdfast_accelerator="h100", bound_by="TPOT"),
]


def told(shown: Board, column: str) -> list[float | None]:
    answer = shown.service(KEY)
    assert answer
    found: list[float | None] = json.loads(answer.body)["series"][column]
    return found


def reading(client: ScriptedRanges, shown: Board, clock: ManualClock | None = None) -> Recall:
    return Recall(client, shown, clock or ManualClock(NOW))


def test_every_recorded_figure_is_recalled_under_the_name_of_its_column() -> None:
    found = figures_of(WHOLE)[KEY][BEFORE]
    expected = {
        "arrival_rps": 20.0, "good_rps": 19.0, "forecast_rps": 24.0, "capacity_rps": 16.0,
        "missed_share": pytest.approx(0.005), "budget_remaining": -0.5, "dollars_per_hour": 9.0,
        "bad_ttft_rps": 0.7, "bad_rejected_rps": 0.3, "bad_error_rps": pytest.approx(0.3),
        "ttft_p50_seconds": 0.5, "ttft_p95_seconds": 0.95, "ttft_p99_seconds": 0.99, "desired_replicas": 3.0,
        "ready_replicas": 2.0, "starting_replicas": 1.0, "draining_replicas": 0.0,
    }  # fmt: skip
    assert {name: value for name, value in found.items() if value is not None} == expected
    assert set(found) == set(COLUMNS)


def test_what_no_series_tells_is_not_zero() -> None:
    assert {value for name, value in figures_of([row(series.ARRIVED, 2.0)])[KEY][BEFORE].items() if value} == {2.0}
    unknown = figures_of([replicas(1.0, "tpu", "ready"), replicas(1.0, "tpu", "desired")])[KEY][BEFORE]
    assert unknown["capacity_rps"] is None, "nobody knows what a replica of it carries"
    assert unknown["arrival_rps"] is None


def test_only_series_that_the_rules_record_are_read() -> None:
    asked = recall.query([KEY]).promql
    recorded = {each.record for each in recordings()}
    names = asked.split('__name__=~"')[1].split('"')[0].split("|")
    assert set(names) <= recorded
    assert 'instance=""' in asked, "what a tenant exports under such a name has an instance"
    assert 'holdfast_service=~"chat"' in asked


async def test_a_restart_leaves_no_hole() -> None:
    shown, client = board(scene()), ScriptedRanges([WHOLE])
    await reading(client, shown).run()
    assert told(shown, "arrival_rps")[-11] == 20.0
    assert told(shown, "arrival_rps")[-1] == 26.0, "what this process saw itself stays"
    (first, last, step) = client.asked[0][1:]
    assert (step, last - first) == (SPAN_SECONDS, (POINTS - 1) * SPAN_SECONDS)
    assert NOW - 2 * SPAN_SECONDS < last < NOW


async def test_nothing_is_asked_before_the_first_tick() -> None:
    shown, client = Board(), ScriptedRanges([WHOLE])
    task = asyncio.create_task(reading(client, shown).run())
    await asyncio.sleep(0)
    assert not client.asked
    task.cancel()


async def test_what_others_export_is_not_shown() -> None:
    shown = board(scene())
    foreign = row(series.ARRIVED, 99.0, key=ServiceKey("elsewhere", KEY.name))
    await reading(ScriptedRanges([[foreign]]), shown).run()
    assert 99.0 not in told(shown, "arrival_rps")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, -1e300])
async def test_absurd_values_are_gaps_or_bounded(value: float) -> None:
    shown = board(scene())
    await reading(ScriptedRanges([[row(series.ARRIVED, value)]]), shown).run()
    json.dumps(told(shown, "arrival_rps"), allow_nan=False)


async def test_many_services_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "PORTION", 2)
    client = ScriptedRanges([[], [], []])
    await reading(client, board(*(scene(f"chat-{number}") for number in range(5)))).run()
    assert [asked[0].promql.count("chat-") for asked in client.asked] == [2, 2, 1]


async def test_a_read_that_fails_is_repeated_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "PORTION", 1)
    monkeypatch.setattr(recall, "_PAUSE_SECONDS", 0.0)
    client = ScriptedRanges(["timed out", [], WHOLE])
    shown = board(scene(), scene("other"))
    await reading(client, shown).run()
    assert ["other" in asked[0].promql for asked in client.asked] == [False, True, False]
    assert told(shown, "arrival_rps")[-11] == 20.0


async def test_it_gives_up_when_the_answer_would_be_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_PAUSE_SECONDS", 0.0)
    clock: Any = ManualClock(NOW)
    client = ScriptedRanges(["no", "no", "no"], after=lambda: clock.advance(3000.0))
    await reading(client, board(scene()), clock).run()
    assert len(client.asked) == 3


async def test_an_answer_that_nobody_expected_leaves_the_operator_running() -> None:
    shown, client = board(scene()), ScriptedRanges([ZeroDivisionError()])
    await reading(client, shown).run()
    assert told(shown, "arrival_rps")[-11] is None
