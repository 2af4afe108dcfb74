"""What the tables say, and when a promise is held."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.engine_overload.campaign import Campaign, Patience, Results, recorded
from benchmarks.engine_overload.cells import CELLS, Variant
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import Journal, RunKey
from benchmarks.engine_overload.plan import Extent, plan
from benchmarks.engine_overload.report import Report
from benchmarks.engine_overload.surroundings import surroundings
from benchmarks.engine_overload.windows import Seconds
from tests.fakes import FakeMeter, FakeOverloadRig

ONE_CELL = {0: CELLS[0]}


def measured(
    journal: Journal, rig: FakeOverloadRig, extent: Extent | None = None, meter: FakeMeter | None = None
) -> Report:
    extent = extent or Extent()
    campaign = Campaign(journal, rig, meter or FakeMeter(), Patience(), math.inf, lambda line: None)
    assert campaign.run_all(Results(ONE_CELL, Seconds(), campaign.run), plan(ONE_CELL, extent))
    return Report(Results(ONE_CELL, Seconds(), recorded(journal)), extent)


def test_promises_are_held_only_with_enough_blocks(tmp_path: Path) -> None:
    early = measured(Journal(tmp_path, {}), FakeOverloadRig(), Extent(blocks=2, pairs_per_block=1))
    assert all(bar.held is None for bar in early.bars())
    rig = FakeOverloadRig()
    late = measured(Journal(tmp_path / "late", {}), rig)
    assert all(bar.held for bar in late.bars())
    text = "\n".join(late.lines())
    assert "36 sequences, 768 tokens per step" in text
    assert "The same run twice (stock at C's limits)" in text
    assert "cell 0, 2 C: plugin Reject keeps 0.95 C: held" in text


def test_a_plugin_that_loses_too_much_misses(tmp_path: Path) -> None:
    report = measured(Journal(tmp_path, {}), FakeOverloadRig(lambda rate: 0.9 * min(rate, 19.5)))
    held = {bar.name: bar.held for bar in report.bars()}
    for variant, verdicts in ((Variant.QUEUE, [False, False, False, True]), (Variant.REJECT, [False] * 4)):
        assert [verdict for name, verdict in held.items() if f"{variant} keeps " in name] == verdicts
    assert [verdict for name, verdict in held.items() if " loss " in name] == [False, False]


def test_a_ratio_is_formed_within_its_block(tmp_path: Path) -> None:
    """Blocks in which everything is worth half as much change no share."""

    class Drifting(FakeOverloadRig):
        def run(self, key: RunKey, number: int) -> Figures:
            found = super().run(key, number)
            return replace(found, goodput_rps=found.goodput_rps / 2.0) if key.seed == 1 else found

    report = measured(Journal(tmp_path, {}), Drifting(lambda rate: 19.0))
    shares = report.shares(0, Variant.QUEUE, 1.5)
    assert len(shares) == 3
    assert shares == pytest.approx([shares[0]] * 3)


def test_c_is_not_what_the_search_chose_by(tmp_path: Path) -> None:
    class LuckySearch(FakeOverloadRig):
        def run(self, key: RunKey, number: int) -> Figures:
            found = super().run(key, number)
            return replace(found, goodput_rps=1.2 * found.goodput_rps) if key.is_search else found

    journal = Journal(tmp_path, {})
    report = measured(journal, LuckySearch())
    text = "\n".join(report.lines())
    chosen = Results(ONE_CELL, Seconds(), recorded(journal)).capacity(0).goodput_rps
    assert report.reference_rps(0) == pytest.approx(chosen / 1.2)
    assert "the mean of the search's fresh runs: 1.200 of it" in text


def test_c_is_a_little_below_the_search_s_rate_where_stock_collapses_there(tmp_path: Path) -> None:
    """The search had luck; in the blocks its rate is beyond the cliff. That must not make the plugin look good."""

    class Slower(FakeOverloadRig):
        def run(self, key: RunKey, number: int) -> Figures:
            found = super().run(key, number)
            beyond = key.variant is Variant.SEARCH and not key.is_search and key.rate_rps > 19.0
            return replace(found, goodput_rps=1.0) if beyond else found

    journal = Journal(tmp_path, {})
    report = measured(journal, Slower(lambda rate: 15.0))
    rate = Results(ONE_CELL, Seconds(), recorded(journal)).capacity(0).point.rate_rps
    assert rate > 19.0
    assert report.reference_rps(0) == pytest.approx(0.9 * rate, abs=1e-3)
    assert report.shares(0, Variant.QUEUE, 1.5) == pytest.approx([15.0 / (0.9 * rate)] * 3, abs=1e-3)


def test_a_block_without_a_steady_run_of_stock_gives_no_ratio(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    report = measured(journal, FakeOverloadRig())
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    key = next(each.key for each in journal.attempts if each.key.variant is Variant.SEARCH and each.key.seed == 1)
    kept = [line for line, each in zip(lines, journal.attempts, strict=True) if each.key != key]
    (tmp_path / "runs.jsonl").write_text("\n".join(kept) + "\n")
    report = Report(Results(ONE_CELL, Seconds(), recorded(Journal(tmp_path, {}))), Extent())
    assert len(report.shares(0, Variant.QUEUE, 1.5)) == 2
    assert next(bar for bar in report.bars() if "1.5 C" in bar.name).held is None


def test_a_stock_engine_that_is_good_for_nothing_makes_no_loss(tmp_path: Path) -> None:
    class Collapsed(FakeOverloadRig):
        def run(self, key: RunKey, number: int) -> Figures:
            found = super().run(key, number)
            return replace(found, goodput_rps=0.0) if key.variant is Variant.STOCK else found

    assert all(bar.held for bar in measured(Journal(tmp_path, {}), Collapsed()).bars())


def test_what_was_thrown_away_is_told_with_what_it_would_have_changed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    measured(journal, FakeOverloadRig(), meter=FakeMeter(*[1.0] * 30, 1.5, 1.0))
    text = "\n".join(surroundings(journal, ("command",), "vLLM"))
    assert f"whatever they gave: 1 of {len(journal)} runs" in text
    assert "1.00 to 1.50 of that in all runs" in text
    everything = Report(Results(ONE_CELL, Seconds(), recorded(journal, first=True)), Extent())
    assert "steady or not: cell 0, 1.1 C, plugin Queue" in "\n".join(everything.sensitivity())


def test_a_report_on_nothing_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    report = Report(Results(dict(enumerate(CELLS)), Seconds(), recorded(journal)), Extent())
    assert "C is not found yet." in list(report.lines())
    assert all(bar.held is None for bar in report.bars())
    assert list(report.sensitivity()) == []
    assert "`command`" in list(surroundings(journal, ("command",), "vLLM"))
