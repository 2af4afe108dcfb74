"""vLLM's limits fixed at the best values for a scenario: hindsight that nobody has in practice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

from holdfast.twin.replica.capacity import Bench, LengthPairs
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import Scenario


class Limits(NamedTuple):
    """vLLM's flags of these names; without a cap on queued tokens nobody is refused."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_tokens: int | None = None


SEQUENCES = (16, 32, 64, 128, 256)
TOKENS = (512, 1024, 2048, 4096, 8192)
QUEUED = (0.2, 0.4, 0.6, 0.8, 1.2, 1.6, 2.0, 3.0)
"""Caps on queued prompt tokens, in those that a replica at its capacity gets within the TTFT objective."""

ENOUGH, OVERLOADS = 0.9, (1.3, 1.7)
"""Loads, in what a replica carries: at the first a cap may not cost the objective, for the others it is there."""

DRAWS = 2


def with_limits(each: Declared, limits: Limits | None) -> Declared:
    """The service with these limits; as it is without."""
    if limits is None:
        return each
    sequences, tokens, queued = limits
    batching = replace(each.spec.batching, max_num_seqs=sequences, max_num_batched_tokens=tokens)
    return replace(each, spec=replace(each.spec, batching=batching), max_num_queued_tokens=queued)


def best_limits(scenario: Scenario, each: Declared) -> Limits:
    """Those with which one replica carries the most, by simulation."""
    tried = itertools.starmap(Limits, itertools.product(SEQUENCES, TOKENS))
    return max(tried, key=lambda limits: carried_rps(scenario, each, limits))


def best_capped(scenario: Scenario, each: Declared, limits: Limits) -> Limits:
    """These limits and the cap on queued tokens that keeps most good in overload, of those that attain below it.

    A tighter one refuses so many whom nothing would have kept waiting that the objective is missed at any load.
    """
    rate = carried_rps(scenario, each, limits)
    within_ttft = each.spec.slo.ttft_seconds * rate * float(each.workload.prompt_tokens.mean())
    caps = (limits._replace(max_num_queued_tokens=max(1, round(share * within_ttft))) for share in QUEUED)

    def kept(capped: Limits) -> tuple[bool, float]:
        bench = _bench(scenario, each, capped, DRAWS)
        attains = bench.attainment(ENOUGH * rate) >= each.spec.slo.objective
        return attains, sum(load * bench.attainment(load * rate) for load in OVERLOADS)

    return max(caps, key=kept)


def carried_rps(scenario: Scenario, each: Declared, limits: Limits | None, draws: int = DRAWS) -> float:
    """Requests per second of the scenario's lengths that one replica carries at the objective."""
    guess = 2.0 * len(each.workload) / scenario.duration / each.spec.max_replicas
    return _bench(scenario, each, limits, draws).rate(guess).rate_rps


def _bench(scenario: Scenario, each: Declared, limits: Limits | None, draws: int) -> Bench:
    option = each.spec.accelerators[0]
    kind = engine_kind(with_limits(each, limits), option, scenario.cluster.accelerators[option.name], admission=False)
    return Bench(kind, each.spec.slo, LengthPairs(each.workload.prompt_tokens, each.workload.output_tokens), draws)
