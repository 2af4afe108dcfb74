"""Scenarios with floors at certain hours: the clock they begin at, and who keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.twin.policies import Holdfast
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import play, ready, scenario_file, small_scenario

OFFICE = {"name": "office", "timezone": "Europe/Berlin", "start": "08:02", "end": "18:00", "min": 3}


def scheduled(**more: object) -> dict[str, Any]:
    """Three minutes of a service whose floor of three begins after two of them, by the clock in Berlin."""
    content = small_scenario() | {"begins": "2026-06-15T06:00:00Z"} | more
    content["services"][0]["spec"]["scaling"]["schedules"] = [OFFICE]
    return content


def test_a_floor_is_kept_from_its_hour_on_by_the_scenarios_clock(tmp_path: Path) -> None:
    finished = play(scheduled(), tmp_path, Holdfast(fast_loop=False))
    assert ready(finished, 125.0) == 3
    assert any("schedule office requires at least 3" in change.message for change in finished.changes)


def test_at_another_hour_there_is_no_floor(tmp_path: Path) -> None:
    finished = play(scheduled(begins="2026-06-15T17:00:00Z"), tmp_path, Holdfast(fast_loop=False))
    assert not any("schedule" in change.message for change in finished.changes)


@pytest.mark.parametrize("policy", ["static:3", "hpa", "oracle", "static-peak"])
def test_a_policy_that_keeps_no_floors_is_refused(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario_file(tmp_path, scheduled())
    assert main(["simulate", str(path), "--policy", policy]) == 2
    assert "keeps no scaling.schedules" in capsys.readouterr().err


def test_all_leaves_out_who_keeps_no_floors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario_file(tmp_path, scheduled())
    assert main(["simulate", str(path), "--policy", "all", "--seeds", "1", "--json", "-"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["policy"] for run in runs] == ["holdfast", "holdfast-slow", "holdfast-apart"]


@pytest.mark.parametrize("begins", ["2026-06-15", "2026-06-15T06:00:00", "noon", -1])
def test_a_beginning_without_time_or_zone_is_refused(
    begins: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario_file(tmp_path, scheduled(begins=begins))
    assert main(["simulate", str(path), "--policy", "holdfast-slow"]) == 2
    assert "begins" in capsys.readouterr().err


def test_times_need_no_quotes_as_with_kubectl(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, scheduled())
    assert "end: '18:00'" in path.read_text()
    path.write_text(path.read_text().replace("'", ""))
    scenario = Scenario.read(path)
    assert scenario.begins.isoformat() == "2026-06-15T06:00:00+00:00"
    assert scenario.services[0].spec is not None
    assert scenario.services[0].spec.scaling.schedules[0].end == "18:00"


def test_without_a_beginning_it_is_a_friday_morning(tmp_path: Path) -> None:
    scenario = Scenario.read(scenario_file(tmp_path, small_scenario()))
    assert scenario.begins.isoformat() == "2027-01-15T08:00:00+00:00"


def test_a_floor_in_no_time_zone_is_told_as_one_that_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = scheduled()
    floors = [{**OFFICE, "timezone": "Europe/Atlantis"}, {**OFFICE, "name": "night", "timezone": "Mars/Olympus"}]
    content["services"][0]["spec"]["scaling"]["schedules"] = floors
    assert main(["simulate", str(scenario_file(tmp_path, content)), "--policy", "holdfast-slow"]) == 0
    told = "schedules[office].timezone: Europe/Atlantis, scaling.schedules[night].timezone: Mars/Olympus are unknown"
    assert told in capsys.readouterr().err
