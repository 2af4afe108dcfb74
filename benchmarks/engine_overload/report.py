"""The tables: what was measured, on what, and which promises are held."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.engine_overload.campaign import NotMeasuredError, Results
from benchmarks.engine_overload.cells import PROMISED, PROMISED_LOSS, QUEUED_SHARE_OF_TTFT, Variant
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.intervals import Interval, ratio_interval
from benchmarks.engine_overload.journal import Journal
from benchmarks.engine_overload.plan import Extent, Planned
from benchmarks.engine_overload.search import CONFIRMED

# Fewer repetitions or pairs show nothing.
_LEAST_RUNS = 3
# Where stock has no good request at all, there is a ratio still.
_NEXT_TO_NOTHING_RPS = 1e-3


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise; `held` is None where too little was measured."""

    name: str
    held: bool | None

    @property
    def verdict(self) -> str:
        """For tables."""
        return {None: "not measured", True: "held", False: "**missed**"}[self.held]


class Report:
    """Everything that can be said with the runs that there are."""

    def __init__(self, results: Results, extent: Extent) -> None:
        self._results = results
        self._extent = extent

    def bars(self) -> list[Bar]:
        """All promises about the plugin."""
        found = []
        for number, cell in self._results.cells.items():
            found += [
                self._overload_bar(number, variant, load) for load in sorted(cell.overloads) for variant in PROMISED
            ]
            found += [self._calm_bar(number, load) for load in sorted(cell.calm_loads)]
        return found

    def lines(self) -> Iterator[str]:
        """The report as Markdown."""
        for number, cell in self._results.cells.items():
            yield f"\n### {number}: {cell.name}\n"
            try:
                yield self._capacity_line(number)
            except NotMeasuredError:
                yield "C is not found yet."
                continue
            yield from self._overload_table(number)
            yield from self._calm_table(number)
            yield from self._noise(number)
        yield ""
        for bar in self.bars():
            yield f"- {bar.name}: {bar.verdict}"

    def reference_rps(self, number: int) -> float:
        """C: the median of all full runs at the point where it was found, those between the others included."""
        return median(figures.goodput_rps for figures in self._references(number))

    def shares(self, number: int, variant: Variant, load: float) -> list[float]:
        """Goodput in units of C, one per repetition."""
        runs = self._runs(number, variant, load, self._extent.repetitions)
        return [figures.goodput_rps / self.reference_rps(number) for figures in runs] if runs else []

    def ratio(self, number: int, load: float, figure: Callable[[Figures], float]) -> Interval:
        """Plugin to stock over the pairs at a load that stock can carry."""
        pairs = []
        for repetition in range(self._extent.pairs):
            runs = [self._find(Planned(number, each, load, repetition)) for each in (Variant.STOCK, Variant.QUEUE)]
            if runs[0] is not None and runs[1] is not None:
                pairs.append((figure(runs[0]), figure(runs[1])))
        return ratio_interval(pairs)

    def _capacity_line(self, number: int) -> str:
        capacity = self._results.capacity(number)
        limits = capacity.point.limits
        runs = [figures.goodput_rps for figures in self._references(number)]
        return (
            f"C = {self.reference_rps(number):.2f} good/s ({len(runs)} runs, {min(runs):.2f} to {max(runs):.2f}; loads "
            f"are multiples of {capacity.goodput_rps:.2f}, which the search found), stock vLLM at "
            f"{capacity.point.rate_rps:.2f} req/s with {limits.sequences} sequences and {limits.tokens} tokens per step"
        )

    def _overload_table(self, number: int) -> Iterator[str]:
        variants = (Variant.STOCK, Variant.TUNED, *PROMISED)
        yield f"\n| offered | {' | '.join(variants)} | promised |\n|{'---|' * (len(variants) + 2)}"
        for load in sorted(self._results.cells[number].overloads):
            cells = " | ".join(self._overload_cell(number, variant, load) for variant in variants)
            bars = ", ".join(
                f"{PROMISED[variant][load]:g} {self._overload_bar(number, variant, load).verdict}"
                for variant in PROMISED
            )
            yield f"| {load:g} C | {cells} | {bars} |"

    def _overload_cell(self, number: int, variant: Variant, load: float) -> str:
        shares = self.shares(number, variant, load)
        if not shares:
            return "-"
        runs = self._runs(number, variant, load, self._extent.repetitions)
        theirs = median(figures.vllm_goodput_rps for figures in runs)
        spread = f"{min(shares):.2f} to {max(shares):.2f}, {len(shares)} runs"
        return f"{median(shares):.2f} ({spread}; vLLM's own figure {theirs:.2f}/s)"

    def _calm_table(self, number: int) -> Iterator[str]:
        yield "\n| offered | goodput to stock's | TTFT p50 | TPOT p50 | pairs | promised | |"
        yield "|---|---|---|---|---|---|---|"
        for load in sorted(self._results.cells[number].calm_loads):
            ratios = self._calm_ratios(number, load)
            cells = " | ".join(_interval(ratio) for ratio in ratios)
            verdict = self._calm_bar(number, load).verdict
            yield f"| {load:g} C | {cells} | {ratios[0].pairs} | no loss above {PROMISED_LOSS:.0%} | {verdict} |"

    def _noise(self, number: int) -> Iterator[str]:
        cell = self._results.cells[number]
        for variant, load in ((Variant.STOCK, cell.calm_loads[0]), (Variant.QUEUE, cell.overloads[0])):
            runs = [self._find(Planned(number, variant, load, 0, take)) for take in range(2)]
            if runs[0] is not None and runs[1] is not None:
                first, second = runs[0], runs[1]
                yield (
                    f"\nThe same run twice ({variant} at {load:g} C), second to first: goodput "
                    f"{_share(second.goodput_rps, first.goodput_rps)}, TTFT p50 "
                    f"{_share(second.ttft_p50_seconds, first.ttft_p50_seconds)}, TPOT p50 "
                    f"{_share(second.tpot_p50_seconds, first.tpot_p50_seconds)}"
                )

    def _overload_bar(self, number: int, variant: Variant, load: float) -> Bar:
        promised = PROMISED[variant][load]
        name = f"cell {number}, {load:g} C: {variant} keeps {promised:g} C"
        try:
            shares = self.shares(number, variant, load)
        except NotMeasuredError:
            shares = []
        return Bar(name, median(shares) >= promised if len(shares) >= _LEAST_RUNS else None)

    def _calm_bar(self, number: int, load: float) -> Bar:
        name = f"cell {number}, {load:g} C: no loss above {PROMISED_LOSS:.0%} against stock"
        goodput, ttft, tpot = self._calm_ratios(number, load)
        if goodput.pairs < _LEAST_RUNS:
            return Bar(name, None)
        slowest = 1.0 + PROMISED_LOSS
        return Bar(name, goodput.low >= 1.0 - PROMISED_LOSS and ttft.high <= slowest and tpot.high <= slowest)

    def _calm_ratios(self, number: int, load: float) -> tuple[Interval, Interval, Interval]:
        return (
            self.ratio(number, load, lambda figures: max(figures.goodput_rps, _NEXT_TO_NOTHING_RPS)),
            self.ratio(number, load, lambda figures: figures.ttft_p50_seconds),
            self.ratio(number, load, lambda figures: figures.tpot_p50_seconds),
        )

    def _references(self, number: int) -> list[Figures]:
        found = [self._results.confirming(number, each) for each in range(CONFIRMED)]
        return found + self._runs(number, Variant.SEARCH, None, self._extent.repetitions)

    def _runs(self, number: int, variant: Variant, load: float | None, count: int) -> list[Figures]:
        runs = (self._find(Planned(number, variant, load, repetition)) for repetition in range(count))
        return [figures for figures in runs if figures is not None]

    def _find(self, planned: Planned) -> Figures | None:
        try:
            return self._results.of(planned)
        except NotMeasuredError:
            return None


def surroundings(journal: Journal, command: Sequence[str], engine: str) -> Iterator[str]:
    """The machine, what was measured, and how to do it again."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"`{' '.join(command)}`"
    yield f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, {engine}"
    runs = journal.circumstances
    if runs:
        loads = [each.load_average for each in runs]
        commits = ", ".join(dict.fromkeys(each.commit for each in runs))
        yield (
            f"{len(runs)} runs from {runs[0].began} to {runs[-1].began}, commit {commits}; load average when a run "
            f"began {median(loads):.1f} (at most {max(loads):.1f})"
        )
        lag = max(figures.lag_seconds for figures in journal.figures)
        yield f"No request left the client more than {1000 * lag:.0f} ms late"
    yield (
        "Seeds: repetition n has the trace of seed n for every variant and load, the search 1000 and above. `stock "
        f"tuned`: C's limits and --max-num-queued-tokens = {QUEUED_SHARE_OF_TTFT:g} x TTFT x prompt tokens per second "
        "at C."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _interval(ratio: Interval) -> str:
    if math.isnan(ratio.ratio):
        return "-"
    return f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _share(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base > 0.0 else "-"
