"""What Holdfast's slow loop pays beyond the oracle's GPU-hours, by cause.

    python -m benchmarks.overpaid --data DIR [--scenario NAME ...] [--seed N] [--no-oracle]

One run in the twin, each decision with its explanation. Sizes are made again step by step, from what the true load
needs to what was ordered, and what each step adds is its cause's:

  whole replicas   the true load of the next two minutes in engines at their true capacity, rounded up
  capacity         the same at the capacity that was believed at the time
  level            the believed rate of arrivals in place of the true one
  headroom         trend, quantile and backlog: what was sized for
  letting go       what the estimate may be wrong by, which the fewer must carry as well
  hold             hold time and all other guards
  start and drain  pods that start or drain, beside the sizes that were ordered
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.autoscaling.cases import CASES
from benchmarks.autoscaling.played import replica_seconds
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.decide import decide
from holdfast.policy.estimate.demand import replicas_for
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.pods.cluster import EPOCH_SECONDS
from holdfast.twin.policies import Holdfast
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.oracle import oracle
from holdfast.twin.runs.results import attainment, gpu_hours
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

AHEAD_SECONDS = 120.0
"""About one lead time: over so much of the future the true load is averaged."""


class Recorded(Holdfast):
    """The slow loop, which keeps what it decided."""

    def __init__(self) -> None:
        super().__init__(fast_loop=False)
        self.decisions: list[tuple[float, Decision]] = []

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        """The sizes that change, as the operator would set them."""
        decisions, self._memory = decide(snapshot, self._memory)
        self.decisions += [(snapshot.now - EPOCH_SECONDS, each) for each in decisions]
        return {each.key: Move(each.verdict.targets) for each in decisions if each.verdict.action is not Action.HOLD}


@dataclass(frozen=True, slots=True)
class Truth:
    """Moments at which work arrived in the order of time, and its running sum in seconds of an engine at capacity."""

    at: Floats
    work: Floats
    requests: Floats

    def needed(self, now: float) -> float:
        """Engines that the work of the next `AHEAD_SECONDS` keeps at their capacity."""
        return self._mean(self.work, now)

    def rate_rps(self, now: float) -> float:
        """Requests per second of the next `AHEAD_SECONDS`."""
        return self._mean(self.requests, now)

    def _mean(self, sums: Floats, now: float) -> float:
        end = min(now + AHEAD_SECONDS, float(self.at[-1]))
        first, last = np.interp((end - AHEAD_SECONDS, end), self.at, sums)
        return float(last - first) / AHEAD_SECONDS


def truth(scenario: Scenario, each: Declared) -> Truth:
    """The arrivals of a run, and the work that they are to an engine whose capacity the twin has found."""
    work = replica_seconds(scenario, each)
    return Truth(each.workload.at, np.cumsum(work), np.arange(1.0, len(work) + 1.0))


CAUSES = ("whole replicas", "capacity", "level", "headroom", "letting go", "hold")


def sizes(decision: Decision, now: float, true: Truth, least: int) -> tuple[int, ...]:
    """Replicas for each of the causes and those before it; the last are those that were ordered."""
    ordered = decision.verdict.replicas
    told, level = decision.explanation, decision.slo.arrival_rps
    if decision.capacity is None or told.wanted_replicas is None or level is None:
        return (ordered,) * len(CAUSES)
    rate = decision.capacity.per_replica_rps
    needs = (true.rate_rps(now), level)
    believed = (replicas_for(true.needed(now), 1.0), *(replicas_for(need, rate) for need in needs))
    sized = max(candidate.replicas for candidate in told.candidates if not candidate.lost_because)
    return (*(max(least, size) for size in believed), sized, told.wanted_replicas, ordered)


def paid(decisions: Sequence[tuple[float, Decision]], true: Truth, least: int, end: float) -> Floats:
    """GPU-hours of one GPU per replica, by cause and those before it."""
    hours = np.zeros(len(CAUSES))
    for (now, decision), (then, _) in itertools.pairwise([*decisions, (end, decisions[-1][1])]):
        hours += np.array(sizes(decision, now, true, least)) * (then - now) / 3600.0
    return hours


def attribute(name: str, data: Path, seed: int, with_oracle: bool) -> None:
    """Print the table of one scenario."""
    case = CASES[name]
    scenario = case.scenario()
    declared = case.declared(scenario, data, seed)
    recorded = Recorded()
    finished = simulate(scenario, declared, recorded, seed)
    spec = declared[0].spec
    gpus, total = spec.accelerators[0].gpus_per_replica, gpu_hours(finished)
    hours = gpus * paid(recorded.decisions, truth(scenario, declared[0]), spec.min_replicas, scenario.duration)
    print(f"{name}, seed {seed}: attainment {attainment(finished, finished.services[0]):.2%}, {total:.2f} GPU-hours")
    steps = [*zip(CAUSES, hours, strict=True), ("start and drain", total)]
    before = 0.0
    if with_oracle:
        best = oracle(scenario, declared, seed)
        before = gpu_hours(best)
        print(f"  {'oracle':16} {before:8.2f}          attainment {attainment(best, best.services[0]):.2%}")
    for cause, sum_hours in steps:
        print(f"  {cause:16} {sum_hours:8.2f} {sum_hours - before:+8.2f}")
        before = sum_hours


def main() -> None:
    """Print what is overpaid in each of the scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scenario", action="append", choices=tuple(CASES), help="default: smooth and step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-oracle", action="store_true", help="without the oracle, whose search takes minutes")
    arguments = parser.parse_args()
    for name in arguments.scenario or ("smooth", "step"):
        attribute(name, arguments.data, arguments.seed, not arguments.no_oracle)


if __name__ == "__main__":
    main()
