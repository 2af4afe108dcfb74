"""The choice of an accelerator as ski rental: what staying and switching cost, against the best choice in hindsight.

    python docs/designs/scripts/switch_cost.py [--quick]

Two accelerators carry the same demand; the one in use costs $8 an hour, the other less. Both run side by side for 155 s
while one takes over. The real code decides every 5 s. Costs count beyond those of the cheaper one: what staying costs
too much, and what running both costs. `once`: the other is cheaper for some time and then never again. `comes and
goes`: it is cheaper for some time, then as dear for one tick, again and again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceSpec
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, believe
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.placement.choice import HYSTERESIS, Choice, choose
from holdfast.policy.placement.options import Option, describe_options
from tests.builders import NOW, accelerator, service, traffic
from tests.policy.fluid import FixedRates

TICK_SECONDS, SWITCH_SECONDS, DEMAND_RPS, USED_DOLLARS = 5.0, 155.0, 10.0, 4.0
GROUPS = (Group("used", size=2, exists=True),)
MODEL = FixedRates({"used": 5.0, "other": 5.0})


def considered(other_dollars: float) -> tuple[ServiceSpec, tuple[Option, ...]]:
    """Both accelerators: each takes two replicas for the demand."""
    used = accelerator("used", cost_per_gpu_hour=USED_DOLLARS)
    other = accelerator("other", cost_per_gpu_hour=other_dollars)
    spec = service().with_accelerators(used, other).with_replicas_between(1, 20).spec
    beliefs = believe(Capacity(), spec, Lengths(), judge(traffic(1.0)), MODEL).beliefs
    return spec, describe_options(spec, beliefs, GROUPS, Backoffs(), Inventory(()), DEMAND_RPS, 1, NOW)


Known = Mapping[bool, tuple[ServiceSpec, tuple[Option, ...]]]


def costs(known: Known, cheaper: Sequence[bool], saving: float, price: float) -> tuple[float, float]:
    """Dollars beyond the cheaper one: as decided, and the best in hindsight, which switches at once or never."""
    choice, paid, stayed = Choice("used", judged_at=NOW), 0.0, 0.0
    for tick, is_cheaper in enumerate(cheaper, start=1):
        step = saving * is_cheaper * TICK_SECONDS / 3600.0
        stayed += step
        if choice.accelerator == "used":
            paid += step
            choice = choose(choice, *known[is_cheaper], GROUPS, SWITCH_SECONDS, NOW + tick * TICK_SECONDS)
            paid += price * (choice.accelerator == "other")
    return paid, min(stayed, price)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the worst ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer lengths and prices")
    quick = parser.parse_args(arguments).quick
    longest, every = (60, 10) if quick else (800, 1)
    print("cost beyond the cheaper accelerator, relative to the best choice in hindsight: the worst of all lengths")
    for share in (0.85,) if quick else (0.25, 0.5, 0.75, 0.85, 0.95):
        dollars = share * USED_DOLLARS
        known = {True: considered(dollars), False: considered(USED_DOLLARS)}
        saving, price = 2.0 * (USED_DOLLARS - dollars), 2.0 * dollars * SWITCH_SECONDS / 3600.0
        ratios = []
        for ticks in range(1, longest + 1, every):
            paid, best = costs(known, [True] * ticks, saving, price)
            ratios.append((paid / best, ticks))
        worst, at = max(ratios)
        breaks = price / saving * 3600.0
        note = "" if share < HYSTERESIS else f": a saving of less than {1.0 - HYSTERESIS:.0%} is never taken"
        print(f"  once, at {share:g} of the price: {worst:.2f} after {at * TICK_SECONDS:.0f} s"
              f" (as dear as a switch after {breaks:.0f} s){note}")  # fmt: skip
        on = max(1, int(breaks / TICK_SECONDS) - 1)
        again = ([True] * on + [False]) * 20
        paid, best = costs(known, again[: 20 * (on + 1)], saving, price)
        print(f"  comes and goes 20 times, {on * TICK_SECONDS:.0f} s each: {paid / best:.2f}")


if __name__ == "__main__":
    main()
