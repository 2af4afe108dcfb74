"""The correction of a believed capacity: how many looks of a minute until it is within 5 % of the truth.

    python docs/designs/scripts/capacity_correction.py [--quick]

The engine model says 4 req/s. `slower` engines take so many times as long for every step, which the plugin measures.
`kept` engines have so many times the believed load and keep the objective; `missed` ones have that share of it and do
not. Last, how often chance alone lowers a belief that is right: engines at nine tenths of it, with as many bad requests
as the objective allows on average.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast.domain.engine import StepSums
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, Correction, believe, correct
from holdfast.policy.estimate.slo_budget import Verdicts
from holdfast.policy.estimate.traffic import judge
from tests.builders import accelerator, service, traffic
from tests.policy.fluid import FixedRates

SECONDS, CLOSE, LONGEST = 60.0, 0.05, 100
SPEC = service().with_accelerators(accelerator("gpu")).with_objective(0.99).spec


class Model(FixedRates):
    """Says 4 req/s, and 10 ms for every step."""

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        return 0.01 * steps.steps


MODEL = Model({"gpu": 4.0})


def believed() -> Capacity:
    """The belief before anything was observed."""
    return believe(Capacity(), SPEC, Lengths(), judge(traffic(1.0)), MODEL)


def after_look(capacity: Capacity, rate_rps: float, bad: float, slower: float = 1.0) -> Capacity:
    """The belief after ten replicas had this load each for a minute, and this many requests were bad."""
    requests = 10.0 * rate_rps * SECONDS
    look = EvidenceWindow(
        since=0.0,
        arrivals=requests,
        begun=requests,
        replica_seconds=10.0 * SECONDS,
        verdicts=Verdicts(requests - bad, bad),
    )
    return correct(capacity, look, "gpu", MODEL, StepSums(steps=1000.0, seconds=10.0 * slower))


def correction(capacity: Capacity) -> Correction:
    """What was learned."""
    return capacity.beliefs[0].correction


def looks(slower: float, load: float, bad_share: float, truth: float) -> int:
    """Looks until slowness or gain is close to the truth."""
    capacity = believed()
    for number in range(1, LONGEST + 1):
        rate = 4.0 * load
        capacity = after_look(capacity, rate, 10.0 * rate * SECONDS * bad_share, slower)
        learned = correction(capacity)
        if abs((learned.slowness if slower != 1.0 else learned.gain) / truth - 1.0) <= CLOSE:
            return number
    return LONGEST


def lowered_by_chance(minutes: int, clump: float) -> tuple[float, float]:
    """How often a look lowers a right belief, and the gain in the end; bad requests come in clumps of that size."""
    random, capacity, lowered = np.random.default_rng(2), believed(), 0
    rate = 0.9 * 4.0
    allowed = 10.0 * rate * SECONDS * SPEC.slo.budget_share
    for _ in range(minutes):
        before = correction(capacity).gain
        capacity = after_look(capacity, rate, clump * float(random.poisson(allowed / clump)))
        lowered += correction(capacity).gain < before
    return lowered / minutes, correction(capacity).gain


def main(arguments: Sequence[str] | None = None) -> None:
    """Print looks until the belief is right, and chance's share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an hour of chance only")
    minutes = 60 if parser.parse_args(arguments).quick else 20_000
    for slower in (0.8, 1.3, 1.8):
        print(f"slower {slower:g}: {looks(slower, 0.5, 0.0, slower)} looks")
    for load in (1.1, 1.3):
        print(f"kept at {load:g} of the belief: {looks(1.0, load, 0.0, load)} looks")
    for load in (0.9, 0.7):
        print(f"missed at {load:g} of the belief: {looks(1.0, load, 0.1, load)} looks")
    for clump in (1.0, 5.0):
        share, gain = lowered_by_chance(minutes, clump)
        print(f"chance alone, bad requests {clump:g} at a time: lowered in {share:.2%} of looks, gain {gain:.3f}")


if __name__ == "__main__":
    main()
