"""The engine's own step law, fitted while it serves from windows of its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast_engine import leastsquares, steptimes
from holdfast_engine.arithmetic import Law, Mix, linear_seconds
from holdfast_engine.leastsquares import FEATURES, PRIOR_STEPS, PRODUCTS, SHAPE_STEPS, STRATA, TERMS, UNITS

LARGEST_ERROR = 0.5
# The shape of a law where there is no prior: steps that are all alike do not tell what prompts and decodes cost apart.
# An 8B model on an H200; its scale does not matter, see leastsquares.prior_scale.
USUAL_SHAPE = Law(0.005, 2e-5, 2e-5, 3e-8, 1.2e-9)
_NO_LAUNCHES = (0.0, 0.0, 0.0, math.inf)


class StepLawFit:
    """Non-negative least squares over windows of steps, each kind of which keeps its own share of the evidence.

    `law` is None until there is a prior or enough steps; `error` is the root mean square of the share by which the law
    misses the windows. `edge_tokens` are the most for which a CUDA graph was captured.
    """

    def __init__(self, prior: Law | None = None, edge_tokens: float = math.inf) -> None:
        self.error = math.inf
        self.sums = [0.0] * len(TERMS)
        """Of the terms of all steps."""
        self.pending_steps = 0
        """Steps since the last `update`."""
        self.times = [0.0] * steptimes.PLACES
        """A row of steptimes."""
        self._edge_tokens = edge_tokens
        self._prior = prior
        self._measured = False
        self._found: Law | None = prior
        self._strata = [[0.0] * len(PRODUCTS) for _ in range(STRATA)]
        self._lags = [0.0, 0.0]
        self._recent = [0.0] * len(TERMS)
        self._block = [0.0] * len(TERMS)
        self.law = self._with_launches()

    @property
    def confident(self) -> bool:
        """Whether the law comes from this engine's own steps and explains them."""
        return self._measured

    def take_prior(self, prior: Law | None) -> None:
        """Use another prior from the next update on."""
        self._prior = prior
        if not self._measured:
            self._found = prior
            self.law = self._with_launches()

    def observe(self, prefill: float, decodes: float, kv: float, pairs: float, seconds: float) -> None:
        """Add a step to the sums, with the seconds between its results and those of the step before."""
        if not 0.0 < seconds < math.inf:
            return
        self.pending_steps += 1
        block = self._block
        block[0] += 1.0
        block[1] += prefill / UNITS[1]
        block[2] += decodes / UNITS[2]
        block[3] += kv / UNITS[3]
        block[4] += pairs / UNITS[4]
        block[5] += seconds

    def begin(self, now: float) -> None:
        """An idle engine begins a step."""
        steptimes.begin(self.times, now)

    def came(self, step: Sequence[float], ahead: int, replayed: bool, launched_at: float, now: float) -> None:
        """Results of a step came: see steptimes.came; `step` is its prefill, decodes, kv and pairs."""
        prefill, decodes, kv, pairs = step
        terms = (1.0, prefill / UNITS[1], decodes / UNITS[2], kv / UNITS[3], pairs / UNITS[4])
        expected = math.inf if self._found is None else linear_seconds(self._found, prefill, decodes, kv, pairs)
        if steptimes.came(self.times, terms, expected, ahead, replayed, launched_at, now):
            self._learn()

    def update(self) -> None:
        """Fit the law to the windows so far: a small solve, for a few times per second."""
        self.sums = [known + new for known, new in zip(self.sums, self._block, strict=True)]
        keep = leastsquares.kept_share(self._block[0], self.sums[0], leastsquares.MIX_HALF_LIFE_STEPS)
        self._recent = [keep * known + new for known, new in zip(self._recent, self._block, strict=True)]
        self._block = [0.0] * len(TERMS)
        self.pending_steps = 0
        total = [0.0] * len(PRODUCTS)
        leastsquares.total(self._strata, total)
        if leastsquares.enough(total):
            self._fit(total)
        self.law = self._with_launches()

    def mix(self) -> Mix | None:
        """What the recent steps were made of; None before both prefill and decodes were seen."""
        return leastsquares.mix_of(self._recent) if leastsquares.has_mix(self._recent) else None

    def _learn(self) -> None:
        """Add the window that has just closed to its stratum."""
        row, law = self.times, self._found
        terms, seconds = row[steptimes.WINDOW : steptimes.WINDOW_SECONDS], row[steptimes.WINDOW_SECONDS]
        sums = self._strata[leastsquares.stratum_of(row[steptimes.LARGEST_PREFILL], terms[2] / terms[0])]
        weight = 1.0
        if law is not None:
            work = (term * unit for term, unit in zip(terms[1:], UNITS[1:], strict=False))
            expected = law.c0 * (terms[0] - 1.0) + linear_seconds(law, *work)
            seconds = leastsquares.plausible_seconds(seconds, expected, self._measured)
            if self._measured:
                weight = leastsquares.window_weight(seconds, expected)
                self._follow(leastsquares.lag(sums, law, seconds, expected))
        leastsquares.add_window(sums, terms, seconds, weight)

    def _follow(self, lag: float) -> None:
        """Follow the speed of the whole engine: what was learned of steps stays, with other seconds."""
        factor = leastsquares.moved_lag(self._lags, lag)
        if factor != 1.0:
            leastsquares.stretch(self._strata, factor)

    def _fit(self, total: list[float]) -> None:
        rows, scratch = _zeros(), _zeros()
        solution, found = [0.0] * FEATURES, [0.0] * FEATURES
        leastsquares.equations(total, rows)
        prior, steps = self._prior or USUAL_SHAPE, PRIOR_STEPS if self._prior else SHAPE_STEPS
        leastsquares.add_prior(prior, leastsquares.prior_scale(total, prior), steps, rows)
        leastsquares.solve(rows, scratch, [0] * FEATURES, found, solution)
        self.error = leastsquares.unexplained(total, solution)
        self._measured = self.error <= LARGEST_ERROR
        self._found = self._prior
        if self._measured:
            self._found = Law._make(
                [*(found / unit for found, unit in zip(solution, UNITS, strict=False)), *_NO_LAUNCHES]
            )

    def _with_launches(self) -> Law | None:
        """The law, with what launching a step takes."""
        if self._found is None:
            return None
        launches = self.times[steptimes.LAUNCHES : steptimes.LAUNCHES + steptimes.KINDS]
        return Law._make([*self._found[:FEATURES], *launches, self._edge_tokens])


def _zeros() -> list[list[float]]:
    return [[0.0] * len(TERMS) for _ in range(FEATURES)]
