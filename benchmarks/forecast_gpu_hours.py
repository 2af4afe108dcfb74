"""Would the mixture of forecasts that was asked for at first save GPU-hours? The twin with it instead of the built one.

    python benchmarks/forecast_gpu_hours.py --data DIR [--load NAME ...] [--seeds 5] [--rate 1] [--cut]

Each load is played with the same seeds as the policy is, and with the forecast replaced by a mixture of it, the last
value and Holt's trend; all else is the product's, the error budget's law above all (DIR holds azure2023/ and
servegen/). An expert's headroom is read off what its own points missed, as the built forecast reads its own, but for
the limit that the latter puts on a miss (`--cut` puts it on theirs). What bursts ask for, and what letting go asks for
beyond the quantile, stay the built forecast's.

`told the period` has a season among the experts as well: what came a period ago, the period known from the start, which
no product knows. Seasons of days are not covered: they need weeks. `5 % more` is the policy as it is with all forecasts
5 % higher: what attainment costs without any better forecast, and how far a ratio moves for nothing.

Attainment and GPU-hours are means over the seeds; the ratio of GPU-hours to those of the policy as it is, seed by seed:
geometric mean, lowest and highest; then in how many seeds attainment was no lower. Loss is the mixture's pinball loss,
a share of the built forecast's in the same run, from the tenth minute on; weights are means, in the order built, last,
Holt, season; `looks` are those at which the forecast was asked for, and the share of them where the mixture was off the
built one by more than 1 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.autoscaling.cases import CASES
from benchmarks.forecast_experts import CELL_SECONDS, FORGETTING, LEVEL_GAIN, TREND_GAIN
from benchmarks.other_loads import LOADS, Load, scenario, square
from holdfast.cli.simulate import declare
from holdfast.maths.trend import Cell, highest_rps
from holdfast.policy.estimate import forecast as product
from holdfast.policy.estimate.arrivals import Arrivals, threshold
from holdfast.policy.estimate.forecast import REMEMBERED, Forecast, Residuals, residual_quantile, smoothed_seconds
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

BUILT = product.forecast
FROM_SECONDS = 600.0
MORE = 1.05

SCENARIOS = ("smooth", "step", "spike", "shift", "diurnal-small")
FIVE_OF_FIFTEEN = "3 or 14 req/s, every 15 min five of them"
PERIODS: Mapping[str, float | None] = {
    "another rate every 2 min": None,
    "2 to 24 and back in 30 min": 1800.0,
    "3 or 14 req/s, every 6 min one of them": 360.0,
    FIVE_OF_FIFTEEN: 900.0,
    "2, every 10 min 30 for 20 s": 600.0,
}
"""Loads of other_loads.py and one like them, with the seconds after which they come again."""

OTHERS: Mapping[str, Load] = {**LOADS, FIVE_OF_FIFTEEN: square(3, 14, 900, 300)}

Function = Callable[[Arrivals, Residuals, float, float, float], Forecast | None]


class Expert:
    """Points, and how far what came was above them, in standard deviations of a rate."""

    def __init__(self) -> None:
        self._misses: deque[float] = deque(maxlen=REMEMBERED)

    def see(self, cell: Cell, passed: float) -> None:
        """One more whole cell, `passed` seconds after the one before it."""

    def point(self, demand: Arrivals, lead_seconds: float, interval: float) -> float:
        """The rate expected within the lead time, NaN where there is no telling yet."""
        raise NotImplementedError

    def missed(self, point: float, highest: float, deviation: float, limit: float) -> None:
        """Learn what came."""
        if not math.isnan(point):
            self._misses.append(max(-limit, min(limit, (highest - point) / deviation)))

    def told(self, point: float, noise: float, quantile: float, lead_seconds: float, interval: float) -> float:
        """The point and a quantile of its misses, found as the built forecast finds its own."""
        seconds, count = smoothed_seconds(interval, lead_seconds), len(self._misses)
        known = Residuals(tuple(self._misses), tuple(sorted(self._misses)))
        leads = count * interval / max(lead_seconds, interval)
        above = residual_quantile(known, quantile, lead_seconds / seconds, leads)
        return max(0.0, point + above * product._deviation_rps(point, noise, seconds))


class Last(Expert):
    """The rate of the newest interval."""

    def point(self, demand: Arrivals, lead_seconds: float, interval: float) -> float:
        left, arrivals = interval, 0.0
        for cell in reversed(demand.cells):
            part = min(left, cell.seconds)
            left, arrivals = left - part, arrivals + cell.rate_rps * part
            if left <= 0.0:
                break
        return arrivals / (interval - left)


class Holt(Expert):
    """Holt's linear method, with the gains of forecast_experts.py brought from its cells to these."""

    def __init__(self) -> None:
        super().__init__()
        self._level, self._trend, self._at = math.nan, 0.0, 0.0

    def see(self, cell: Cell, passed: float) -> None:
        before = self._level if self._at else cell.rate_rps
        level, trend = (1.0 - (1.0 - gain) ** (passed / CELL_SECONDS) for gain in (LEVEL_GAIN, TREND_GAIN))
        self._level = level * cell.rate_rps + (1.0 - level) * (before + self._trend * passed)
        self._trend += trend * ((self._level - before) / passed - self._trend)
        self._at = cell.ends_at

    def point(self, demand: Arrivals, lead_seconds: float, interval: float) -> float:
        return max(0.0, self._level + self._trend * (demand.cells[-1].ends_at + lead_seconds - self._at))


class Season(Expert):
    """What came a period ago."""

    def __init__(self, period: float) -> None:
        super().__init__()
        self._period = period
        self._cells: deque[Cell] = deque()

    def see(self, cell: Cell, passed: float) -> None:
        # The cell of an abrupt rise is a whole interval: it takes the place of those it overlaps.
        while self._cells and self._cells[-1].ends_at > cell.ends_at - cell.seconds + 1e-6:
            self._cells.pop()
        self._cells.append(cell)

    def point(self, demand: Arrivals, lead_seconds: float, interval: float) -> float:
        then = demand.cells[-1].ends_at - self._period
        if not self._cells or self._cells[0].ends_at > then:
            return math.nan
        cells = [cell for cell in self._cells if then < cell.middle <= then + lead_seconds]
        return highest_rps(cells, smoothed_seconds(interval, lead_seconds)) if cells else math.nan


class Weights:
    """Exponential weights by losses that are forgotten as in forecast_experts.py.

    Hedge's regret is at most ln K / eta + eta n / 8 for n losses that lie within 1, so that eta = sqrt(8 ln K / n): n
    are the looks remembered, and the unit is the widest that experts lay apart at one of them. `rate` multiplies it.
    """

    def __init__(self, experts: int, rate: float) -> None:
        self._sums, self._span, self._eta, self._rate = np.zeros(experts), 0.0, 0.0, rate

    def add(self, losses: Floats, share: float, interval: float) -> None:
        """The experts' losses at a look that stands for a share of an interval."""
        kept = FORGETTING ** (interval / CELL_SECONDS)
        self._sums = kept**share * self._sums + share * losses
        self._span = max(kept**share * self._span, float(np.ptp(losses)))
        self._eta = self._rate * math.sqrt(8.0 * math.log(len(losses)) * (1.0 - kept))

    @property
    def now(self) -> Floats:
        """The built forecast alone until experts have been judged."""
        if not self._span:
            return np.asarray(np.eye(len(self._sums))[0])
        weights = np.exp(-self._eta * (self._sums - self._sums.min()) / self._span)
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True, slots=True)
class EvidenceWindow:
    """What was told after a whole cell: by the experts, the built forecast first, and last by the mixture."""

    at: float
    share: float
    quantile: float
    points: Sequence[float]
    told: Floats


class Mixture:
    """Takes the place of the built forecast, one service long."""

    def __init__(self, rate: float, cut: bool, period: float | None = None) -> None:
        self._cut = cut
        self._experts = [Last(), Holt(), *([] if period is None else [Season(period)])]
        self._weights = Weights(1 + len(self._experts), rate)
        self._open: deque[EvidenceWindow] = deque()
        self._began = self._at = -math.inf
        self.losses: list[Floats] = []
        self.weights: list[Floats] = []
        self.looks = self.apart = 0

    def forecast(
        self, demand: Arrivals, residuals: Residuals, quantile: float, lead_seconds: float, interval: float
    ) -> Forecast | None:
        """The built forecast with the mixture's quantile in it."""
        built = BUILT(demand, residuals, quantile, lead_seconds, interval)
        if built is None:
            return None
        self.looks += 1
        passed = self._learn(demand, lead_seconds, interval)
        if math.isinf(self._at):
            return built
        points = [expert.point(demand, lead_seconds, interval) for expert in self._experts]
        # Who cannot tell yet says what the built forecast says, and so gains and loses nothing.
        told = [built.wanted_rps] + [
            built.wanted_rps
            if math.isnan(point)
            else expert.told(point, demand.noise, quantile, lead_seconds, interval)
            for expert, point in zip(self._experts, points, strict=True)
        ]
        weights = self._weights.now
        mixed = float(weights @ told)
        if passed:
            self._open.append(
                EvidenceWindow(self._at, min(1.0, passed / interval), quantile, points, np.array([*told, mixed]))
            )
        self.weights.append(weights)
        self.apart += abs(mixed - built.wanted_rps) > 0.01 * built.wanted_rps
        margin, bursts = built.releasable_rps - built.wanted_rps, built.bursts.rate_rps
        return replace(built, wanted_rps=max(mixed, bursts), releasable_rps=max(mixed + margin, bursts))

    def _learn(self, demand: Arrivals, lead_seconds: float, interval: float) -> float:
        """Show the experts what is new; seconds between the newest two whole cells, 0 where nothing is new."""
        if math.isinf(self._began):
            self._began = demand.cells[-1].ends_at
        passed = 0.0
        for cell in demand.cells:
            # Cells that began before the first look hold time in which nobody could come.
            if cell.predicted_rps is None or cell.ends_at <= self._at or cell.ends_at - cell.seconds < self._began:
                continue
            passed = min(cell.seconds, cell.ends_at - self._at)
            self._at = cell.ends_at
            for expert in self._experts:
                expert.see(cell, passed)
            self._judge(demand, lead_seconds, interval)
        return passed

    def _judge(self, demand: Arrivals, lead_seconds: float, interval: float) -> None:
        """What came within the lead time of looks that lie so far back, and what each of the experts lost."""
        seconds = smoothed_seconds(interval, lead_seconds)
        # Without a limit, what is abrupt is these experts' noise.
        limit = threshold(seconds) if self._cut else math.inf
        while self._open and self._open[0].at <= self._at - lead_seconds:
            look = self._open.popleft()
            cells = [cell for cell in demand.cells if cell.middle > look.at and cell.ends_at <= self._at]
            highest = highest_rps(cells, seconds)
            over = highest - look.told
            losses = np.maximum(look.quantile * over, (look.quantile - 1.0) * over)
            self._weights.add(losses[:-1], look.share, interval)
            if look.at >= self._began + FROM_SECONDS:
                self.losses.append(look.share * losses)
            for expert, point in zip(self._experts, look.points, strict=True):
                expert.missed(point, highest, product._deviation_rps(point, demand.noise, seconds), limit)


def more(
    demand: Arrivals, residuals: Residuals, quantile: float, lead_seconds: float, interval: float
) -> Forecast | None:
    """The built forecast, and some per cent more of everything that sizes are made for."""
    built = BUILT(demand, residuals, quantile, lead_seconds, interval)
    if built is None:
        return None
    return replace(built, wanted_rps=MORE * built.wanted_rps, releasable_rps=MORE * built.releasable_rps)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, with the mixture that made its forecasts."""

    attainment: float
    gpu_hours: float
    mixture: Mixture | None = None


def play(played: Scenario, services: Sequence[Declared], seed: int, function: Function) -> Run:
    """One run with these forecasts."""
    with patch.object(product, "forecast", function):  # the policy asks this for its forecasts
        told = summary(simulate(played, services, make_policy("holdfast", {}), seed), 0.0)
    return Run(float(told["attainment"] or 0.0), float(told["gpu_hours"]))


def runs(name: str, data: Path, seed: int, rate: float, cut: bool) -> dict[str, Run]:
    """One seed of a load with each of the forecasts, the built one first."""
    if name in CASES:
        played = CASES[name].scenario()
        services = CASES[name].declared(played, data, seed)
    else:
        played = scenario(name, OTHERS[name], "99%")
        services = [declare(played, entry, Path(), data, seed) for entry in played.services]
    period = PERIODS.get(name)
    mixtures = {"mixed": Mixture(rate, cut)}
    if period is not None:
        mixtures["told the period"] = Mixture(rate, cut, period)
    found = {"as it is": play(played, services, seed, BUILT)}
    for title, mixture in mixtures.items():
        found[title] = replace(play(played, services, seed, mixture.forecast), mixture=mixture)
    found["5 % more"] = play(played, services, seed, more)
    return found


def row(load: str, title: str, ours: Sequence[Run], built: Sequence[Run]) -> str:
    """A line of the table."""
    ratios = [run.gpu_hours / other.gpu_hours for run, other in zip(ours, built, strict=True)]
    kept = sum(run.attainment >= other.attainment for run, other in zip(ours, built, strict=True))
    cells = [load, title, f"{100.0 * fmean(run.attainment for run in ours):.2f}"]
    cells += [f"{fmean(run.gpu_hours for run in ours):.2f}"]
    cells += [f"{geometric_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", f"{kept} of {len(ours)}"]
    return "| " + " | ".join([*cells, *insight([run.mixture for run in ours if run.mixture is not None])]) + " |"


def insight(mixtures: Sequence[Mixture]) -> list[str]:
    """What the mixtures lost, what they consisted of, and whether they were asked and differed."""
    if not mixtures:
        return ["", "", ""]
    losses = np.sum([np.sum(each.losses, axis=0) for each in mixtures], axis=0)
    weights = np.mean([np.mean(each.weights, axis=0) for each in mixtures], axis=0)
    looks = sum(each.looks for each in mixtures)
    apart = sum(each.apart for each in mixtures) / looks
    told = ", ".join(f"{weight:.2f}" for weight in weights)
    return [f"{losses[-1] / losses[0]:.2f}", told, f"{looks / len(mixtures):.0f}, {apart:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--load", action="append", choices=(*SCENARIOS, *PERIODS))
    parser.add_argument("--seeds", type=int, default=5, help="from 1 on")
    parser.add_argument("--rate", type=float, default=1.0, help="times the learning rate that theory has")
    parser.add_argument("--cut", action="store_true", help="cut off the experts' misses at the test for changes")
    options = parser.parse_args()
    print(f"Seeds 1 to {options.seeds}\n")
    print("| load | forecast | attainment, % | GPU-hours | ratio | no lower in | loss | weights | looks |")
    print("|---|---|---|---|---|---|---|---|---|")
    totals: list[float] = []
    for name in options.load or (*SCENARIOS, *PERIODS):
        found = [runs(name, options.data, seed, options.rate, options.cut) for seed in range(1, options.seeds + 1)]
        by_title = {title: [each[title] for each in found] for title in found[0]}
        for title, ours in by_title.items():
            print(row(name, title, ours, by_title["as it is"]), flush=True)
        totals += [each["mixed"].gpu_hours / each["as it is"].gpu_hours for each in found]
    print(f"\nMixed, geometric mean of all ratios: {geometric_mean(totals):.3f}")


if __name__ == "__main__":
    main()
