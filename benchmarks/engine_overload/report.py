"""The tables: what was measured, on what, what was thrown away, and which promises are held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.engine_overload.campaign import NotMeasuredError, Results, UnsteadyError
from benchmarks.engine_overload.cells import PROMISED, PROMISED_LOSS, Variant
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.intervals import Interval, adjusted_interval, median_interval, ratio_interval
from benchmarks.engine_overload.journal import Attempt
from benchmarks.engine_overload.plan import REFERENCE_SHARES, Extent, Planned, reference

# Fewer blocks or pairs show nothing.
_LEAST_RUNS = 3
# Where stock has no good request at all, there is a ratio still.
_NEXT_TO_NOTHING_RPS = 1e-3
# With fewer pairs the line through their speeds costs more than it gives.
_ADJUSTED_PAIRS = 5

Figure = Callable[[Figures], float]


def _goodput(figures: Figures) -> float:
    return max(figures.goodput_rps, _NEXT_TO_NOTHING_RPS)


def _ttft(figures: Figures) -> float:
    return figures.ttft_p50_seconds


def _tpot(figures: Figures) -> float:
    return figures.tpot_p50_seconds


_FIGURES = (_goodput, _ttft, _tpot)


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
            found += [self._overload_bar(number, variant, load) for load in cell.overloads for variant in PROMISED]
            found += [self._calm_bar(number, load) for load in cell.calm_loads]
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

    def sensitivity(self) -> Iterator[str]:
        """The medians behind the promises in overload, for runs that were chosen in another way."""
        shares = [
            f"cell {number}, {load:g} C, {variant} {median(found):.2f}"
            for number, cell in self._results.cells.items()
            for load in cell.overloads
            for variant in PROMISED
            if (found := self.shares(number, variant, load))
        ]
        if shares:
            yield f"\nWith the first attempt of every run, steady or not: {'; '.join(shares)}"

    def reference_rps(self, number: int) -> float:
        """C: the median of its fresh runs in the blocks, none of which the search has seen; NaN without one."""
        found = self._fresh(number, self.reference_share(number))
        return median(found) if found else math.nan

    def reference_share(self, number: int) -> float:
        """At which of the rates that every block has C is: the best one over all blocks, the same in each."""
        return max(REFERENCE_SHARES, key=lambda share: median(self._fresh(number, share) or [0.0]))

    def shares(self, number: int, variant: Variant, load: float) -> list[float]:
        """Goodput in units of C measured in the same block, one per block that has both."""
        found, share = [], self.reference_share(number)
        for block in range(self._extent.blocks):
            runs = self._find(reference(number, block, share)), self._find(Planned(number, variant, load, block))
            if runs[0] is not None and runs[1] is not None:
                found.append(runs[1].figures.goodput_rps / _goodput(runs[0].figures))
        return found

    def ratios(self, number: int, load: float, figure: Figure) -> tuple[Interval, Interval]:
        """Plugin to stock over the pairs at a load that stock can carry; the same at equal speed of the machine."""
        pairs, speeds = [], []
        for repetition in range(self._extent.pairs):
            runs = [self._find(Planned(number, each, load, repetition)) for each in (Variant.STOCK, Variant.QUEUE)]
            if runs[0] is not None and runs[1] is not None:
                pairs.append((figure(runs[0].figures), figure(runs[1].figures)))
                speeds.append((runs[0].speed.during_ms, runs[1].speed.during_ms))
        return ratio_interval(pairs), adjusted_interval(pairs, speeds)

    def _capacity_line(self, number: int) -> str:
        capacity, fresh = self._results.capacity(number), self.reference_rps(number)
        limits, rate = capacity.point.limits, capacity.point.rate_rps * self.reference_share(number)
        runs = "; ".join(
            f"at {capacity.point.rate_rps * share:.2f} req/s "
            + (", ".join(f"{each:.2f}" for each in self._fresh(number, share)) or "no run")
            for share in REFERENCE_SHARES
        )
        return (
            f"C = {fresh:.2f} good/s (in the blocks {runs}; loads are multiples of "
            f"{capacity.goodput_rps:.2f}, the mean of the search's fresh runs: {_share(capacity.goodput_rps, fresh)} "
            f"of it), stock vLLM at {rate:.2f} req/s with {limits.sequences} sequences, {limits.tokens} tokens per step"
        )

    def _overload_table(self, number: int) -> Iterator[str]:
        variants = (Variant.STOCK, Variant.TUNED, *PROMISED)
        yield f"\n| offered | {' | '.join(variants)} | promised |\n|{'---|' * (len(variants) + 2)}"
        for load in self._results.cells[number].overloads:
            cells = " | ".join(self._overload_cell(number, variant, load) for variant in variants)
            bars = ", ".join(
                f"{PROMISED[variant][load]:g} {self._overload_bar(number, variant, load).verdict}"
                for variant in PROMISED
            )
            yield f"| {load:g} C | {cells} | {bars} |"

    def _overload_cell(self, number: int, variant: Variant, load: float) -> str:
        runs = [self._find(Planned(number, variant, load, block)) for block in range(self._extent.blocks)]
        found = [run.figures for run in runs if run is not None]
        if not found:
            return "-"
        share = median(_goodput(figures) for figures in found) / self.reference_rps(number)
        theirs = median(figures.vllm_goodput_rps for figures in found)
        if variant not in PROMISED:
            return f"{share:.2f} ({len(found)} run; vLLM's own figure {theirs:.2f}/s)"
        paired = _interval(median_interval(self.shares(number, variant, load)), 2)
        return f"{paired} ({len(found)} blocks; of C's median {share:.2f}; vLLM's own figure {theirs:.2f}/s)"

    def _calm_table(self, number: int) -> Iterator[str]:
        yield "\n| offered | | goodput to stock's | TTFT p50 | TPOT p50 | pairs | promised | |"
        yield "|---|---|---|---|---|---|---|---|"
        for load in self._results.cells[number].calm_loads:
            ratios = [self.ratios(number, load, figure) for figure in _FIGURES]
            verdict = self._calm_bar(number, load).verdict
            for name, which in (("as measured", 0), ("at equal speed", 1)):
                cells = " | ".join(_interval(ratio[which], 3) for ratio in ratios)
                ending = f"no loss above {PROMISED_LOSS:.0%} | {verdict}" if which else " | "
                yield f"| {load:g} C | {name} | {cells} | {ratios[0][which].pairs} | {ending} |"

    def _noise(self, number: int) -> Iterator[str]:
        cell = self._results.cells[number]
        for variant, load in ((Variant.SEARCH, None), (Variant.QUEUE, cell.overloads[0])):
            runs = [self._find(Planned(number, variant, load, 0, take)) for take in range(2)]
            if runs[0] is not None and runs[1] is not None:
                shares = ", ".join(
                    f"{name} {_share(figure(runs[1].figures), figure(runs[0].figures))}"
                    for name, figure in (("goodput", _goodput), ("TTFT p50", _ttft), ("TPOT p50", _tpot))
                )
                where = "" if load is None else f" at {load:g} C"
                yield f"\nThe same run twice ({variant}{where}), second to first: {shares}"

    def _overload_bar(self, number: int, variant: Variant, load: float) -> Bar:
        promised = PROMISED[variant][load]
        name = f"cell {number}, {load:g} C: {variant} keeps {promised:g} C"
        shares = self.shares(number, variant, load)
        return Bar(name, median(shares) >= promised if len(shares) >= _LEAST_RUNS else None)

    def _calm_bar(self, number: int, load: float) -> Bar:
        name = f"cell {number}, {load:g} C: no loss above {PROMISED_LOSS:.0%} against stock"
        found = [self.ratios(number, load, figure) for figure in _FIGURES]
        if found[0][0].pairs < _LEAST_RUNS:
            return Bar(name, None)
        # Decided by the number of pairs alone, never by what they gave.
        goodput, ttft, tpot = (adjusted if adjusted.pairs >= _ADJUSTED_PAIRS else plain for plain, adjusted in found)
        slowest = 1.0 + PROMISED_LOSS
        return Bar(name, goodput.low >= 1.0 - PROMISED_LOSS and ttft.high <= slowest and tpot.high <= slowest)

    def _fresh(self, number: int, share: float) -> list[float]:
        """Goodput of stock at this share of the search's rate, one per block that has it."""
        runs = [self._find(reference(number, block, share)) for block in range(self._extent.blocks)]
        return [run.figures.goodput_rps for run in runs if run is not None]

    def _find(self, planned: Planned) -> Attempt | None:
        try:
            return self._results.of(planned)
        except (NotMeasuredError, UnsteadyError):
            return None


def _interval(ratio: Interval, digits: int) -> str:
    if math.isnan(ratio.ratio):
        return "-"
    return f"{ratio.ratio:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def _share(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base > 0.0 else "-"
