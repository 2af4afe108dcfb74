"""What the page is told: plain data, null where nothing is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.api.conditions import Condition, ConditionType
from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import status_of
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.decision import Action, BadByCause, BatchView, ConditionValue, Explanation, SloView
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Concurrency
from holdfast.observe.objects.cluster import Invalid, PrefillPool
from holdfast.page import model
from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Track
from holdfast.page.whatif import what_if
from tests.control.parts import decision, llmservice, parts
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
    return model.service(part, made, track.until(NOW), changes, model.Moment(NOW, NOW - 60.0, NOW - 60.0))


def test_batch_work_stands_on_the_page_as_far_as_it_is_known() -> None:
    batch = (BatchView("night", 120.0, 0.5, 28_800.0), BatchView("rest", None, 0.0, None))
    rows = told(scene(slo=replace(SLO, batch=batch)))["batch"]
    assert [each["name"] for each in rows] == ["night", "rest"]
    assert rows[1] == {"name": "rest", "unfinished": None, "done_rps": 0.0, "finish_seconds": None}


def test_what_was_used_adds_up_over_the_known_spans_and_names_the_command() -> None:
    track = np.full((len(COLUMNS), POINTS), np.nan, np.float16)
    track[COLUMNS.index("ready_replicas"), -120:] = 3.0
    assert model._used(ServiceKey("prod", "chat"), track) == {
        "hours": 1.0,
        "ready_replica_hours": 3.0,
        "dollars": None,
        "savings_command": "holdfast savings prod/chat --since 1d --prometheus-url URL",
    }
    track[COLUMNS.index("dollars_per_hour"), -120:] = 9.0
    assert model._used(ServiceKey("prod", "chat"), track)["dollars"] == 9.0
    track[COLUMNS.index("dollars_per_hour"), -1] = np.nan
    assert model._used(ServiceKey("prod", "chat"), track)["dollars"] is None
    track[:] = np.nan
    nothing = model._used(ServiceKey("prod", "chat"), track)
    assert (nothing["hours"], nothing["dollars"]) == (0.0, None)


def test_the_worst_services_come_first() -> None:
    spent = SloView(attainment=0.97, budget_remaining=-2.0)
    scenes = [
        scene("held"),
        scene("burning", slo=SloView(budget_remaining=0.1)),
        scene("missed", met=False, slo=spent),
        scene("new", met=None, slo=SloView()),
    ]
    bad = Invalid(scenes[0][0].spec.key._replace(name="broken"), 1, "spec.model.uri: no such scheme")
    rows = model.fleet(fleet(*scenes), (bad,), {}, model.Moment(NOW, NOW, NOW))["services"]
    assert [row["name"] for row in rows] == ["broken", "missed", "new", "burning", "held"]


def test_a_sparkline_shows_the_worst_of_every_two_minutes() -> None:
    part, made = scene()
    track = Track()
    for step, missed in enumerate((0.01, 0.05, 0.02, 0.0)):
        track.record(NOW + (step - 3) * SPAN_SECONDS, {"missed_share": missed})
    missed = track.until(NOW)[COLUMNS.index("missed_share")]
    row = model.fleet(fleet((part, made)), (), {part.spec.key: missed}, model.Moment(NOW, NOW, NOW))["services"][0]
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


def test_both_pools_of_a_service_are_told_where_prompts_have_one_of_their_own() -> None:
    assert told(scene())["pools"] == []
    pair = parts(llmservice(router={}, replicas=1, prefill={"replicas": 2}), ready={"h100": 1}, sizes={"h100": 1})
    pair = replace(pair, prefill=PrefillPool())
    pools = told((pair, decision(pair, Action.HOLD, h100=1)))["pools"]
    assert [(each["name"], each["ready"], each["desired"]) for each in pools] == [
        ("chat", 1, 1),
        ("chat.prefill", 0, 2),
    ]


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


def test_how_many_requests_are_held_at_once_is_told_and_null_where_no_engine_reports_them() -> None:
    assert told(scene())["concurrency"] == {"p50": 3.0, "p90": 7.0, "p99": 12.5}
    for unknown in (Concurrency(), Concurrency(math.nan, math.inf, None)):
        found = told(scene(slo=replace(SLO, concurrency=unknown)))
        assert found["concurrency"] == {"p50": None, "p90": None, "p99": None}


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
    (row,) = model.fleet(fleet(scene()), (), {}, model.Moment(NOW, NOW, NOW))["services"]
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


MISSING = ConditionValue(ConditionType.READY, False, Reason.IMAGE_PULL_FAILING, 'pulling image "x:1": not found')


def unready(*more: ConditionValue) -> Scene:
    """A service whose image is missing: of its SLO nothing is known, and its size is held."""
    part, made = scene(met=None, slo=SloView())
    held = ConditionValue(ConditionType.SCALING_ACTIVE, False, Reason.METRICS_HOLD, "metrics are missing")
    slo = next(each for each in made.conditions if each.type == ConditionType.SLO_MET)
    return part, replace(made, conditions=(held, slo, MISSING, *more))


def published(scene: Scene, *conditions: Condition) -> Scene:
    """The scene as the watch shows it with a written status."""
    part, made = scene
    status = {"conditions": [each.to_dict() for each in conditions]}
    return replace(part, service=part.service.model_copy(update={"status": status})), made


def row_of(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = model.fleet(fleet(scene), (), {}, model.Moment(NOW, NOW, NOW))["services"][0]
    return found


def test_list_and_page_name_the_reason_that_kubectl_names() -> None:
    row, page = row_of(unready()), told(unready())
    for shown in (row, page):
        assert (shown["state"], shown["reason"], shown["message"]) == ("unready", "ImagePullFailing", MISSING.message)
    part, made = unready()
    whole = status_of(part, made, BatchingStatus(), {}, NOW)
    assert row["reason"] == whole["reason"]
    assert [each["reason"] for each in page["conditions"]][:2] == ["ImagePullFailing", "MetricsHold"]


def test_a_condition_says_for_how_long_and_all_that_is_published_of_it() -> None:
    remedied = Condition(
        "Ready", "False", "ImagePullFailing", "not found; correct engine.image", 1, "2027-01-15T07:41:00Z"
    )
    fast = Condition("FastLoopActive", "False", "PluginOff", "the plugin is off", 1, "2027-01-15T07:00:00Z")
    page = told(published(unready(), remedied, fast))
    assert (page["message"], page["since"]) == (remedied.message, remedied.last_transition_time)
    assert "PluginOff" in [each["reason"] for each in page["conditions"] if each["wrong"]]


def test_a_condition_that_changed_since_it_was_published_is_shown_as_decided() -> None:
    stale = Condition("Ready", "True", "Serving", "2 of 2 replicas are ready", 1, "2027-01-15T07:41:00Z")
    edited = Condition("Ready", "False", "ImagePullFailing", "of the spec before", 0, "2027-01-15T07:41:00Z")
    for before in (stale, edited):
        assert row_of(published(unready(), before))["message"] == MISSING.message


def test_a_status_that_somebody_else_wrote_breaks_no_page() -> None:
    part, made = scene(met=None)
    odd = Condition("SLOMet", "Maybe", "<b>", "x", 1, "yesterday"), Condition("FastLoopActive", "?", "", "", 1, "")
    pending = published((part, replace(made, slo=replace(made.slo, pending=True))), *odd)
    assert row_of(pending)["state"] == "unknown"
    assert told(pending)["since"]


def test_engines_of_somebody_else_without_the_plugin_are_not_wrong() -> None:
    other = ConditionValue(ConditionType.FAST_LOOP_ACTIVE, False, Reason.NOT_OUR_ENGINES, "no plugin")
    assert "NotOurEngines" not in [each["reason"] for each in told(unready(other))["conditions"] if each["wrong"]]


def test_replicas_that_are_not_ready_are_told_in_words() -> None:
    part, made = scene(starting=2)
    failing = Replica("broken", "h100", ReplicaPhase.FAILING, created_at=0.0)
    assert row_of((replace(part, replicas=(*part.replicas, failing)), made))["others"] == {"failing": 1, "starting": 2}
    assert row_of(scene())["others"] == {}


def test_nothing_is_said_of_what_answers() -> None:
    found = model.fleet(fleet(scene()), (), {}, model.Moment(NOW, NOW, NOW))
    assert found["outages"] == told(scene())["outages"] == []


def test_prometheus_and_api_server_that_do_not_answer_are_named_with_what_that_means() -> None:
    gone = ConditionValue(
        ConditionType.METRICS_AVAILABLE, False, Reason.PROMETHEUS_UNREACHABLE, "http://prometheus:9090 did not answer"
    )
    part, made = scene()
    cut_off = part, replace(made, conditions=(*made.conditions, gone))
    moment = model.Moment(NOW, NOW, NOW, "https://10.0.0.1:443 does not answer GET /apis: no answer within 10 s")
    found = model.fleet(fleet(cut_off, scene("other")), (), {}, moment)["outages"]
    assert [each["what"] for each in found] == [
        "The API server does not answer",
        "Prometheus does not answer for 1 of 2 services",
    ]
    assert "10.0.0.1:443" in found[0]["message"]
    assert found[1]["message"] == gone.message
    assert "no size is lowered" in found[1]["effect"]
