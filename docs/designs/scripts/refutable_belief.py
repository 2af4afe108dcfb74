"""A belief about capacity that observation can refute: how far priors are off, and how fast evidence moves it.

    python docs/designs/scripts/refutable_belief.py

First the ratio of capacities by measured step tables to those by data sheets (the roofline), for all shipped tables of
known models: 1,155 prompt and 211 output tokens on average, 99 % within TTFT 2 s and TPOT 100 ms. Then the belief of
note 0021 on synthetic evidence, one window per minute: minutes until the belief first is within 10 % of the truth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import ACCELERATORS, find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.fit import fit_law
from holdfast.enginemodel.host import usual_host
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import IMPLAUSIBLE_FACTOR, default_max_num_batched_tokens, default_max_num_seqs
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steptable import step_tables
from holdfast.enginemodel.working import working_point

MIX = LengthMix.from_means(1155, 211, prompt_cv=1.1, output_cv=0.8)
SLO = Slo(2.0, 0.1, 0.99, 3600.0)
KV_TOKENS = 100_000
NORMAL = NormalDist()
DEVIATIONS = {"step times": 0.05, "saturated": 0.15}
"""Of the logarithm: steps that the plugin sums up, and the rate at which a saturated replica ends requests."""

REFUTED = 2.58
"""Standard deviations: 99 % of what is predicted lies within."""


def capacity_ratios() -> Iterator[float]:
    """Logarithms of the measured capacity over the one of the data sheet, where both carry anything."""
    for (name, system, gpus), table in step_tables().items():
        model = find_model(name)
        accelerator = next((shape for _, shape in ACCELERATORS if shape.system == system), None)
        if model is None or accelerator is None:
            continue
        law, host = roofline_law(model, accelerator, gpus), usual_host(model.layers)
        if table.step_seconds((), 1, 512.0) > IMPLAUSIBLE_FACTOR * law.step_seconds((), 1, 512.0):
            continue
        limits = BatchLimits(default_max_num_seqs(accelerator), default_max_num_batched_tokens(accelerator))
        pairs = ((table, fit_law(table)), (law, law))
        rates = [
            working_point(EngineTimer(gpu, host), MIX, limits, KV_TOKENS, SLO, start=start).capacity.rate_rps
            for gpu, start in pairs
        ]
        if min(rates) > 0.0:
            yield math.log(rates[0] / rates[1])


@dataclass
class Belief:
    """Normal belief about x = log(capacity / prior's), one piece of evidence per window."""

    mean: float
    variance: float
    widest: float = 2.0**2
    drift: float = 0.03**2

    def measure(self, seen: float, deviation: float) -> None:
        """A measurement of x itself; one that is not believable makes the belief start anew."""
        self._forget()
        if abs(seen - self.mean) > REFUTED * math.sqrt(self.variance + deviation**2):
            self.variance = self.widest
        gain = self.variance / (self.variance + deviation**2)
        self.mean += gain * (seen - self.mean)
        self.variance *= 1.0 - gain

    def at_least(self, bound: float, deviation: float) -> None:
        """That load was carried well: x is at least so much (censored from above)."""
        self._censor(1.0, bound, deviation)

    def at_most(self, bound: float, deviation: float) -> None:
        """That load was not carried well: x is at most so much."""
        self._censor(-1.0, bound, deviation)

    def _censor(self, sign: float, bound: float, deviation: float) -> None:
        self._forget()
        spread = math.sqrt(self.variance + deviation**2)
        z = sign * (self.mean - bound) / spread
        if z < -REFUTED:
            self.variance = self.widest
            spread = math.sqrt(self.variance + deviation**2)
            z = sign * (self.mean - bound) / spread
        hazard = NORMAL.pdf(z) / max(NORMAL.cdf(z), 1e-300)
        self.mean += sign * self.variance / spread * hazard
        self.variance *= 1.0 - self.variance / spread**2 * hazard * (hazard + z)

    def _forget(self) -> None:
        self.variance = min(self.variance + self.drift, self.widest)


def minutes_to_truth(kind: str, prior_deviation: float, truth: float, seed: int) -> int:
    """Windows until the mean is within 10 % of the truth; 60 where it never is."""
    draw, belief = random.Random(seed), Belief(0.0, prior_deviation**2)
    for minute in range(1, 61):
        if kind in DEVIATIONS:
            belief.measure(truth + draw.gauss(0.0, DEVIATIONS[kind]), DEVIATIONS[kind])
        else:  # the service is sized by the belief, and a window says whether its load was carried
            load = belief.mean + draw.gauss(0.0, 0.05)
            (belief.at_least if load < truth else belief.at_most)(load, 0.05)
        if abs(belief.mean - truth) < math.log(1.1):
            return minute
    return 60


def main() -> None:
    ratios = np.array(list(capacity_ratios()))
    low, middle, high = np.exp(np.percentile(ratios, (5, 50, 95)))
    print(
        f"{len(ratios)} tables: measured capacity is {middle:.2f} times the data sheet's, 90 % {low:.2f} to {high:.2f}"
    )
    inside = float(np.mean(np.abs(ratios) < 1.645 * 0.35))
    print(f"a deviation of 0.35 of the logarithm covers {inside:.0%} with its 90 % interval")
    print("| prior's deviation | truth / prior | step times | saturated | good or bad alone |\n|---|---|---|---|---|")
    for deviation in (0.15, 0.35, 1.2):
        for factor in (1.3, 1 / 4, 1 / 20, 4.0):
            found = [
                median(minutes_to_truth(kind, deviation, math.log(factor), seed) for seed in range(50))
                for kind in (*DEVIATIONS, "good or bad")
            ]
            print(f"| {deviation:g} | {factor:.3g} | {found[0]:g} min | {found[1]:g} min | {found[2]:g} min |")


if __name__ == "__main__":
    main()
