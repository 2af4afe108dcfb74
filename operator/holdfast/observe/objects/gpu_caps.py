"""ResourceQuotas and nodes -> how many GPUs the services of each namespace may hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import kopf

from holdfast.api.quantities import parse_whole
from holdfast.api.tenants import limit_of
from holdfast.domain.cluster import GpuCap
from holdfast.domain.service import ServiceSpec
from holdfast.observe.objects import body_pruning
from holdfast.observe.objects.nodes import Nodes

_LOG = logging.getLogger(__name__)
_REQUESTS = "requests."
"""Prefix of extended resources in a quota; Kubernetes accepts no other one for them."""

Object = Mapping[str, Any]


def caps_from_quota(quota: Object) -> tuple[GpuCap, ...]:
    """Return what a ResourceQuota says about extended resources, as the API server enforces it."""
    meta, spec, status = quota["metadata"], quota.get("spec") or {}, quota.get("status") or {}
    hard, used = status.get("hard") or spec.get("hard") or {}, status.get("used") or {}
    names = [name for name in sorted(hard) if name.startswith(_REQUESTS) and "/" in name]
    found = ((name.removeprefix(_REQUESTS), parse_whole(hard[name]), parse_whole(used.get(name))) for name in names)
    named = f"ResourceQuota {meta['name']}"
    return tuple(GpuCap(meta["namespace"], name, gpus, named, taken) for name, gpus, taken in found if gpus is not None)


class GpuCaps:
    """Caps by quotas, and by the share of each namespace; reads kopf's indices, empty until kopf has filled them."""

    def __init__(self, shares: Mapping[str, Fraction] = MappingProxyType({}), nodes: Nodes | None = None) -> None:
        self._shares = shares
        self._nodes = nodes or Nodes()
        self._quotas: Mapping[str, Iterable[tuple[GpuCap, ...]]] = {}
        self._ignored: set[tuple[str, str]] = set()

    def register(self, registry: kopf.OperatorRegistry, *, quotas: bool) -> None:
        """Add the index; `quotas`: whether ResourceQuotas may be read."""
        if quotas:
            kopf.on.startup(id="remember-caps", registry=registry)(self._remember)
            index = body_pruning.after(self._index_quota, "spec", "status")
            kopf.index("", "v1", "resourcequotas", id="quotas", registry=registry)(index)

    async def _remember(self, **indices: Any) -> None:
        self._quotas = indices["quotas"]

    def of(self, specs: Iterable[ServiceSpec]) -> tuple[GpuCap, ...]:
        """Return the caps that bound some accelerator of these services, in order."""
        if not self._shares and not self._quotas:
            return ()
        wanted = sorted({(spec.key.namespace, option.resource) for spec in specs for option in spec.accelerators})
        gpus = {resource: self._nodes.gpus(resource) for resource in {resource for _, resource in wanted}}
        found = ((*self._by_quota(*place), *self._by_share(*place, gpus[place[1]])) for place in wanted)
        return tuple(cap for caps in found for cap in caps)

    def _by_quota(self, namespace: str, resource: str) -> list[GpuCap]:
        caps = (cap for caps in self._quotas.get(namespace, ()) for cap in caps if cap.resource == resource)
        return sorted(caps, key=lambda cap: cap.name)

    def _by_share(self, namespace: str, resource: str, gpus: int) -> Iterator[GpuCap]:
        """Without any node of that resource, nobody knows what the share is of."""
        share = limit_of(self._shares, namespace)
        if share is not None and gpus:
            named = f"--namespace-share ({float(100 * share):g}% of {gpus} GPUs)"
            yield GpuCap(namespace, resource, math.floor(share * gpus), named)

    async def _index_quota(self, body: kopf.Body, **_: Any) -> dict[str, tuple[GpuCap, ...]]:
        caps, spec = caps_from_quota(body), body.get("spec") or {}
        if caps and (spec.get("scopes") or spec.get("scopeSelector")):
            self._say_ignored(caps[0])
            return {}
        return {caps[0].namespace: caps} if caps else {}

    def _say_ignored(self, cap: GpuCap) -> None:
        """A quota with scopes counts only some pods, by fields that a pod template may set."""
        if (cap.namespace, cap.name) not in self._ignored:
            self._ignored.add((cap.namespace, cap.name))
            text = "%s of namespace %s has scopes, so it bounds no size; CapacityAvailable says if it refuses pods"
            _LOG.warning(text, cap.name, cap.namespace)
