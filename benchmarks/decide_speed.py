"""How long one tick of decisions takes: N services with noisy load, four replicas each, on one core.

Engines are scraped every 15 s at their own moments, decisions fall every 5 s, as in a real cluster.

.venv/bin/python benchmarks/decide_speed.py [--services 1000] [--ticks 60] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import H100, L40S, NOW, ServiceView, a_snapshot, replicas, service, traffic

TICK_SECONDS, SCRAPE_SECONDS, INTERVAL_SECONDS = 5.0, 15.0, 30.0
REPLICAS = 4


def snapshots(services: int, ticks: int, seed: int) -> Iterator[Snapshot]:
    """Every service has its own constant rate, seen through Poisson noise, and its own moment of being scraped."""
    chance = random.Random(seed)
    names = [service(f"s{index}").with_accelerators(H100, L40S) for index in range(services)]
    rates = [chance.uniform(0.5, 40.0) for _ in names]
    offsets = [chance.uniform(0.0, SCRAPE_SECONDS) for _ in names]
    pods = [replicas(REPLICAS) for _ in names]
    shown = [_counted(rate, chance) for rate in rates]
    for tick in range(ticks):
        passed = tick * TICK_SECONDS
        for index, rate in enumerate(rates):
            if (passed + offsets[index]) % SCRAPE_SECONDS < TICK_SECONDS:
                shown[index] = _counted(rate, chance)
        views = (ServiceView(names[index], shown[index], pods[index]) for index in range(services))
        yield a_snapshot(*views, now=NOW + passed, tick=TICK_SECONDS, scrape=SCRAPE_SECONDS)


def _counted(rate: float, chance: random.Random) -> Traffic:
    mean = rate * INTERVAL_SECONDS
    count = max(0.0, chance.gauss(mean, mean**0.5)) / INTERVAL_SECONDS
    return traffic(count, seconds=INTERVAL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    profile, memory, seconds = cProfile.Profile(), Memory(), []
    for look in snapshots(options.services, options.ticks, options.seed):
        if options.profile:
            profile.enable()
        began = time.process_time()
        _, memory = decide(look, memory)
        seconds.append(time.process_time() - began)
        profile.disable()
    warm = sorted(seconds[1:])
    print(f"{options.services} services, {options.ticks} ticks, CPU milliseconds per tick")
    print(f"first {seconds[0] * 1e3:.0f}   median {statistics.median(warm) * 1e3:.0f}", end="   ")
    print(f"p99 {warm[int(0.99 * (len(warm) - 1))] * 1e3:.0f}   worst {warm[-1] * 1e3:.0f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
