"""GPUs handed out one claim after another: by priority, then by good requests per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.domain.service import ServiceKey
from holdfast.policy.allocation.capacity_pool import Pool
from holdfast.policy.capacity_request import Claim, Step


def share_out(pools: Sequence[Pool]) -> dict[ServiceKey, int]:
    """Return how many replicas each claim of the pools gets: never more than it wants, or than fit beside the least.

    The least of all stay, also where the nodes do not hold these together. Replicas that add nothing to what a service
    can make good come last, whoever's they are.
    """
    claims = {claim.key: claim for pool in pools for claim in pool.claims}
    granted = {key: claim.least for key, claim in claims.items()}
    left = [pool.gpus - sum(claim.gpus(claim.least) for claim in pool.claims) for pool in pools]
    within: dict[ServiceKey, list[int]] = {key: [] for key in claims}
    for index, pool in enumerate(pools):
        for claim in pool.claims:
            within[claim.key].append(index)
    for claim, step in _in_order(claims.values()):
        size = claim.option.gpus_per_replica
        fit = min(left[index] // size for index in within[claim.key])
        replicas = max(0, min(step.replicas, fit))
        granted[claim.key] += replicas
        for index in within[claim.key]:
            left[index] -= replicas * size
    return granted


def _in_order(claims: Iterable[Claim]) -> list[tuple[Claim, Step]]:
    steps = [(claim, step) for claim in claims for step in claim.steps()]
    return sorted(steps, key=_rank)


def _rank(item: tuple[Claim, Step]) -> tuple[bool, int, float, ServiceKey]:
    claim, step = item
    return step.worth_per_gpu <= 0.0, -claim.priority, -step.worth_per_gpu, claim.key
