"""vLLM's limits fixed at the best values for a scenario: hindsight that nobody has in practice."""

from __future__ import annotations

import itertools
from dataclasses import replace

from holdfast.simulator.twin.capacity import Bench, Lengths
from holdfast.simulator.twin.declared import Declared, engine_kind
from holdfast.simulator.twin.scenario import Scenario

Limits = tuple[int, int]
"""max_num_seqs and max_num_batched_tokens."""

SEQUENCES = (16, 32, 64, 128, 256)
TOKENS = (512, 1024, 2048, 4096, 8192)
DRAWS = 2


def with_limits(each: Declared, limits: Limits | None) -> Declared:
    """The service with these limits; as it is without."""
    if limits is None:
        return each
    sequences, tokens = limits
    batching = replace(each.spec.batching, max_num_seqs=sequences, max_num_batched_tokens=tokens)
    return replace(each, spec=replace(each.spec, batching=batching))


def best_limits(scenario: Scenario, each: Declared) -> Limits:
    """Those with which one replica carries the most, by simulation."""
    return max(itertools.product(SEQUENCES, TOKENS), key=lambda limits: carried_rps(scenario, each, limits))


def carried_rps(scenario: Scenario, each: Declared, limits: Limits | None, draws: int = DRAWS) -> float:
    """Requests per second of the scenario's lengths that one replica carries at the objective."""
    option = each.spec.accelerators[0]
    kind = engine_kind(with_limits(each, limits), option, scenario.cluster.accelerators[option.name], admission=False)
    lengths = Lengths(each.workload.prompt_tokens, each.workload.output_tokens)
    guess = 2.0 * len(each.workload) / scenario.duration / each.spec.max_replicas
    return Bench(kind, each.spec.slo, lengths, draws).rate(guess).rate_rps
