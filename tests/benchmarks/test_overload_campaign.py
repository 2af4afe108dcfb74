"""Which runs a campaign makes, in which order, and how it goes on after an interruption."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.engine_overload.campaign import Campaign, Results, Windows, recorded
from benchmarks.engine_overload.cells import CELLS, PROMISED, FixedLimits, Variant, Window
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import Circumstances, Journal, OtherCampaignError, RunKey
from benchmarks.engine_overload.plan import Extent, plan
from benchmarks.engine_overload.report import Report
from benchmarks.engine_overload.search import NoCapacityError, Point, Questions, find_capacity

WINDOWS = Windows(Window(1.0, 30.0, 1.0), Window(1.0, 15.0, 1.0))
ALL = dict(enumerate(CELLS))
THEN = Circumstances("2026-01-01T00:00:00+0000", "abc", 0.5)


def stock_goodput(limits: FixedLimits | None, rate: float) -> float:
    """An engine that carries 20 req/s with 512 tokens per step and 64 sequences, and collapses beyond what it can."""
    if limits is None:
        return rate if rate <= 17.0 else 0.0
    carried = 20.0 - 4.0 * abs(math.log2(limits.tokens / 512)) - abs(math.log2(limits.sequences / 64))
    return rate if rate <= carried else max(0.0, carried - 6.0 * (rate - carried))


def figures(goodput: float) -> Figures:
    return Figures(100, 90, 0, goodput, 0.4, 0.04, 0.8 * goodput, 40.0, 22.0, 0.01)


class FakeEngine:
    """Answers every run, and notes which."""

    def __init__(self, plugin: Callable[[float], float] = lambda rate: min(rate, 19.0)) -> None:
        self.asked: list[RunKey] = []
        self._plugin = plugin

    def make(self, key: RunKey, number: int) -> Figures:
        assert number == len(self.asked)
        self.asked.append(key)
        if key.variant in PROMISED:
            return figures(self._plugin(key.rate_rps))
        return figures(stock_goodput(key.limits, key.rate_rps))


def results_of(
    journal: Journal, engine: FakeEngine, cells: tuple[int, ...] = (0,), deadline: float = math.inf
) -> tuple[Campaign, Results]:
    campaign = Campaign(journal, engine.make, deadline, lambda line: None)
    return campaign, Results({number: CELLS[number] for number in cells}, WINDOWS, campaign.run)


def test_the_first_repetition_of_the_promises_comes_first() -> None:
    first = plan(ALL, Extent())[:13]
    assert [each.cell for each in first] == [0] * 13
    assert first[0].variant is Variant.SEARCH
    assert [each.load for each in first[1:9]] == [1.25, 1.5, 1.1, 2.0] * 2
    assert [each.variant for each in first[1:9]] == [Variant.QUEUE] * 4 + [Variant.REJECT] * 4
    assert [(each.variant, each.load) for each in first[9:]] == [
        (Variant.STOCK, 0.8),
        (Variant.QUEUE, 0.8),
        (Variant.STOCK, 0.5),
        (Variant.QUEUE, 0.5),
    ]


def test_no_run_is_planned_twice_and_every_promise_is_repeated() -> None:
    runs = plan(ALL, Extent(repetitions=3, pairs=5))
    assert len(set(runs)) == len(runs)
    for number, cell in ALL.items():
        for load in (*cell.overloads, *cell.calm_loads):
            found = Counter(each.variant for each in runs if (each.cell, each.load, each.take) == (number, load, 0))
            if load in cell.overloads:
                assert found == dict.fromkeys((*PROMISED, Variant.STOCK, Variant.TUNED), 3)
            else:
                assert found == {Variant.QUEUE: 5, Variant.STOCK: 5}


def test_pairs_follow_each_other_and_take_turns() -> None:
    pairs = [each for each in plan({1: CELLS[1]}, Extent()) if each.load == 0.8 and not each.take]
    assert [each.variant for each in pairs[:4]] == [Variant.STOCK, Variant.QUEUE, Variant.QUEUE, Variant.STOCK]
    assert [each.repetition for each in pairs] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_every_load_is_promised_something() -> None:
    loads = {load for cell in CELLS for load in cell.overloads}
    assert all(set(promised) == loads for promised in PROMISED.values())


def test_the_search_finds_the_best_fixed_limits_and_the_rate(tmp_path: Path) -> None:
    _, results = results_of(Journal(tmp_path, {}), FakeEngine())
    capacity = results.capacity(0)
    assert capacity.point.limits == FixedLimits(64, 512)
    assert 19.4 < capacity.goodput_rps <= 20.0


def test_an_engine_that_nothing_suits_has_no_capacity() -> None:
    nothing = Questions(lambda rate: 3.0, lambda point: 0.0, lambda point, number: 0.0)
    with pytest.raises(NoCapacityError):
        find_capacity(nothing, 40.0)


def test_a_fast_engine_is_offered_more_until_it_is_full() -> None:
    offered: list[float] = []

    def saturate(rate: float) -> float:
        offered.append(rate)
        return min(rate, 100.0)

    def goodput(point: Point, number: int = 0) -> float:
        return min(point.rate_rps, max(0.0, 190.0 - point.rate_rps))

    found = find_capacity(Questions(saturate, goodput, goodput), 40.0)
    assert offered == [40.0, 80.0, 160.0, 320.0]
    assert found.goodput_rps > 80.0


def test_an_interrupted_campaign_goes_on_without_repeating_a_run(tmp_path: Path) -> None:
    whole = FakeEngine()
    campaign, results = results_of(Journal(tmp_path / "whole", {}), whole)
    assert campaign.run_all(results, plan(results.cells, Extent()))

    class Interrupted(Exception):
        pass

    asked: list[RunKey] = []
    while len(asked) < len(whole.asked):
        engine = FakeEngine()
        engine.asked = list(asked)

        def make(key: RunKey, number: int, engine: FakeEngine = engine, before: int = len(asked)) -> Figures:
            if len(engine.asked) == before + 7:
                raise Interrupted
            return engine.make(key, number)

        campaign = Campaign(Journal(tmp_path / "parts", {}), make, math.inf, lambda line: None)
        results = Results({0: CELLS[0]}, WINDOWS, campaign.run)
        with contextlib.suppress(Interrupted):
            campaign.run_all(results, plan(results.cells, Extent()))
        asked = engine.asked
    assert asked == whole.asked


def test_half_a_line_is_no_run_and_is_written_over(tmp_path: Path) -> None:
    key = RunKey(0, Variant.TUNED, 20.0, WINDOWS.full, 1, FixedLimits(64, 512), queued_tokens=2000)
    Journal(tmp_path, {}).add(key, figures(math.nan), THEN)
    path = tmp_path / "runs.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    torn = Journal(tmp_path, {})
    assert len(torn) == 1
    torn.add(RunKey(1, Variant.QUEUE, 5.0, WINDOWS.glance, 2, take=1), figures(3.0), THEN)
    again = Journal(tmp_path, {})
    assert len(again) == 2
    found = again.get(key)
    assert found is not None
    assert math.isnan(found.goodput_rps)
    assert again.circumstances == [THEN, THEN]


def test_results_of_another_engine_are_not_mixed_in(tmp_path: Path) -> None:
    Journal(tmp_path, {"vllm": "0.32.0", "model": {"layers": 4}})
    with pytest.raises(OtherCampaignError, match="other model"):
        Journal(tmp_path, {"vllm": "0.32.0", "model": {"layers": 8}})


def test_no_run_begins_that_would_end_too_late(tmp_path: Path) -> None:
    engine = FakeEngine()
    campaign, results = results_of(Journal(tmp_path, {}), engine, deadline=-math.inf)
    assert not campaign.run_all(results, plan(results.cells, Extent()))
    assert not engine.asked


def test_an_overload_is_expected_to_take_its_drain(tmp_path: Path) -> None:
    _, results = results_of(Journal(tmp_path, {}), FakeEngine())
    planned = {each.load: each for each in plan(results.cells, Extent()) if each.variant is Variant.QUEUE}
    short, long = (results.expected_seconds(results.key(planned[load])) for load in (0.5, 2.0))
    assert short < long


def test_the_report_holds_promises_only_with_enough_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    campaign, results = results_of(journal, FakeEngine())
    runs = plan(results.cells, Extent())
    campaign.run_all(results, runs[:13])
    early = Report(Results({0: CELLS[0]}, WINDOWS, recorded(journal)), Extent())
    assert all(bar.held is None for bar in early.bars())
    campaign.run_all(results, runs)
    late = Report(Results({0: CELLS[0]}, WINDOWS, recorded(journal)), Extent())
    assert all(bar.held for bar in late.bars())
    text = "\n".join(late.lines())
    assert "64 sequences and 512 tokens per step" in text
    assert "The same run twice (stock at 0.8 C)" in text
    assert "cell 0, 2 C: plugin Reject keeps 0.95 C: held" in text


def test_a_plugin_that_loses_too_much_misses(tmp_path: Path) -> None:
    campaign, results = results_of(Journal(tmp_path, {}), FakeEngine(lambda rate: 0.9 * min(rate, 19.5)))
    campaign.run_all(results, plan(results.cells, Extent()))
    held = {bar.name: bar.held for bar in Report(results, Extent()).bars()}
    for variant, verdicts in ((Variant.QUEUE, [False, False, False, True]), (Variant.REJECT, [False] * 4)):
        assert [verdict for name, verdict in held.items() if f"{variant} keeps " in name] == verdicts
    assert [verdict for name, verdict in held.items() if " loss " in name] == [False, False]


def test_a_stock_engine_that_is_good_for_nothing_makes_no_loss(tmp_path: Path) -> None:
    class Collapsed(FakeEngine):
        def make(self, key: RunKey, number: int) -> Figures:
            found = super().make(key, number)
            return replace(found, goodput_rps=0.0) if key.variant is Variant.STOCK else found

    campaign, results = results_of(Journal(tmp_path, {}), Collapsed())
    campaign.run_all(results, plan(results.cells, Extent()))
    assert all(bar.held for bar in Report(results, Extent()).bars())


def test_a_report_on_nothing_says_so(tmp_path: Path) -> None:
    report = Report(Results(ALL, WINDOWS, recorded(Journal(tmp_path, {}))), Extent())
    assert "C is not found yet." in list(report.lines())
    assert all(bar.held is None for bar in report.bars())
