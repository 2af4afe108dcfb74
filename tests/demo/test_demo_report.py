"""The report of a run: complete, legible to a browser, honest about failures and early ends."""

import dataclasses
import html
import pathlib
import struct

import pytest
from matplotlib.figure import Figure

from e2e.demo import figure, journal, report, run
from e2e.demo.run import Run
from e2e.load.records import RecordWriter
from tests.demo.demo_runs import FACTS, START, made_up_run


def pixels(path: pathlib.Path) -> tuple[int, int]:
    """Return width and height out of a PNG's header."""
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def test_a_run_that_held_is_reported_with_every_reason_and_needs_no_other_file(tmp_path: pathlib.Path) -> None:
    finished = made_up_run()
    picture, page = report.write(finished, tmp_path)
    text = page.read_text()
    assert finished.passed
    assert pixels(picture) == (1950, 1575)
    for decision in finished.decisions:
        assert decision.reason in text
        assert html.escape(decision.message) in text
    assert "data:image/png;base64," in text
    assert "http" not in text.replace("HTTP", "")
    assert text.count("forgiven: cold start") == 2


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "none"), (1.0, "100 %"), (0.99999, "99.9 %"), (0.9497, "94.9 %"), (0.95, "95 %"), (0.0, "0 %")],
)
def test_a_share_is_rounded_down_so_that_a_miss_never_reads_as_met(share: float | None, text: str) -> None:
    assert figure.percent(share) == text


def test_only_changes_of_size_are_numbered() -> None:
    assert [change.action for change in made_up_run().changes] == ["Create", "ScaleUp", "ScaleDown"]


def test_a_window_below_the_objective_fails_the_run_and_is_named() -> None:
    finished = made_up_run(slow_until=150.0)
    assert not finished.passed
    assert "begin at 136 s" in report.conclusion(finished)


def test_a_lost_request_fails_the_run_and_is_listed(tmp_path: pathlib.Path) -> None:
    finished = made_up_run(lost=1)
    _, page = report.write(finished, tmp_path)
    assert not finished.passed
    assert "1 request was lost" in report.conclusion(finished)
    assert "ClientPayloadError &lt;gone&gt;" in page.read_text()


@pytest.mark.parametrize("played_seconds", [0.5, 200.0])
def test_a_run_that_was_stopped_has_a_report_and_no_verdict(tmp_path: pathlib.Path, played_seconds: float) -> None:
    stopped = made_up_run(played_seconds=played_seconds)
    picture, page = report.write(stopped, tmp_path)
    assert not stopped.passed
    assert "nothing is concluded" in page.read_text()
    assert pixels(picture) == (1950, 1575)


def test_a_run_in_which_nothing_was_seen_at_all_is_drawn(tmp_path: pathlib.Path) -> None:
    report.write(Run(FACTS, (), (), ()), tmp_path)
    assert (tmp_path / "report.png").exists()


@pytest.mark.slow
def test_a_run_in_which_no_request_succeeded_is_drawn(tmp_path: pathlib.Path) -> None:
    whole = made_up_run()
    failed = tuple(
        dataclasses.replace(record, status="error", first_token_at=None, output_tokens=0) for record in whole.records
    )
    report.write(dataclasses.replace(whole, records=failed), tmp_path)
    assert "lost" in (tmp_path / "report.html").read_text()


def test_the_same_load_without_the_fast_loop_is_shown_beside_and_judges_nothing(tmp_path: pathlib.Path) -> None:
    finished = dataclasses.replace(made_up_run(), comparison=made_up_run(slow_until=180.0, lost=2))
    picture, page = report.write(finished, tmp_path)
    assert finished.passed
    assert pixels(picture) == (1950, 1575)
    assert "Without the fast loop (engine.plugin: Disabled)" in page.read_text()
    assert "2 lost" in report.compared(finished)
    assert "worst window 0 %" in report.compared(finished)


def test_replicas_at_the_start_at_most_and_at_the_end() -> None:
    assert made_up_run().replicas_range == (1, 3, 1)
    assert Run(FACTS, (), (), ()).replicas_range == (0, 0, 0)


def test_a_run_survives_its_files_even_with_half_a_line_at_the_end(tmp_path: pathlib.Path) -> None:
    finished = made_up_run(played_seconds=100.0)
    run.write_facts(tmp_path, finished.facts)
    with RecordWriter(tmp_path / run.RECORDS) as writer, journal.Journal(tmp_path / run.SAMPLES) as samples:
        for record in finished.records:
            writer.write(record)
        for sample in finished.samples:
            samples.sample(sample)
        for decision in finished.decisions:
            samples.decision(decision)
    with (tmp_path / run.SAMPLES).open("a") as lines:
        lines.write('{"kind":"sample","at":17')
    again = run.read(tmp_path)
    assert (again.facts, again.records, again.samples) == (finished.facts, finished.records, finished.samples)
    assert [decision.at for decision in again.decisions] == sorted(decision.at for decision in finished.decisions)
    assert report.main([str(tmp_path)]) == 0


def test_a_load_whose_last_request_came_a_little_before_its_end_is_complete() -> None:
    finished = made_up_run()
    assert finished.complete
    assert finished.end <= START + finished.facts.scenario.duration_seconds
    assert not made_up_run(played_seconds=300.0).complete


def test_what_differs_in_colour_differs_in_a_sign_as_well() -> None:
    for kinds in (figure.OUTCOMES, figure.STATES, figure.PERCENTILES):
        assert len({sign for _, _, sign in kinds}) == len(kinds)
    panel = Figure().add_subplot()
    finished = made_up_run(slow_until=300.0)
    figure._attainment(panel, finished, "")
    shares = [text.get_text() for text in panel.texts][: len(finished.verdict.windows)]
    judged = [window.meets(finished.facts.objectives.share) for window in finished.verdict.windows]
    assert [not share.startswith(figure.MISSED) for share in shares] == judged
    assert {True, False} == set(judged)
