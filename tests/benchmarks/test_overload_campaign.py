"""Runs are made once, again where the machine was unsteady, and an interrupted campaign goes on."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest

from benchmarks.engine_overload.campaign import (
    Campaign,
    MachineChangedError,
    NotMeasuredError,
    Patience,
    Results,
    UnsteadyError,
    recorded,
)
from benchmarks.engine_overload.cells import CELLS, FixedLimits, Variant, Window
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import Attempt, Circumstances, Journal, OtherCampaignError, RunKey
from benchmarks.engine_overload.plan import Extent, plan
from benchmarks.engine_overload.speed import Speed
from benchmarks.engine_overload.windows import Seconds
from tests.fakes import FakeMeter, FakeOverloadRig

WINDOW = Window(1.0, 30.0, 1.0)
KEY = RunKey(0, Variant.QUEUE, 5.0, WINDOW, 2)
STEADY = (1.0,) * 4
FIGURES = Figures(100, 90, 0, 3.0, 0.4, 0.04, 2.0, 40.0, 22.0, 0.01)
ONE_CELL = {0: CELLS[0]}


def attempt(key: RunKey, figures: Figures = FIGURES, unsteady: str = "") -> Attempt:
    then = Circumstances("2026-01-01T00:00:00+0000", "abc", 0.5)
    return Attempt(key, figures, Speed(1.0, (1.0, 1.1, 1.2), 1.0, 0.01), unsteady, 30.0, then)


def campaign_of(
    journal: Journal,
    rig: FakeOverloadRig,
    meter: FakeMeter | None = None,
    deadline: float = math.inf,
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> tuple[Campaign, Results]:
    campaign = Campaign(journal, rig, meter or FakeMeter(), patience, deadline, lambda line: None)
    return campaign, Results(ONE_CELL, Seconds(), campaign.run)


def search_keys(count: int) -> list[RunKey]:
    return [RunKey(0, Variant.SEARCH, 5.0, WINDOW, 1000 + number) for number in range(count)]


def test_an_unsteady_run_is_written_down_and_made_again(tmp_path: Path) -> None:
    rig, journal = FakeOverloadRig(), Journal(tmp_path, {})
    campaign, _ = campaign_of(journal, rig, FakeMeter(*STEADY, 1.4, 1.0))
    for key in search_keys(4):
        campaign.run(key)
    found = campaign.run(KEY)
    assert (len(rig.asked), found.speed.during_ms) == (6, 1.0)
    assert [each.unsteady for each in journal.of(KEY)] == ["1.40 of the reference's time", ""]
    assert journal.get(KEY) == found


def test_a_run_for_which_the_machine_is_never_steady_is_left_out_after_a_few_attempts(tmp_path: Path) -> None:
    rig, journal = FakeOverloadRig(), Journal(tmp_path, {})
    campaign, _ = campaign_of(journal, rig, FakeMeter(*STEADY, 1.4, 1.5, 0.7, 1.0))
    for key in search_keys(4):
        campaign.run(key)
    with pytest.raises(UnsteadyError):
        campaign.run(KEY)
    assert len(journal.of(KEY)) == Patience.attempts
    with pytest.raises(UnsteadyError):
        recorded(journal)(KEY)
    assert recorded(journal, first=True)(KEY).speed.during_ms == pytest.approx(1.4)


def test_goodput_does_not_decide_what_is_thrown_away(tmp_path: Path) -> None:
    """Two plugins, one of which is good for nothing, on the same machine: the same runs are thrown away."""
    speeds = [*STEADY, *(1.0 + 0.04 * (number % 9) for number in range(400)), 1.0]
    thrown = []
    for name, plugin in (("good", lambda rate: rate), ("bad", lambda rate: 0.0)):
        rig, journal = FakeOverloadRig(plugin), Journal(tmp_path / name, {})
        campaign, results = campaign_of(journal, rig, FakeMeter(*speeds))
        assert campaign.run_all(results, plan(ONE_CELL, Extent()))
        thrown.append([bool(each.unsteady) for each in journal.attempts])
    assert thrown[0] == thrown[1]
    assert any(thrown[0])


def test_a_machine_that_has_changed_for_good_ends_the_campaign(tmp_path: Path) -> None:
    rig = FakeOverloadRig()
    campaign, results = campaign_of(Journal(tmp_path, {}), rig, FakeMeter(*[1.0] * 40, 2.0))
    with pytest.raises(MachineChangedError, match=r"2\.00 of the reference's time"):
        campaign.run_all(results, plan(ONE_CELL, Extent()))
    assert len(rig.asked) == 40 + Patience.in_a_row


def test_a_run_waits_for_the_speed_of_the_search_alone(tmp_path: Path) -> None:
    meter = FakeMeter(*STEADY, 1.1, 1.1, 1.1, 1.1)
    journal = Journal(tmp_path, {})
    campaign, _ = campaign_of(journal, FakeOverloadRig(), meter)
    for key in (*search_keys(4), KEY, RunKey(1, Variant.QUEUE, 5.0, WINDOW, 2)):
        campaign.run(key)
    assert [each.during_ms if each else None for each in meter.waited_for] == [None] * 4 + [1.0, None]


def test_an_interrupted_campaign_goes_on_without_repeating_a_run(tmp_path: Path) -> None:
    whole = FakeOverloadRig()
    campaign, results = campaign_of(Journal(tmp_path / "whole", {}), whole)
    assert campaign.run_all(results, plan(ONE_CELL, Extent()))

    class Interrupted(Exception):
        pass

    class Interrupting(FakeOverloadRig):
        def run(self, key: RunKey, number: int) -> Figures:
            if len(self.asked) == before + 17:
                raise Interrupted
            return super().run(key, number)

    asked: list[RunKey] = []
    while len(asked) < len(whole.asked):
        before, rig = len(asked), Interrupting()
        rig.asked = list(asked)
        campaign, results = campaign_of(Journal(tmp_path / "parts", {}), rig)
        with contextlib.suppress(Interrupted):
            campaign.run_all(results, plan(ONE_CELL, Extent()))
        asked = rig.asked
    assert asked == whole.asked


def test_no_run_begins_that_would_end_too_late(tmp_path: Path) -> None:
    rig = FakeOverloadRig()
    campaign, results = campaign_of(Journal(tmp_path, {}), rig, deadline=-math.inf)
    assert not campaign.run_all(results, plan(ONE_CELL, Extent()))
    assert not rig.asked


def test_half_a_line_is_no_run_and_is_written_over(tmp_path: Path) -> None:
    key = RunKey(0, Variant.TUNED, 20.0, WINDOW, 1, FixedLimits(64, 512), queued_tokens=2000)
    nothing = Figures(100, 0, 0, 0.0, math.nan, math.nan, 0.0, 40.0, 22.0, 0.01)
    Journal(tmp_path, {}).add(attempt(key, nothing))
    path = tmp_path / "runs.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    torn = Journal(tmp_path, {})
    assert len(torn) == 1
    torn.add(attempt(KEY, unsteady="slow"))
    torn.add(attempt(KEY))
    again = Journal(tmp_path, {})
    assert again.attempts[1:] == [attempt(KEY, unsteady="slow"), attempt(KEY)]
    assert again.get(KEY) == attempt(KEY)
    found = again.get(key)
    assert found is not None
    assert math.isnan(found.figures.ttft_p50_seconds)


def test_a_run_that_was_not_made_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError):
        recorded(Journal(tmp_path, {}))(KEY)


def test_results_of_another_engine_are_not_mixed_in(tmp_path: Path) -> None:
    Journal(tmp_path, {"engine": "vLLM", "model": {"layers": 4}})
    with pytest.raises(OtherCampaignError, match="other model"):
        Journal(tmp_path, {"engine": "vLLM", "model": {"layers": 8}})
