"""Coverage of the forecast quantile: how often the highest smoothed rate within a lead time stays within it.

    python docs/designs/scripts/forecast_coverage.py [--quick]

One look every 15 s at the operator's counting interval (45 s, three scrapes). Each forecast is held against what then
arrived: the highest rate over half the lead time within the next lead time. `in cells`: windows begin once per
interval, as the law learns it. `at any time`: they begin every 5 s. An exact forecast of the quantile q covers the
share q of all looks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.domain.valid_traffic import judge
from holdfast.observe.series.queries import window
from holdfast.policy.estimate.arrivals import Arrivals, observe_arrivals
from holdfast.policy.estimate.cold_start import ColdStarts, lead_seconds
from holdfast.policy.estimate.forecast import Residuals, forecast, learn_residuals, smoothed_seconds
from holdfast.policy.settings import PolicySettings

SLOT_SECONDS, LOOK_SECONDS = 5, 15
TIMING = Timing(tick_seconds=SLOT_SECONDS, scrape_seconds=LOOK_SECONDS)
INTERVAL_SECONDS = round(window(TIMING.tick_seconds, TIMING.scrape_seconds).interval_seconds)
LEAD_SECONDS = lead_seconds(ColdStarts(), TIMING, INTERVAL_SECONDS, PolicySettings())
WARM_UP_SECONDS = 3600
QUANTILES = (0.5, 0.9, 0.99)
BEGIN = 1_000_000.0

Floats = npt.NDArray[np.float64]


def rates(name: str, slots: int) -> Floats:
    """Requests per second of each slot."""
    hours = np.arange(slots) * SLOT_SECONDS / 3600.0
    if name == "constant":
        return np.full(slots, 20.0)
    if name == "day":  # 4 to 20 req/s and back in a day
        return 12.0 - 8.0 * np.cos(2.0 * math.pi * hours / 24.0)
    return 12.0 - 8.0 * np.cos(2.0 * math.pi * hours)  # the same within an hour


def targets(counts: Floats, step_seconds: int) -> Floats:
    """The highest smoothed rate within the lead time after each slot; windows begin every so many seconds."""
    lead, width = round(LEAD_SECONDS) // SLOT_SECONDS, round(smoothed_seconds(INTERVAL_SECONDS, LEAD_SECONDS))
    width //= SLOT_SECONDS
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    smoothed = (sums[width:] - sums[:-width]) / (width * SLOT_SECONDS)  # of the slots [i, i + width)
    windows = np.lib.stride_tricks.sliding_window_view(smoothed, lead - width + 1)
    return windows[:, :: step_seconds // SLOT_SECONDS].max(axis=1)


def forecasts(counts: Floats) -> tuple[list[int], Floats]:
    """The slots at whose ends a forecast was made, and what it said for each quantile."""
    width, slots, rows = INTERVAL_SECONDS // SLOT_SECONDS, [], []
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    memory, residuals = Arrivals(), Residuals()
    for end in range(width, len(counts) - round(LEAD_SECONDS) // SLOT_SECONDS, LOOK_SECONDS // SLOT_SECONDS):
        count, now = float(sums[end] - sums[end - width]), BEGIN + end * SLOT_SECONDS
        traffic = Traffic(SignalState.FRESH, "", float(INTERVAL_SECONDS), 1.0, (("gpu", AcceleratorTraffic(count)),))
        memory = observe_arrivals(memory, judge(traffic), count, now, LEAD_SECONDS)
        residuals = learn_residuals(residuals, memory, LEAD_SECONDS)
        if end * SLOT_SECONDS >= WARM_UP_SECONDS:
            made = [forecast(memory, residuals, q, LEAD_SECONDS, float(INTERVAL_SECONDS)) for q in QUANTILES]
            rows.append([each.wanted_rps for each in made if each is not None])
            slots.append(end)
    return slots, np.array(rows)


def told(values: Floats, digits: int) -> str:
    """Numbers as text."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the coverage of each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two hours only")
    hours = 2 if parser.parse_args(arguments).quick else 48
    slots = hours * 3600 // SLOT_SECONDS
    within = f"within {LEAD_SECONDS:.0f} s, {hours} h"
    print(f"coverage of the maximum {within}, by the quantiles {QUANTILES}; forecast / mean rate")
    for name in ("constant", "day", "hour"):
        for dispersion in (1.0, 2.0):
            random, means = np.random.default_rng(11), rates(name, slots) * SLOT_SECONDS
            shape = means / max(dispersion - 1.0, 1e-9)
            counts = random.poisson(means) if dispersion == 1.0 else random.negative_binomial(shape, 1.0 / dispersion)
            counts = counts.astype(np.float64)
            ends, wanted = forecasts(counts)
            covered = [
                told((targets(counts, step)[ends][:, None] <= wanted + 1e-9).mean(axis=0), 3)
                for step in (INTERVAL_SECONDS, SLOT_SECONDS)
            ]
            size = told(wanted.mean(axis=0) * SLOT_SECONDS / counts[ends[0] :].mean(), 2)
            print(f"  {name}, dispersion {dispersion:g}: {covered[0]} in cells, {covered[1]} at any time; {size}")


if __name__ == "__main__":
    main()
