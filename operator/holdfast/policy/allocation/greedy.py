"""GPUs handed out one claim after another: by priority, then by good requests per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.domain.service import ServiceKey
from holdfast.policy.allocation.capacity_pool import CapacityPool
from holdfast.policy.capacity_request import CapacityRequest, WorthStep


def share_out(pools: Sequence[CapacityPool]) -> dict[ServiceKey, int]:
    """Return how many replicas each claim of the pools gets: never more than it wants, or than fit beside the least.

    The least of all stay, also where the nodes do not hold these together. Replicas that add nothing to what a service
    can make good come last, whoever's they are.
    """
    requests = {request.key: request for pool in pools for request in pool.requests}
    allocated = {key: request.least for key, request in requests.items()}
    left = [pool.gpus - sum(request.gpus(request.least) for request in pool.requests) for pool in pools]
    within: dict[ServiceKey, list[int]] = {key: [] for key in requests}
    for index, pool in enumerate(pools):
        for request in pool.requests:
            within[request.key].append(index)
    for request, step in _in_order(requests.values()):
        size = request.option.gpus_per_replica
        fit = min(left[index] // size for index in within[request.key])
        replicas = max(0, min(step.replicas, fit))
        allocated[request.key] += replicas
        for index in within[request.key]:
            left[index] -= replicas * size
    return allocated


def _in_order(requests: Iterable[CapacityRequest]) -> list[tuple[CapacityRequest, WorthStep]]:
    steps = [(request, step) for request in requests for step in request.steps()]
    return sorted(steps, key=_rank)


def _rank(item: tuple[CapacityRequest, WorthStep]) -> tuple[bool, int, float, ServiceKey]:
    request, step = item
    return step.worth_per_gpu <= 0.0, -request.priority, -step.worth_per_gpu, request.key
