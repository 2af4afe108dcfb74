"""README's answer to the question about money: the table of benchmarks/money.py."""

import re
from pathlib import Path

import pytest

from benchmarks.autoscaling import bars
from benchmarks.autoscaling.bars import Verdict
from benchmarks.autoscaling.table import tell_bars
from benchmarks.money import SCENARIOS, SOURCES, WORDS, main, plain, table
from benchmarks.reality import Key, Row, Runs

ROOT = Path(__file__).parents[2]
_, _, _SECTION = (ROOT / "README.md").read_text().partition("## Does it save money?\n")
SECTION = _SECTION.partition("\n## ")[0]
SAVINGS = re.findall(r"\d+ % fewer", SECTION)
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


def test_the_table_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    printed = capsys.readouterr().out
    assert f"\n\n{printed}\n" in SECTION
    assert SECTION.count("\n|") == f"\n{printed}".count("\n|"), "README has no further table"


def test_the_table_names_commit_and_date_of_each_of_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.findall(r"([0-9a-f]{8}) \((2026-\d\d-\d\d)\)", said) == [
        (path.stem[-8:], made) for path, made in SOURCES.values()
    ]


def test_the_page_of_the_comparison_holds_its_recorded_bars() -> None:
    page = (ROOT / "docs" / "benchmarks" / "autoscaling.md").read_text()
    assert "\n".join(tell_bars(bars.read(SCENARIOS))) in page


def test_every_miss_stands_in_the_table_and_of_the_rest_what_was_asked_about() -> None:
    met, missed = Verdict("smooth: attains", True, "99.5 %"), Verdict("step: hours", False, "1.5 x, bar 1.3 x; 99 %")
    shipped = Verdict(next(iter(WORDS)), None, "22 % fewer GPU-hours than hpa, bar 20 %")
    day = Verdict("a day", True, "13.2 where that takes 20.0, bar 13.3")
    worst, without = (
        Verdict(f"{name}: objective on every day", False, "4 of 10") for name in ("with plugin", "without")
    )
    assert list(table([met, missed, shipped], [worst, without], day))[2:] == [
        "| the best of ten autoscalers of others as shipped, six scenarios | 22 % fewer GPU-hours than hpa |  |",
        "| 99 % on each of these days | 4 of 10 | **missed** |",
        "| a day | 13.2 where that takes 20.0 | 13.3, met |",
        "| step: hours | 1.5 x; 99 % | 1.3 x, **missed** |",
    ]


@pytest.mark.parametrize(("attained", "hours", "met"), [(0.995, 13.3, True), (0.995, 13.4, False), (0.98, 10.0, False)])
def test_the_plain_day_is_judged_by_its_bar(tmp_path: Path, attained: float, hours: float, met: bool) -> None:
    runs = Runs(tmp_path / "runs.jsonl")
    for policy, spent in (("holdfast", hours), ("static", 20.0)):
        runs.add(Key("plain", policy, 1, "", ""), Row(attained, spent, 5, 9, 0.97))
    assert (plain(runs).met, plain(runs).told) == (met, f"{hours:.1f} where that takes 20.0, bar 13.3")


def test_the_page_says_that_step_misses_its_objective_too() -> None:
    (step,) = [each.told for each in bars.read(SCENARIOS) if each.name.startswith("step: no peer")]
    assert f"`step` attains {step.replace(' with', ' for').partition(';')[0]}" in " ".join(PAGE.split())


def test_the_savings_stand_on_the_benchmarks_page_and_the_misses_in_readme() -> None:
    assert len(SAVINGS) == 3
    assert all(saving in PAGE for saving in SAVINGS)
    assert "It does not always" in SECTION
    assert "**missed**" in SECTION
