"""Change detection in the arrival rate: false alarms per day on a constant rate, and the delay on a step.

    python docs/designs/scripts/change_detection.py [--quick]

Counts come from the real code path: one look at the operator's counting interval (45 s, three scrapes). The first table
has eight days of a constant rate, looked at once per interval, per scrape (15 s) and per tick (5 s). Counts are Poisson
(dispersion 1), or negative binomial with twice that variance. The second table is the median and the worst delay from a
step to the first look at which the level has passed the middle between the old and the new rate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.domain.valid_traffic import judge
from holdfast.observe.series.queries import window
from holdfast.policy.estimate.arrivals import FALSE_ALARMS_PER_DAY, Arrivals, observe_arrivals
from holdfast.policy.estimate.cold_start import ColdStarts, lead_seconds
from holdfast.policy.settings import PolicySettings

SLOT_SECONDS, SCRAPE_SECONDS, DAY_SECONDS = 5, 15, 86_400
TIMING = Timing(tick_seconds=SLOT_SECONDS, scrape_seconds=SCRAPE_SECONDS)
INTERVAL_SECONDS = round(window(TIMING.tick_seconds, TIMING.scrape_seconds).interval_seconds)
LEAD_SECONDS = lead_seconds(ColdStarts(), TIMING, INTERVAL_SECONDS, PolicySettings())
BASE_RPS = 20.0
BEGIN = 1_000_000.0

Counts = npt.NDArray[np.float64]


def drawn(rates_rps: Counts, dispersion: float, random: np.random.Generator) -> Counts:
    """Arrivals of each slot with this variance relative to their mean."""
    means = rates_rps * SLOT_SECONDS
    if dispersion <= 1.0:
        return random.poisson(means).astype(np.float64)
    shape = means / (dispersion - 1.0)
    return random.negative_binomial(shape, 1.0 / dispersion).astype(np.float64)


def looked_at(memory: Arrivals, count: float, now: float) -> Arrivals:
    """What is remembered after one more look at the counting interval that ends now."""
    counts = AcceleratorTraffic(finished=count)
    seen = judge(Traffic(SignalState.FRESH, "", float(INTERVAL_SECONDS), 1.0, (("gpu", counts),)))
    return observe_arrivals(memory, seen, count, now, LEAD_SECONDS)


def alarms(counts: Counts, look_seconds: int) -> tuple[int, int, float]:
    """Rises and falls that were seen although nothing changed, and the mean dispersion that was learned.

    One interval rings once.
    """
    memory, rises, falls, last, learned = Arrivals(), 0, 0, -np.inf, []
    width, stride = INTERVAL_SECONDS // SLOT_SECONDS, look_seconds // SLOT_SECONDS
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    for end in range(width, len(sums), stride):
        now = BEGIN + end * SLOT_SECONDS
        new = looked_at(memory, float(sums[end] - sums[end - width]), now)
        began = new.regime < len(new.cells) and new.steady_since > memory.steady_since
        if began and now - last > 2 * INTERVAL_SECONDS and memory.line and new.line:
            rose, last = new.line.level_rps > memory.line.level_rps, now
            rises, falls = rises + rose, falls + (not rose)
        learned.append(new.dispersion)
        memory = new
    return rises, falls, statistics.fmean(learned)


def delay(factor: float, dispersion: float, look_seconds: int, seed: int) -> float | None:
    """Seconds from a step until the level is beyond the middle; None where it is not within ten minutes."""
    before, after = 1800 // SLOT_SECONDS, 600 // SLOT_SECONDS
    rates = np.concatenate([np.full(before, BASE_RPS), np.full(after, factor * BASE_RPS)])
    counts, memory = drawn(rates, dispersion, np.random.default_rng(seed)), Arrivals()
    width, stride, middle = INTERVAL_SECONDS // SLOT_SECONDS, look_seconds // SLOT_SECONDS, 0.5 * (1.0 + factor)
    # The step falls at any time between two looks, as seeds tell.
    for end in range(width + seed % stride, len(counts) + 1, stride):
        memory = looked_at(memory, float(counts[end - width : end].sum()), BEGIN + end * SLOT_SECONDS)
        level = memory.line.level_rps / BASE_RPS if memory.line else 1.0
        if end > before and (level > middle if factor > 1.0 else level < middle):
            return float((end - before) * SLOT_SECONDS)
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an hour and two seeds only")
    quick = parser.parse_args(arguments).quick
    seconds, seeds = (3600, 2) if quick else (8 * DAY_SECONDS, 24)
    days = seconds / DAY_SECONDS
    print(f"constant {BASE_RPS:g} req/s: false alarms per day (the law allows {FALSE_ALARMS_PER_DAY:g})")
    for dispersion in (1.0, 2.0):
        counts = drawn(np.full(seconds // SLOT_SECONDS, BASE_RPS), dispersion, np.random.default_rng(7))
        for look in (INTERVAL_SECONDS, SCRAPE_SECONDS, SLOT_SECONDS):
            rises, falls, learned = alarms(counts, look)
            a_day = f"{rises / days:.1f} rises, {falls / days:.1f} falls"
            print(f"  dispersion {dispersion:g}, a look every {look:2d} s: {a_day}; dispersion learned {learned:.2f}")
    print("step: delay in seconds, median and worst (missed of all)")
    for dispersion in (1.0, 2.0):
        for factor in (1.25, 1.5, 2.0, 3.0, 0.5):
            found = [delay(factor, dispersion, 5, seed) for seed in range(seeds)]
            seen = [each for each in found if each is not None]
            text = f"{statistics.median(seen):.0f}, {max(seen):.0f}" if seen else "none"
            print(
                f"  dispersion {dispersion:g}, to {factor:g} times: {text} ({len(found) - len(seen)} of {len(found)})"
            )


if __name__ == "__main__":
    main()
