"""What a restart of the operator does to sizes and requests, with and without what Prometheus and status remember.

    python benchmarks/restart.py [--seeds 3]

The fluid cluster of the policy's tests (`tests/policy/fluid.py`): 4 req/s per replica by the engine model, 99 % asked
for. Each load runs for some hours; then the operator is started anew, at several moments, and the next half hour
counts. `kept` remembers what Prometheus and status tell (docs/designs/0015-restart.md), `history` what Prometheus
tells alone, `forgotten` nothing; `none` is not restarted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.snapshot import Recalled
from tests.builders import service
from tests.policy.fluid import FluidCluster

AFTER_SECONDS = 1800
MOMENTS = (0, 17, 50, 110, 170, 215)
"""Seconds: at which phase of a load that repeats itself every 240 s the operator is started anew."""


class Load(NamedTuple):
    """A rate by second; replicas carry `slack` times what the engine model says before their queue grows."""

    rate: Callable[[float], float]
    slack: float
    hours: float


LOADS = {
    "40 req/s, replicas carry half more": Load(lambda second: 40.0, 1.9, 4.0),
    "40 req/s, replicas carry a quarter less": Load(lambda second: 40.0, 0.95, 4.0),
    "2 req/s, every 4 min 30 for 25 s": Load(lambda second: 30.0 if second % 240 < 25 else 2.0, 1.25, 2.0),
    "10 to 50 req/s and back, in 2 h": Load(lambda second: 10.0 + 40.0 * abs(second % 7200 / 3600 - 1.0), 1.25, 3.0),
}


class Outcome(NamedTuple):
    """Attainment in %, GPU-hours, and the replicas before the restart and ten seconds after."""

    attainment: float
    gpu_hours: float
    before: int
    after: int


def played(load: Load, restart: str, moment: int, seed: int) -> Outcome:
    """Run the load, restart the operator, and tell of the half hour after."""
    cluster = FluidCluster(
        service("chat").with_replicas_between(1, 40), load.rate, {"h100": 4.0}, seed, slack=load.slack
    )
    begin = round(load.hours * 3600) + moment
    cluster.run(begin - begin % 5)
    before, since, hours = cluster.replicas(), cluster.clock, 0.0
    if restart != "none":
        cluster.restart_operator(remembered=restart != "forgotten")
    if restart == "history":
        cluster.recalled = Recalled(cluster.recalled.cold_start_seconds)
    after = cluster.run(10).replicas()
    while cluster.clock < since + AFTER_SECONDS:
        hours += len(cluster.pods) * cluster.tick / 3600.0
        cluster.run(cluster.tick)
    return Outcome(100.0 * cluster.attainment(since, since + AFTER_SECONDS), hours, before, after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| load | restart | attainment, %: median, worst | GPU-hours | replicas before, 10 s after |")
    print("|---|---|---|---|---|")
    for name, load in LOADS.items():
        for restart in ("none", "kept", "history", "forgotten"):
            runs = [played(load, restart, moment, seed) for seed in range(options.seeds) for moment in MOMENTS]
            good, hours = [run.attainment for run in runs], statistics.median(run.gpu_hours for run in runs)
            sizes = statistics.median(run.before for run in runs), statistics.median(run.after for run in runs)
            print(
                f"| {name} | {restart} | {statistics.median(good):.2f}, {min(good):.2f} | {hours:.2f} "
                f"| {sizes[0]:g}, {sizes[1]:g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
