"""The headroom law in a closed loop: where the quantile settles, what share of the budget it spends, and anti-windup.

    python docs/designs/scripts/headroom_law.py [--quick]

Verdicts go through the real budget, and the real law moves the quantile q. The plant is the simplest one with the right
sign: a lead time of 125 s needs more than was provided with the chance 1 - q, and a fifth of its requests is then bad.
So the bad share is 0.2 (1 - q). The window is a day, the load 10 req/s, one step every 125 s.

The second table has a capacity limit for three hours: 30 % of the requests are bad whatever q is.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence

from holdfast.domain.service import Slo
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.class_budgets import ClassState
from holdfast.policy.estimate.headroom import FIRST, Headroom, follow
from holdfast.policy.estimate.slo_budget import Budget, account, slo_state

WINDOW_SECONDS, STEP_SECONDS, RATE_RPS, SHORT_SHARE, LIMITED_SHARE = 86_400.0, 125.0, 10.0, 0.2, 0.3
BEGIN = 1_000_000.0

Limited = Callable[[float], bool]


class Loop:
    """Budget, law and plant; `limited` says when capacity is short, `guarded` whether the law is told."""

    def __init__(self, objective: float, seed: int, limited: Limited, guarded: bool) -> None:
        self.slo = Slo(ttft_seconds=2.0, tpot_seconds=0.1, objective=objective, window_seconds=WINDOW_SECONDS)
        self.chance, self.limited, self.guarded = random.Random(seed), limited, guarded
        self.budget, self.headroom, self.seconds = Budget(), Headroom(), 0.0
        self.requests = self.bad = 0.0

    def step(self) -> None:
        """Let one lead time pass."""
        short = self.limited(self.seconds)
        self.seconds += STEP_SECONDS
        share = LIMITED_SHARE if short else SHORT_SHARE * (self.chance.random() > self.headroom.sizing)
        count = RATE_RPS * STEP_SECONDS
        traffic = AcceleratorTraffic(
            finished=count, ttft_count=count, ttft_within=count * (1.0 - share), tpot_count=count, tpot_within=count
        )
        seen = judge(Traffic(SignalState.FRESH, "", STEP_SECONDS, 1.0, (("gpu", traffic),)))
        now = BEGIN + self.seconds
        self.budget = account(self.budget, seen, self.slo, now)
        judged = ClassState(self.slo, self.budget, slo_state(self.budget, self.slo, now))
        self.headroom = follow(self.headroom, (judged,), RATE_RPS, False, short=short and self.guarded)
        self.requests, self.bad = self.requests + count, self.bad + count * share

    def run(self, windows: float) -> Loop:
        """Let so many windows pass."""
        end = self.seconds + windows * WINDOW_SECONDS
        while self.seconds < end:
            self.step()
        return self

    def counted_from_now(self) -> Loop:
        """Forget what was counted, not what was learned."""
        self.requests = self.bad = 0.0
        return self


def converged(objective: float, settle: float, windows: float) -> tuple[float, float]:
    """The quantile at which the law stays, and the share of the budget that it spends there."""
    loop = Loop(objective, 3, lambda seconds: False, True).run(settle).counted_from_now()
    quantiles = []
    end = loop.seconds + windows * WINDOW_SECONDS
    while loop.seconds < end:
        loop.step()
        quantiles.append(loop.headroom.quantile)
    return sum(quantiles) / len(quantiles), loop.bad / loop.requests / loop.slo.budget_share


def after_limit(guarded: bool, settle: float) -> tuple[float, float, float]:
    """The quantile before a capacity limit, after it, and a day and a half later."""
    begin = settle * WINDOW_SECONDS
    loop = Loop(0.99, 3, lambda seconds: begin <= seconds < begin + 3 * 3600.0, guarded).run(settle)
    before = loop.headroom.quantile
    after = loop.run(3 * 3600.0 / WINDOW_SECONDS).headroom.quantile
    return before, after, loop.run(1.5).headroom.quantile


def main(arguments: Sequence[str] | None = None) -> None:
    """Print where the law settles, and what a limit does to it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer windows")
    settle, windows = (1.0, 1.0) if parser.parse_args(arguments).quick else (10.0, 40.0)
    print(f"q begins at {FIRST:g}; after {settle:g} windows, over {windows:g}: mean q, share of the budget spent")
    for objective in (0.9, 0.95, 0.99, 0.999):
        quantile, spent = converged(objective, settle, windows)
        fixed_point = max(0.05, 1.0 - 2.0 / 3.0 * (1.0 - objective) / SHORT_SHARE)
        print(f"  objective {objective:g}: q {quantile:.3f} (fixed point {fixed_point:.3f}), spent {spent:.2f}")
    print("a capacity limit of 3 h at 99 %: q before, after, and 1.5 windows later")
    for name, guarded in (("with anti-windup", True), ("without", False)):
        print(f"  {name}: " + ", ".join(f"{each:.4f}" for each in after_limit(guarded, settle)))


if __name__ == "__main__":
    main()
