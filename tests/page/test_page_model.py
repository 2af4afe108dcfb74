"""What the page is told: plain data, null where nothing is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import Action, BadByCause, Explanation, SloView
from holdfast.observe.cluster import Invalid
from holdfast.page import model
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Track
from holdfast.page.whatif import what_if
from tests.page.scenes import BEHIND, NOW, SLO, Scene, fleet, scene

CAUSES = ("ttft", "tpot", "e2e", "rejected", "error")


def timed(slo: SloView) -> Scene:
    """A service with an end-to-end objective."""
    part, made = scene(slo=slo)
    return replace(part, spec=replace(part.spec, slo=replace(part.spec.slo, e2e_seconds=20.0))), made


def told(scene: Scene, changes: tuple[model.Change, ...] = ()) -> dict[str, Any]:
    part, made = scene
    track = Track()
    track.record(NOW, model.figures(part, made))
    return model.service(part, made, track.until(NOW), changes, NOW, NOW - 60.0)


def test_the_worst_services_come_first() -> None:
    spent = SloView(attainment=0.97, budget_remaining=-2.0)
    scenes = [
        scene("held"),
        scene("burning", slo=SloView(budget_remaining=0.1)),
        scene("missed", met=False, slo=spent),
        scene("new", met=None, slo=SloView()),
    ]
    bad = Invalid(scenes[0][0].spec.key._replace(name="broken"), 1, "spec.model.uri: no such scheme")
    rows = model.fleet(fleet(*scenes), (bad,), {}, NOW, NOW)["services"]
    assert [row["name"] for row in rows] == ["broken", "missed", "new", "burning", "held"]


def test_a_sparkline_shows_the_worst_of_every_two_minutes() -> None:
    part, made = scene()
    track = Track()
    for step, missed in enumerate((0.01, 0.05, 0.02, 0.0)):
        track.record(NOW + (step - 3) * SPAN_SECONDS, {"missed_share": missed})
    missed = track.until(NOW)[COLUMNS.index("missed_share")]
    row = model.fleet(fleet((part, made)), (), {part.spec.key: missed}, NOW, NOW)["services"][0]
    assert len(row["spark"]) == POINTS // model.SPARK_SPANS
    assert row["spark"][-2:] == [None, pytest.approx(95.0, abs=0.01)]


def test_capacity_counts_ready_replicas_only() -> None:
    part, made = scene(starting=2)
    assert model.figures(part, made)["capacity_rps"] == pytest.approx(4 * 8.9)


def test_replicas_that_drain_are_told_apart_from_those_that_start() -> None:
    part, made = scene(starting=2)
    ready = [replica for replica in part.replicas if replica.phase is ReplicaPhase.READY]
    drained = replace(ready[0], name="gone", phase=ReplicaPhase.DRAINING)
    told = model.figures(replace(part, replicas=(*part.replicas, drained)), made)
    assert [told[f"{phase}_replicas"] for phase in ("ready", "starting", "draining")] == [len(ready), 2, 1]


def test_capacity_of_an_accelerator_nobody_knows_is_not_known() -> None:
    part, made = scene()
    odd = replace(part, replicas=tuple(replace(replica, accelerator="tpu") for replica in part.replicas))
    assert model.figures(odd, made)["capacity_rps"] is None


def test_a_service_is_told_with_its_time_axis_changes_and_reasons() -> None:
    change = model.Change(NOW - 30.0, "ScaleUp", "ForecastAboveCapacity", "29 req/s expected", 4)
    found = told(scene(), (change,))
    assert found["series"]["arrival_rps"][-2:] == [None, 26.0]
    assert len(found["series"]["times"]) == POINTS
    assert found["series"]["times"][-1] <= NOW < found["series"]["times"][-1] + SPAN_SECONDS
    assert found["changes"] == [change._asdict()]
    assert found["decision"]["inputs"]["forecastRps"] == 29.0
    assert found["decision"]["guards"] == ["DownHold: fewer replicas must suffice for 75 s"]
    assert found["slo"]["ttft_seconds"] == 1.0


def test_a_service_of_which_nothing_is_known_has_no_figure_that_is_zero() -> None:
    part, made = scene(slo=SloView(), explanation=Explanation(), met=None)
    found = told((part, replace(made, capacity=None)))
    unknown = {name for name in COLUMNS if not name.endswith("_replicas")} - {"dollars_per_hour"}
    assert {found["series"][name][-1] for name in unknown} == {None}
    assert found["what_if"] == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_figures_that_are_no_numbers_are_null(value: float) -> None:
    slo = SloView(attainment=value, budget_remaining=value, good_rps=value, arrival_rps=value)
    found = told(scene(slo=slo, explanation=replace(BEHIND, forecast_rps=value)))
    assert found["arrival_rps"] is None
    json.dumps(found, allow_nan=False)


def test_end_to_end_percentiles_and_their_objective_are_told() -> None:
    found = told(timed(SLO))
    assert found["slo"]["e2e_seconds"] == 20.0
    shown = [found["series"][f"e2e_p{percent}_seconds"][-1] for percent in (50, 95, 99)]
    assert shown == pytest.approx([4.2, 9.1, 14.0], rel=1e-3)


def test_bad_requests_are_told_by_cause_and_what_no_objective_names_is_not_zero() -> None:
    found = told(scene())
    shown = {cause: found["series"][f"bad_{cause}_rps"][-1] for cause in CAUSES}
    assert shown.pop("e2e") is None
    assert shown == pytest.approx({"ttft": 0.3, "tpot": 0.1, "rejected": 0.0, "error": 0.1}, rel=1e-3)
    assert found["bad_source"] == "bounds"


@pytest.mark.parametrize(("bad", "source"), [(None, None), (BadByCause(0.0, 0.0, 0.0, 0.0, 0.0, exact=True), "exact")])
def test_where_causes_come_from_is_told_also_that_they_are_not_known(bad: BadByCause | None, source: str) -> None:
    found = told(timed(replace(SLO, bad=bad)))
    assert found["bad_source"] == source
    assert {found["series"][f"bad_{cause}_rps"][-1] for cause in CAUSES} == {0.0 if bad else None}


def test_the_list_of_all_services_leaves_out_what_stands_on_the_page_of_one() -> None:
    (row,) = model.fleet(fleet(scene()), (), {}, NOW, NOW)["services"]
    assert {"arrival_rps", "good_rps", "budget_remaining", "ready_replicas", "dollars_per_hour"} <= row.keys()
    assert not [name for name in row if name.startswith(("ttft_", "tpot_", "e2e_", "bad_"))]


def test_other_sizes_are_told_at_the_same_forecast() -> None:
    part, made = scene(action=Action.HOLD)
    sizes = what_if(part.spec, made)
    assert [size["replicas"] for size in sizes] == [3, 4, 5]
    assert [size["decided"] for size in sizes] == [False, True, False]
    assert [size["wanted"] for size in sizes] == [False, False, True]
    assert [size["load_share"] for size in sizes] == [pytest.approx(29.0 / (n * 8.9)) for n in (3, 4, 5)]
    assert [size["dollars_per_hour"] for size in sizes] == [9.0, 12.0, 15.0]


def test_no_size_is_negative_and_none_carries_nothing() -> None:
    part, made = scene()
    none = replace(made, verdict=replace(made.verdict, targets=()))
    sizes = what_if(part.spec, none)
    assert [(size["replicas"], size["load_share"]) for size in sizes][:2] == [(0, None), (1, pytest.approx(29.0 / 8.9))]
