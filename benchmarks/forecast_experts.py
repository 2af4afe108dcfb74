"""The forecast that is built next to the experts of docs/designs/0009-one-forecast.md, on recorded traffic.

    python benchmarks/forecast_experts.py --data DIR [--days 14]      # DIR holds servegen/ and azure2023/

What is forecast is what sizes are made for: quantiles of the highest smoothed rate within the lead time (120 s, looked
at every 30 s). Each expert's point goes with quantiles of its own last 256 residuals. `mixed` weighs the experts anew
at every look by their recent loss, `mixed with built` has the built forecast among them. Losses are in per cent of the
mean rate, over the days from the eighth on (Azure: from the tenth minute on); ServeGen's rates with Gamma gaps that
deviate by 1.5 means, as in the benchmark's scenarios.

A second table is about longer lead times and needs no arrivals: how far the recorded rates of ServeGen (a mean each ten
minutes) move in 10, 20 and 30 minutes from what they are now, or from what they are now times what this time of the day
made of them before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.arrivals import Arrivals, observe_arrivals
from holdfast.policy.estimate.forecast import REMEMBERED, Residuals, forecast, learn_residuals
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.scenarios.traces import read_rates, read_trace
from holdfast.twin.scenarios.workload import renewals
from tests.builders import traffic

CELL_SECONDS, LEAD_CELLS, SMOOTHED_CELLS = 30.0, 4, 2
LEAD_SECONDS = LEAD_CELLS * CELL_SECONDS
DAY = int(86_400 / CELL_SECONDS)
RECORDS_A_DAY = 144
QUANTILES = (0.5, 0.9, 0.99)
FORGETTING, SHARPNESS = 0.98, 4.0
"""Of the losses that weights come from: what a look leaves of older ones, and the power with which weights fall."""

LEVEL_GAIN, TREND_GAIN = 0.3, 0.05
"""Of Holt's linear method."""


def targets(counts: Floats) -> Floats:
    """Highest rate of two consecutive cells within the lead time after each cell."""
    smoothed = (counts[:-1] + counts[1:]) / (SMOOTHED_CELLS * CELL_SECONDS)
    windows = np.lib.stride_tricks.sliding_window_view(smoothed[1:], LEAD_CELLS - SMOOTHED_CELLS + 1)
    return np.asarray(windows.max(axis=1))


def points(counts: Floats, wanted: Floats) -> dict[str, Floats]:
    """What each expert expects of the targets: the rate now, Holt's line, and what came at this time before."""
    rates = counts / CELL_SECONDS
    found = {"last": rates[: len(wanted)], "holt": _holt(rates)[: len(wanted)]}
    for name, cells in (("yesterday", DAY), ("last week", 7 * DAY)):
        if len(wanted) > cells:
            found[name] = np.concatenate([found["last"][:cells], wanted[:-cells]])
    return found


def _holt(rates: Floats) -> Floats:
    level, trend, ahead = rates[0], 0.0, np.empty(len(rates))
    for place, rate in enumerate(rates):
        before = level
        level = LEVEL_GAIN * rate + (1.0 - LEVEL_GAIN) * (level + trend)
        trend = TREND_GAIN * (level - before) + (1.0 - TREND_GAIN) * trend
        ahead[place] = max(0.0, level + LEAD_CELLS * trend)
    return ahead


def quantiles(point: Floats, wanted: Floats) -> Floats:
    """The expert's point and quantiles of its residuals that are known by then, in roots of its point."""
    scale = np.sqrt(np.maximum(point, 1.0 / CELL_SECONDS))
    residuals, told = (wanted - point) / scale, np.empty((len(point), len(QUANTILES)))
    for now in range(len(point)):
        seen = residuals[max(0, now - LEAD_CELLS - REMEMBERED) : max(0, now - LEAD_CELLS)]
        told[now] = point[now] + scale[now] * (np.quantile(seen, QUANTILES) if len(seen) else 0.0)
    return told


def built(counts: Floats, cells: int) -> Floats:
    """What the policy wants, with the same looks."""
    memory, residuals, told = Arrivals(), Residuals(), np.empty((cells, len(QUANTILES)))
    for now in range(cells):
        count, at = float(counts[now]), 1e6 + CELL_SECONDS * (now + 1)
        memory = observe_arrivals(memory, judge(_counted(count)), count, at, LEAD_SECONDS)
        residuals = learn_residuals(residuals, memory, LEAD_SECONDS)
        for place, quantile in enumerate(QUANTILES):
            found = forecast(memory, residuals, quantile, LEAD_SECONDS, CELL_SECONDS)
            told[now, place] = 0.0 if found is None else found.wanted_rps
    return told


def _counted(count: float) -> Traffic:
    return traffic(count / CELL_SECONDS, seconds=CELL_SECONDS, state=SignalState.FRESH)


def pinball(told: Floats, wanted: Floats) -> Floats:
    """Loss of each quantile at each look, in requests per second."""
    over = wanted[:, None] - told
    return np.asarray(np.maximum(np.array(QUANTILES) * over, (np.array(QUANTILES) - 1.0) * over))


def mixed(told: Mapping[str, Floats], wanted: Floats) -> Floats:
    """The experts' mean, weighed by the loss of what is known by then."""
    stacked = np.stack(list(told.values()))
    losses = np.stack([pinball(each, wanted) for each in told.values()])
    recent, found = np.full(losses.shape[::2], 1e-9), np.empty(losses.shape[1:])
    for now in range(len(wanted)):
        if now > LEAD_CELLS:
            recent = FORGETTING * recent + (1.0 - FORGETTING) * losses[:, now - LEAD_CELLS - 1]
        weights = (recent / recent.min(axis=0)) ** -SHARPNESS
        found[now] = (weights * stacked[:, now]).sum(axis=0) / weights.sum(axis=0)
    return found


def compared(counts: Floats, scored_from: int) -> dict[str, Floats]:
    """Mean loss of each quantile in per cent of the mean rate, by forecaster."""
    wanted = targets(counts)
    experts = {name: quantiles(point, wanted) for name, point in points(counts, wanted).items()}
    ours = built(counts, len(wanted))
    told = {"built": ours, **experts, "mixed": mixed(experts, wanted)}
    told["mixed with built"] = mixed({"built": ours, **experts}, wanted)
    mean = counts[scored_from:].mean() / CELL_SECONDS
    return {name: 100.0 * pinball(each, wanted)[scored_from:].mean(axis=0) / mean for name, each in told.items()}


def production(path: Path, peak_rps: float, days: int) -> Floats:
    """Counts of cells of a ServeGen service, its highest rate scaled to this peak."""
    times, rates = read_rates(path)
    inside = times < days * 86_400.0
    borders = np.append(times[inside], days * 86_400.0)
    rates = rates[inside] * (peak_rps / rates[inside].max())
    expected = np.concatenate([[0.0], np.cumsum(np.diff(borders) * rates)])
    return _cells(renewals(borders, expected, 1.5, np.random.default_rng([1, 0])), days * 86_400.0)


def shapes(rates: Floats, ahead: int) -> dict[str, float]:
    """Mean error of the rate `ahead` records later, in per cent: of its logarithm, by what is expected of it."""
    change = np.log(rates[ahead:] / rates[:-ahead])
    now = np.arange(7 * RECORDS_A_DAY, len(change))
    days = np.stack([change[now - day * RECORDS_A_DAY] for day in range(1, 8)])
    expected = {"as now": 0.0 * change[now], "as yesterday": days[0], "as last week": days[-1]}
    expected["as the median of seven days"] = np.median(days, axis=0)
    return {name: float(100.0 * np.abs(change[now] - point).mean()) for name, point in expected.items()}


def _cells(at: Floats, seconds: float) -> Floats:
    return np.histogram(at, np.arange(0.0, seconds + 1e-9, CELL_SECONDS))[0].astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--days", type=int, default=14, choices=range(9, 15))
    options = parser.parse_args()
    print("| load | forecaster | " + " | ".join(f"pinball loss at {each:g}, %" for each in QUANTILES) + " |")
    print("|---|---|---|---|---|")
    loads = [
        (f"m-{name}", options.data / f"servegen/m-{name}_rate_10min.csv", rps)
        for name, rps in (("large", 24.0), ("small", 3.0))
    ]
    for name, path, peak in loads:
        _print(name, compared(production(path, peak, options.days), 7 * DAY))
    for name in ("conv", "code"):
        at = read_trace(options.data / f"azure2023/AzureLLMInferenceTrace_{name}.csv", "azure").at
        _print(f"azure {name}", compared(_cells(at, float(at[-1])), 20))
    print("\n| load | in so many minutes | expected to move | error, % |\n|---|---|---|---|")
    for name, path, _ in loads:
        _, rates = read_rates(path)
        for ahead in (1, 2, 3):
            for expected, error in shapes(np.maximum(rates, 0.01 * rates.max()), ahead).items():
                print(f"| {name} | {10 * ahead} | {expected} | {error:.1f} |", flush=True)


def _print(load: str, losses: Mapping[str, Floats]) -> None:
    for name, found in losses.items():
        print(f"| {load} | {name} | {' | '.join(f'{loss:.2f}' for loss in found)} |", flush=True)


if __name__ == "__main__":
    main()
