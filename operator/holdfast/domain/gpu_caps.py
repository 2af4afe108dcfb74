"""What others use of the GPUs that a namespace may have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from holdfast.domain.cluster import GpuCap
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot


def without(
    keys: Collection[ServiceKey], caps: Iterable[GpuCap], services: Iterable[ServiceSnapshot]
) -> tuple[GpuCap, ...]:
    """Return the caps with the GPUs that others use: other pods, and services that have none of these keys."""
    by_namespace: defaultdict[str, list[ServiceSnapshot]] = defaultdict(list)
    for service in services:
        by_namespace[service.spec.key.namespace].append(service)
    return tuple(replace(cap, used=_others_use(keys, cap, by_namespace[cap.namespace])) for cap in caps)


def _others_use(keys: Collection[ServiceKey], cap: GpuCap, services: Iterable[ServiceSnapshot]) -> int:
    held = {service.spec.key: _held(service, cap.resource) for service in services}
    used = sum(held.values()) if cap.used is None else cap.used
    return max(0, used - sum(gpus for key, gpus in held.items() if key in keys))


def _held(service: ServiceSnapshot, resource: str) -> int:
    """Count the GPUs of existing pods and of pods that Deployments are about to create: a quota counts both."""
    pods = Counter(replica.accelerator for replica in service.replicas)
    sizes = {placement.accelerator: placement.replicas for placement in service.placements}
    return sum(
        max(pods[option.name], sizes.get(option.name, 0)) * option.gpus_per_replica
        for option in service.spec.accelerators
        if option.resource == resource
    )
