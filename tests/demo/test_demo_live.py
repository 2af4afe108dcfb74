"""The live view, drawn at a fixed width, and its plain form for logs."""

import io

import pytest
from rich.console import Console

from e2e.demo import live
from e2e.demo.board import Board, View
from e2e.demo.live import LiveView
from e2e.load.trace import Arrival
from tests.demo.demo_runs import FACTS, SCENARIO, START, made_up_run

GOLDEN = """
╭─ Holdfast: the objective under a load step ──────────────────────────────────────────────────────╮
│  LOAD x3: new replicas start (a cold start takes 36 s)   110 of 390 s                            │
│ ━━━━━━━━━━━━━━━━━━━━━━━━━━━                                                                      │
│ load             14.5 req/s  91 in flight      ▃▂▃▃▃▃▃▃▃▇█                                       │
│ good, last 30 s  23.3 %      objective 95.0 %  █████████▁▁                                       │
│ good, whole run  66.4 %      631 arrived       0 rejected, 0 lost                                │
│ TTFT p95         3.00 s      objective 1.00 s                                                    │
│ TPOT p95         30 ms       objective 50 ms                                                     │
│                                                                                                  │
│ replicas  ███ 1 ready  ▒▒▒ ▒▒▒ 2 starting                                                        │
│ operator  SLOMet True, ObjectiveMet: 99.1% of 900 requests good                                  │
│                                                                                                  │
│    -40 s Create/FirstSize: no load seen yet; 0 -> 1 replica, $1.95/h more                        │
│     96 s ScaleUp/ForecastAboveCapacity: 6.1 req/s expected (q=0.95); 1 -> 3 replicas             │
│    101 s ColdStart: 91.2% of 180 requests good, <objective> 95%                                  │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
"""


def view_at(seconds: float) -> View:
    """Return the figures of the made-up run at one moment."""
    finished, now = made_up_run(), START + seconds
    board = Board(SCENARIO, FACTS.objectives, FACTS.cold_start_seconds, START)
    board.arrivals = [Arrival(record.scheduled_at - START, 1, 1) for record in finished.records]
    board.records = [record for record in finished.records if record.finished_at <= now]
    board.decisions = [decision for decision in finished.decisions if decision.at <= now]
    board.sample = next((sample for sample in reversed(finished.samples) if sample.at <= now), None)
    return board.view(now)


def drawn(view: View) -> str:
    """Draw the board on 100 columns without colours."""
    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(live.render(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_board_in_the_middle_of_a_cold_start_looks_as_designed() -> None:
    assert drawn(view_at(110.0)).strip() == GOLDEN.strip()


def test_the_board_before_the_first_request_claims_nothing() -> None:
    text = drawn(view_at(-1.0))
    assert "about to begin" in text
    assert "100 %" not in text
    assert "0.0 %" not in text


def test_every_moment_of_a_run_can_be_drawn() -> None:
    for second in range(-2, 370, 31):
        assert "Holdfast" in drawn(view_at(float(second)))


def test_figures_of_a_moment_count_what_was_sent_and_judged_until_then() -> None:
    view = view_at(110.0)
    finished = made_up_run()
    assert view.arrivals == sum(record.scheduled_at <= START + 110 for record in finished.records)
    assert view.in_flight == view.arrivals - sum(record.finished_at <= START + 110 for record in finished.records)
    assert view.recent_good + view.recent_bad == sum(
        START + 80 < record.finished_at <= START + 110 for record in finished.records
    )
    assert len(view.load_rps) == len(view.good_shares) == 11


def test_without_a_terminal_a_line_comes_every_five_seconds_and_each_decision_once() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=100)) as view:
        for half_second in range(180, 242):
            view.show(view_at(half_second / 2))
    lines = out.getvalue().splitlines()
    assert sum("in flight" in line for line in lines) == 7
    assert sum("ScaleUp/ForecastAboveCapacity" in line for line in lines) == 1
    assert sum("ColdStart: 91.2%" in line for line in lines) == 1
    assert all("\x1b" not in line for line in lines)


def test_a_terminal_gets_the_board_in_place() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=100, force_terminal=True)) as view:
        view.show(view_at(110.0))
    assert "Holdfast" in out.getvalue()


def test_what_runs_without_the_fast_loop_stands_beside() -> None:
    view, other = view_at(110.0), view_at(60.0)
    assert "without fast loop" not in drawn(view) + live.plain(view)
    assert live.plain(view, other).endswith("without fast loop: good 100 %")
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(live.render(view, other))
    assert "without fast loop  100 %" in console.export_text()


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (1.0, "100 %"), (0.9999, "99.9 %"), (0.0, "0.0 %")])
def test_a_share_is_never_rounded_up_to_all(value: float | None, text: str) -> None:
    assert live.share(value) == text


def test_a_history_is_drawn_as_bars_of_its_last_values() -> None:
    assert live.sparkline((0.0, 3.5, 7.0)) == "▁▅█"
    assert live.sparkline(()) == ""
    assert live.sparkline((0.0, 0.0)) == ""
    assert len(live.sparkline(tuple(map(float, range(100))), width=40)) == 40
