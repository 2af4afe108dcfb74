"""How long one tick of decisions takes: N services with noisy load, on one core.

Engines are scraped every 15 s at their own moments, decisions fall every 5 s, as in a real cluster. The collector has
the settings that the operator gives it.

.venv/bin/python benchmarks/decide_speed.py [--services 1000] [--ticks 60] [--different] [--profile] [--check]

With --different no two services have the same objectives or the same lengths, so that the engine model can share no
answer between them. --check fails where the p99 of the ticks after the first takes more than a second of CPU, which is
what 5,000 services may take.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.runtime.memory import settle
from tests.builders import (
    H100,
    L40S,
    NOW,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    replicas,
    service,
    traffic,
)

TICK_SECONDS, SCRAPE_SECONDS, INTERVAL_SECONDS = 5.0, 15.0, 30.0
MOST_SECONDS = 1.0


class Fleet:
    """Services with their own constant rates, seen through Poisson noise and scraped each at its own moment."""

    def __init__(self, services: int, seed: int, different: bool, each: int = 4) -> None:
        self.chance = random.Random(seed)
        self.names = [service(f"s{index:05}").with_accelerators(H100, L40S) for index in range(services)]
        self.lengths = [(PROMPT_TOKENS, OUTPUT_TOKENS) for _ in self.names]
        if different:
            self.names = [self._objectives(name) for name in self.names]
            self.lengths = [(self._about(PROMPT_TOKENS), self._about(OUTPUT_TOKENS)) for _ in self.names]
        self.rates = [self.chance.uniform(0.5, 40.0) for _ in self.names]
        self.offsets = [self.chance.uniform(0.0, SCRAPE_SECONDS) for _ in self.names]
        self.pods = [replicas(each) for _ in self.names]
        self.shown = [self._counted(index) for index in range(services)]

    def snapshot(self, passed: float) -> Snapshot:
        """What is seen after that many seconds."""
        for index, offset in enumerate(self.offsets):
            if (passed + offset) % SCRAPE_SECONDS < TICK_SECONDS:
                self.shown[index] = self._counted(index)
        views = (ServiceView(name, self.shown[i], self.pods[i]) for i, name in enumerate(self.names))
        return a_snapshot(*views, now=NOW + passed, tick=TICK_SECONDS, scrape=SCRAPE_SECONDS)

    def apply(self, decisions: Sequence[Decision]) -> None:
        """Give every service the size that was decided, at once."""
        for decision in decisions:
            if decision.verdict.action is not Action.HOLD:
                self.pods[int(decision.key.name[1:])] = replicas(decision.verdict.replicas)

    def _counted(self, index: int) -> Traffic:
        mean = self.rates[index] * INTERVAL_SECONDS
        count = max(0.0, self.chance.gauss(mean, mean**0.5))
        prompt, output = self.lengths[index]
        sums = {"prompt_length_sum": count * prompt, "output_length_sum": count * output}
        return traffic(count / INTERVAL_SECONDS, seconds=INTERVAL_SECONDS, **sums)

    def _objectives(self, one: ServiceBuilder) -> ServiceBuilder:
        return one.with_ttft(self.chance.uniform(0.3, 3.0)).with_tpot(self.chance.uniform(0.03, 0.2))

    def _about(self, tokens: float) -> float:
        return tokens * 4.0 ** self.chance.uniform(-1.0, 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--different", action="store_true", help="no two services alike")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--check", action="store_true", help="fail where ticks take too long")
    options = parser.parse_args()
    profile, memory, seconds = cProfile.Profile(), Memory(), []
    fleet = Fleet(options.services, options.seed, options.different)
    settle()
    for tick in range(options.ticks):
        look = fleet.snapshot(tick * TICK_SECONDS)
        if options.profile:
            profile.enable()
        began = time.process_time()
        decisions, memory = decide(look, memory)
        seconds.append(time.process_time() - began)
        profile.disable()
        fleet.apply(decisions)
    warm = sorted(seconds[1:])
    running = sum(map(len, fleet.pods))
    undecided = sum(not memory.services[name.spec.key].last for name in fleet.names)
    print(f"{options.services} services ({undecided} undecided), {running} replicas, {options.ticks} ticks", end=", ")
    print("CPU milliseconds per tick")
    print(f"first {seconds[0] * 1e3:.0f}   median {statistics.median(warm) * 1e3:.0f}", end="   ")
    p99 = warm[int(0.99 * (len(warm) - 1))]
    print(f"p99 {p99 * 1e3:.0f}   worst {warm[-1] * 1e3:.0f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    return int(options.check and p99 > MOST_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
