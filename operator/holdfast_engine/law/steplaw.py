"""The engine's own step law, fitted while it serves from windows of its steps.

Non-negative least squares over windows of steps; each kind of window keeps its own share of the evidence. The functions
are compiled by the simulator as they stand, like `leastsquares`: `Rows` are lists here and an array there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast_engine.law import leastsquares, steptimes
from holdfast_engine.law.arithmetic import Law, Mix
from holdfast_engine.law.leastsquares import FEATURES, PRIOR_STEPS, PRODUCTS, SHAPE_STEPS, STRATA, TERMS, UNITS

Rows = Any
"""What an engine's law is found from. First the strata, then the rows that the next line names, each as wide as any."""
TIMES, TOTAL, STEP, SUMS, RECENT, BLOCK, LAGS, PRIOR, LAW, SOLUTION, FOUND, ORDER, STATE = range(STRATA, STRATA + 13)
"""The row of steptimes; the sum of the strata; the terms of the last step, their sums over all steps, over recent ones
and over those since the last fit; the lags, the prior and the law; room to solve equations in; and the state."""
EQUATIONS = STATE + 1
SCRATCH = EQUATIONS + FEATURES
HEIGHT = SCRATCH + FEATURES
WIDTH = max(len(PRODUCTS), steptimes.PLACES)
"""Of the widest row. Compiled code checks no bounds: what stands beyond a row would be written into the next one."""

HAS_PRIOR, HAS_LAW, MEASURED, PENDING, ERROR = range(5)
"""The state: whether there is a prior, a law, and one from the engine's own steps; steps since the last fit; the root
mean square of the share by which the law misses the windows."""

LARGEST_ERROR = 0.5
# The shape of a law where there is no prior: steps that are all alike do not tell what prompts and decodes cost apart.
# An 8B model on an H200; its scale does not matter, see leastsquares.prior_scale.
USUAL_SHAPE = Law(0.005, 2e-5, 2e-5, 3e-8, 1.2e-9)


def rows_of(prior: Law | None, edge_tokens: float) -> list[list[float]]:
    """The rows of an engine that has just started; `edge_tokens` are the most for which a CUDA graph was captured."""
    rows = [[0.0] * WIDTH for _ in range(HEIGHT)]
    rows[LAW][FEATURES + steptimes.KINDS] = edge_tokens
    rows[STATE][ERROR] = math.inf
    take_prior(rows, prior)
    return rows


def take_prior(rows: Rows, prior: Law | None) -> None:
    """Use another prior from the next update on; it is the law as long as none was measured."""
    state = rows[STATE]
    state[HAS_PRIOR] = float(prior is not None)
    rows[PRIOR][:FEATURES] = (prior or USUAL_SHAPE)[:FEATURES]
    if not state[MEASURED]:
        state[HAS_LAW] = state[HAS_PRIOR]
        rows[LAW][:FEATURES] = rows[PRIOR][:FEATURES]


def has_law(rows: Rows) -> bool:
    """Whether there is a prior, or enough steps."""
    return bool(rows[STATE][HAS_LAW] > 0.0)


def law_of(rows: Rows) -> Law:
    """The law of an engine that has one."""
    row = rows[LAW]
    return Law(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8])


def observe(rows: Rows, prefill: float, decodes: float, kv: float, pairs: float, seconds: float) -> bool:
    """Add a step to the sums, with the seconds between its results and those of the step before.

    Returns False for seconds that are none; nothing is added then.
    """
    if not 0.0 < seconds < math.inf:
        return False
    block = rows[BLOCK]
    block[0] += 1.0
    block[1] += prefill / UNITS[1]
    block[2] += decodes / UNITS[2]
    block[3] += kv / UNITS[3]
    block[4] += pairs / UNITS[4]
    block[5] += seconds
    rows[STATE][PENDING] += 1.0
    return True


def came(
    rows: Rows,
    prefill: float,
    decodes: float,
    kv: float,
    pairs: float,
    ahead: int,
    replayed: bool,
    launched_at: float,
    now: float,
    lone: int,
) -> None:
    """Find what the results of a step say of its time: see steptimes.came."""
    terms, law, expected = rows[STEP], rows[LAW], math.inf
    terms[0], terms[1], terms[2] = 1.0, prefill / UNITS[1], decodes / UNITS[2]
    terms[3], terms[4] = kv / UNITS[3], pairs / UNITS[4]
    if rows[STATE][HAS_LAW] > 0.0:
        expected = law[0] + law[1] * prefill + law[2] * decodes + law[3] * kv + law[4] * pairs
    if steptimes.came(rows[TIMES], terms, expected, ahead, replayed, launched_at, now, lone):
        _learn(rows)


def update(rows: Rows) -> None:
    """Fit the law to the windows so far: a small solve, for a few times per second."""
    sums, recent, block, total = rows[SUMS], rows[RECENT], rows[BLOCK], rows[TOTAL]
    keep = leastsquares.kept_share(block[0], sums[0] + block[0], leastsquares.MIX_HALF_LIFE_STEPS)
    for place in range(FEATURES + 1):
        sums[place] += block[place]
        recent[place] = keep * recent[place] + block[place]
        block[place] = 0.0
    rows[STATE][PENDING] = 0.0
    leastsquares.total(rows, total)
    if leastsquares.enough(total):
        _solve(rows)
    for kind in range(steptimes.KINDS):
        rows[LAW][FEATURES + kind] = rows[TIMES][steptimes.LAUNCHES + kind]


def _learn(rows: Rows) -> None:
    """Add the window that has just closed to its stratum."""
    row, state, law = rows[TIMES], rows[STATE], rows[LAW]
    terms, seconds = row[steptimes.WINDOW : steptimes.WINDOW_SECONDS], row[steptimes.WINDOW_SECONDS]
    sums = rows[leastsquares.stratum_of(row[steptimes.LARGEST_PREFILL], terms[2] / terms[0])]
    weight, measured = 1.0, state[MEASURED] > 0.0
    if state[HAS_LAW] > 0.0:
        prefill, decodes, kv, pairs = terms[1] * UNITS[1], terms[2] * UNITS[2], terms[3] * UNITS[3], terms[4] * UNITS[4]
        expected = law[0] + law[1] * prefill + law[2] * decodes + law[3] * kv + law[4] * pairs
        expected = law[0] * (terms[0] - 1.0) + expected
        seconds = leastsquares.plausible_seconds(seconds, expected, measured)
        if measured:
            weight = leastsquares.window_weight(seconds, expected)
            _follow(rows, leastsquares.lag(sums, law, seconds, expected))
    leastsquares.add_window(sums, terms, seconds, weight)


def _follow(rows: Rows, lag: float) -> None:
    """Follow the speed of the whole engine: what was learned of steps stays, with other seconds."""
    factor = leastsquares.moved_lag(rows[LAGS], lag)
    if factor != 1.0:
        leastsquares.stretch(rows, factor)


def _solve(rows: Rows) -> None:
    total, prior, law, state, solution = rows[TOTAL], rows[PRIOR], rows[LAW], rows[STATE], rows[SOLUTION]
    equations, scratch = rows[EQUATIONS:SCRATCH], rows[SCRATCH:HEIGHT]
    leastsquares.equations(total, equations)
    steps = PRIOR_STEPS if state[HAS_PRIOR] > 0.0 else SHAPE_STEPS
    leastsquares.add_prior(prior, leastsquares.prior_scale(total, prior), steps, equations)
    leastsquares.solve(equations, scratch, rows[ORDER], rows[FOUND], solution)
    state[ERROR] = leastsquares.unexplained(total, solution)
    measured = state[ERROR] <= LARGEST_ERROR
    state[MEASURED] = 1.0 if measured else 0.0
    state[HAS_LAW] = max(state[MEASURED], state[HAS_PRIOR])
    for place in range(FEATURES):
        law[place] = solution[place] / UNITS[place] if measured else prior[place]


class StepLawFit:
    """The rows of an engine, and the law that follows from them; it is None until there is a prior or enough steps."""

    def __init__(self, prior: Law | None = None, edge_tokens: float = math.inf) -> None:
        self.rows = rows_of(prior, edge_tokens)
        self.law = self._law()

    @property
    def error(self) -> float:
        """Root mean square of the share by which the law misses the windows; infinite before there is one."""
        return self.rows[STATE][ERROR]

    @property
    def sums(self) -> list[float]:
        """Of the terms of all steps up to the last update."""
        return self.rows[SUMS][: len(TERMS)]

    @property
    def pending_steps(self) -> float:
        """Steps since the last `update`."""
        return self.rows[STATE][PENDING]

    @property
    def confident(self) -> bool:
        """Whether the law comes from this engine's own steps and explains them."""
        return self.rows[STATE][MEASURED] > 0.0

    def take_prior(self, prior: Law | None) -> None:
        """Use another prior from the next update on."""
        take_prior(self.rows, prior)
        self.law = self._law()

    def observe(self, prefill: float, decodes: float, kv: float, pairs: float, seconds: float) -> None:
        """Add a step to the sums."""
        observe(self.rows, prefill, decodes, kv, pairs, seconds)

    def begin(self, now: float) -> None:
        """An idle engine begins a step."""
        steptimes.begin(self.rows[TIMES], now)

    def came(
        self, step: Sequence[float], ahead: int, replayed: bool, launched_at: float, now: float, lone: int = -1
    ) -> None:
        """Results of a step came; `step` is its prefill, decodes, kv and pairs."""
        prefill, decodes, kv, pairs = step
        came(self.rows, prefill, decodes, kv, pairs, ahead, replayed, launched_at, now, lone)

    def update(self) -> None:
        """Fit the law to the windows so far."""
        update(self.rows)
        self.law = self._law()

    def mix(self) -> Mix | None:
        """What the recent steps were made of; None before both prefill and decodes were seen."""
        recent = self.rows[RECENT]
        return leastsquares.mix_of(recent) if leastsquares.has_mix(recent) else None

    def _law(self) -> Law | None:
        return law_of(self.rows) if has_law(self.rows) else None
