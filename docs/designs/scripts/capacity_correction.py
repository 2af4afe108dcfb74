"""What is believed of a capacity after evidence: minutes until it is within a tenth of the truth, and chance's share.

    python docs/designs/scripts/capacity_correction.py [--quick]

The engine model says 4 req/s, 10 ms for a step and 0.1 s of work for a request. Engines are so many times slower or
faster. The evidence of a minute is one of: steps that plugins sum up; TPOT; the rate at which saturated replicas begin
requests; a load above the belief that was kept, or one below it that was missed. Last, how often chance alone lowers a
belief that is right: engines at nine tenths of it, with as many bad requests as the objective allows on average.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast.domain.engine import StepSums
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import DEVIATION, PriorSource
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.policy.estimate.capacity_evidence import StepEvidence, measure_steps, observe_load, observe_saturation
from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Belief, Capacity, believe
from holdfast.policy.estimate.slo_budget import Verdicts
from tests.builders import accelerator, service, traffic
from tests.policy.fluid import FixedRates

SECONDS, CLOSE, LONGEST, RPS = 60.0, 0.1, 100, 4.0
STEP_SECONDS, WORK_SECONDS = 0.01, 0.1
NOISE = {"steps": 0.03, "tpot": 0.1, "saturated": 0.15}
"""Of the logarithm of what a minute measures."""

SPEC = service().with_accelerators(accelerator("gpu")).with_objective(0.99).spec


@dataclass(frozen=True)
class Model(FixedRates):
    """Says 4 req/s at the prior's steps, and a law of two terms."""

    deviation: float = DEVIATION[PriorSource.TABLE]

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        return ReplicaRate(RPS / slowness, "TPOT", True, 0.8, deviation=self.deviation)

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw:
        return StepLaw(STEP_SECONDS, WORK_SECONDS / mix.computed_tokens, 0.0, 0.0, 0.0)


Evidence = Callable[[Capacity, Model, float, np.random.Generator], Capacity]


def believed(model: Model, memory: Capacity | None = None) -> Capacity:
    """The belief before anything was observed, or with the rate computed for the steps that are believed by now."""
    return believe(memory or Capacity(), SPEC, Lengths(), judge(traffic(1.0)), model)


def belief(capacity: Capacity) -> Belief:
    """What is believed."""
    return capacity.beliefs[0]


def steps(capacity: Capacity, model: Model, truth: float, draw: np.random.Generator) -> Capacity:
    """A thousand steps as the plugin sums them up."""
    seconds = 1000.0 * STEP_SECONDS / truth * math.exp(draw.normal(0.0, NOISE["steps"]))
    sums = StepSums(steps=1000.0, seconds=seconds)
    return measure_steps(capacity, StepEvidence(1.0, steps=sums), "gpu", model)


def tpot(capacity: Capacity, model: Model, truth: float, draw: np.random.Generator) -> Capacity:
    """The time per token at half of what the engine can begin."""
    begun = 0.5 * truth / WORK_SECONDS
    seconds = 2.0 * STEP_SECONDS / truth * math.exp(draw.normal(0.0, NOISE["tpot"]))
    return measure_steps(capacity, StepEvidence(begun, 100.0, 1.0, 100.0, 100.0 * seconds), "gpu", model)


def saturated(capacity: Capacity, model: Model, truth: float, draw: np.random.Generator) -> Capacity:
    """Requests that begin while others wait."""
    begun = RPS * truth / 0.85 * math.exp(draw.normal(0.0, NOISE["saturated"]))
    return observe_saturation(capacity, StepEvidence(begun, 100.0, saturated=True), "gpu")


def verdicts(capacity: Capacity, model: Model, truth: float, draw: np.random.Generator) -> Capacity:
    """A load near the belief, which is kept below the truth and missed above it."""
    rate = belief(capacity).rate_rps * math.exp(draw.normal(0.0, 0.1))
    return after_look(capacity, rate, 0.0 if rate < truth * RPS else 0.3)


def after_look(capacity: Capacity, rate_rps: float, bad_share: float) -> Capacity:
    """The belief after ten replicas had this load each for a minute, and this share of the requests was bad."""
    requests = 10.0 * rate_rps * SECONDS
    judged = Verdicts(requests * (1.0 - bad_share), requests * bad_share)
    look = EvidenceWindow(0.0, arrivals=requests, begun=requests, replica_seconds=10.0 * SECONDS, verdicts=judged)
    return observe_load(capacity, look, "gpu")


def minutes(evidence: Evidence, truth: float, model: Model, seed: int) -> int:
    """Minutes until what a replica is believed to carry is close to the truth."""
    capacity, draw = believed(model), np.random.default_rng(seed)
    for minute in range(1, LONGEST + 1):
        capacity = believed(model, evidence(capacity, model, truth, draw))
        if abs(belief(capacity).rate_rps / (truth * RPS) - 1.0) <= CLOSE:
            return minute
    return LONGEST


def lowered_by_chance(looks: int, clump: float) -> tuple[float, float]:
    """How often a look lowers a right belief, and the gain in the end; bad requests come in clumps of that size."""
    random, capacity, lowered = np.random.default_rng(2), believed(Model({"gpu": RPS})), 0
    rate = 0.9 * RPS
    allowed = 10.0 * rate * SECONDS * SPEC.slo.budget_share
    for _ in range(looks):
        before = belief(capacity).correction.gain
        capacity = after_look(capacity, rate, clump * float(random.poisson(allowed / clump)) / (10.0 * rate * SECONDS))
        lowered += belief(capacity).correction.gain < before
    return lowered / looks, belief(capacity).correction.gain


def main(arguments: Sequence[str] | None = None) -> None:
    """Print minutes until the belief is right, and chance's share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an hour of chance and three draws only")
    quick = parser.parse_args(arguments).quick
    kinds: tuple[Evidence, ...] = (steps, tpot, saturated, verdicts)
    print("| prior's deviation | truth / prior | step times | TPOT | saturated | kept or missed |")
    print("|---|---|---|---|---|---|")
    for deviation in DEVIATION.values():
        model = Model({"gpu": RPS}, deviation=deviation)
        for truth in (1.3, 0.7, 0.25, 0.05, 4.0, 20.0):
            found = [np.median([minutes(kind, truth, model, n) for n in range(3 if quick else 21)]) for kind in kinds]
            print(f"| {deviation:g} | {truth:g} | " + " | ".join(f"{each:g} min" for each in found) + " |")
    for clump in (1.0, 5.0):
        share, gain = lowered_by_chance(60 if quick else 20_000, clump)
        print(f"chance alone, bad requests {clump:g} at a time: lowered in {share:.2%} of looks, gain {gain:.3f}")


if __name__ == "__main__":
    main()
