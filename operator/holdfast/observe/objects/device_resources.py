"""ResourceSlices and DeviceClasses -> how many devices each node offers under the name of an extended resource.

Pods may ask for `nvidia.com/gpu` and get a device of a DRA driver, if a DeviceClass has that `extendedResourceName`
(KEP-5004), and else by a name that Kubernetes makes of its own. The node's status does not name such resources.
Devices that cannot be counted (partitions that share counters, selectors other than equalities) are left out: then the
free capacity of their nodes is unknown, as it is without any DeviceClass.
Source: k8s.io/api/resource/v1, and pkg/scheduler/framework/plugins/dynamicresources in Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kopf

from holdfast.domain.cluster import NodeOffer
from holdfast.observe.objects import body_pruning

GROUP, VERSION = "resource.k8s.io", "v1"
_OWN_NAME = "deviceclass.resource.kubernetes.io/"
_DRIVER = re.compile(r"""device\.driver\s*==\s*(["'])([^"']+)\1""")
_ATTRIBUTE = re.compile(
    r"""device\.attributes\[(["'])([^"']+)\1\]\.([A-Za-z0-9_]+)\s*==\s*(?:(["'])([^"']*)\4|(true|false|[0-9]+))"""
)

Object = Mapping[str, Any]
Attributes = frozenset[tuple[str, str]]
"""Qualified names of attributes with their values as text."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices of `driver` with all `attributes`; pods ask for them by the name of a resource.

    `driver` is None where the selectors say something that is not understood here.
    """

    name: str
    created: str
    resource: str
    driver: str | None
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """Devices of one driver on a node, by their attributes; None for devices that cannot be counted.

    The `parts` slices of the newest `generation` together are a `pool`.
    """

    driver: str
    pool: str
    generation: int
    parts: int
    devices: tuple[Attributes | None, ...]


def device_class(body: Object) -> DeviceClass:
    """Read a DeviceClass."""
    meta, spec = body["metadata"], body.get("spec") or {}
    resource = str(spec.get("extendedResourceName") or _OWN_NAME + meta["name"])
    expressions = [(each.get("cel") or {}).get("expression") for each in spec.get("selectors") or ()]
    driver, attributes = _equalities(expressions)
    return DeviceClass(meta["name"], str(meta.get("creationTimestamp") or ""), resource, driver, attributes)


def _equalities(expressions: Sequence[object]) -> tuple[str | None, Attributes]:
    """Return driver and attributes that all these expressions demand; no driver where one demands anything else."""
    drivers, attributes = set[str](), set[tuple[str, str]]()
    for term in (term.strip() for text in expressions for term in str(text).split("&&")):
        if found := _DRIVER.fullmatch(term):
            drivers.add(found[2])
        elif found := _ATTRIBUTE.fullmatch(term):
            attributes.add((f"{found[2]}/{found[3]}", found[5] if found[6] is None else found[6]))
        else:
            return None, frozenset()
    return (drivers.pop() if len(drivers) == 1 else None), frozenset(attributes)


def device_slice(body: Object) -> DeviceSlice | None:
    """Read the ResourceSlice of one node; None for devices that nodes share."""
    spec = body.get("spec") or {}
    if not spec.get("nodeName"):
        return None
    pool, driver = spec.get("pool") or {}, str(spec.get("driver"))
    devices = tuple(_attributes(device, driver) for device in spec.get("devices") or () if not _is_tainted(device))
    return DeviceSlice(
        driver,
        str(pool.get("name")),
        int(pool.get("generation") or 0),
        int(pool.get("resourceSliceCount") or 1),
        devices,
    )


def _attributes(device: Object, driver: str) -> Attributes | None:
    if device.get("consumesCounters") or device.get("allowMultipleAllocations"):
        return None
    return frozenset(
        (name if "/" in name else f"{driver}/{name}", _text(value))
        for name, value in (device.get("attributes") or {}).items()
    )


def _text(value: Object) -> str:
    """An attribute holds one value, under the name of its type."""
    found = next(iter(value.values()), "")
    return str(found).lower() if isinstance(found, bool) else str(found)


def _is_tainted(device: Object) -> bool:
    return any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in device.get("taints") or ())


_Shown = tuple[NodeOffer, Mapping[str, DeviceClass], tuple[DeviceSlice, ...]]


class DeviceResources:
    """What nodes offer through DRA; reads kopf's indices, empty until kopf has filled them."""

    def __init__(self) -> None:
        self._classes: Mapping[str, Iterable[DeviceClass]] = {}
        self._slices: Mapping[str, Iterable[DeviceSlice]] = {}
        self._counted: dict[str, tuple[_Shown, NodeOffer]] = {}
        self._counted_for: dict[str, DeviceClass] = {}

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Add the indices, where the cluster has the API and the operator may read it."""
        for plural, function in (("deviceclasses", _index_class), ("resourceslices", _index_slice)):
            kopf.index(GROUP, VERSION, plural, id=plural, registry=registry)(body_pruning.after(function, "spec"))
        kopf.on.startup(id="remember-devices", registry=registry)(self._remember)

    async def _remember(self, **indices: Any) -> None:
        self._classes, self._slices = indices["deviceclasses"], indices["resourceslices"]

    def added_to(self, nodes: Iterable[NodeOffer]) -> list[NodeOffer]:
        """Return the nodes, with the resources that only their devices offer; counted anew where something changed."""
        found = self._by_resource()
        classes = self._counted_for = self._counted_for if found == self._counted_for else found
        if not classes:
            self._counted = {}
            return list(nodes)
        self._counted = {node.name: self._added(node, classes) for node in nodes}
        return [counted for _, counted in self._counted.values()]

    def _added(self, node: NodeOffer, classes: Mapping[str, DeviceClass]) -> tuple[_Shown, NodeOffer]:
        shown = (node, classes, tuple(self._slices.get(node.name, ())))
        before = self._counted.get(node.name)
        return before if before is not None and before[0] == shown else (shown, _with_devices(*shown))

    def _by_resource(self) -> dict[str, DeviceClass]:
        """Of several classes with one resource name the scheduler takes the newest."""
        found = [each for classes in list(self._classes.values()) for each in classes]
        return {each.resource: each for each in sorted(found, key=lambda each: (each.created, each.name))}


def _with_devices(node: NodeOffer, classes: Mapping[str, DeviceClass], slices: Iterable[DeviceSlice]) -> NodeOffer:
    devices, known = _current(slices), {name for name, _ in node.allocatable}
    counts = ((name, _count(of, devices)) for name, of in classes.items() if name not in known)
    more = [(name, count) for name, count in counts if count is not None]
    return replace(node, allocatable=tuple(sorted((*node.allocatable, *more)))) if more else node


def _current(slices: Iterable[DeviceSlice]) -> dict[str, list[Attributes | None]]:
    """Return the devices of complete pools by driver; the scheduler uses no others."""
    pools = defaultdict[tuple[str, str], list[DeviceSlice]](list)
    for each in slices:
        pools[each.driver, each.pool].append(each)
    devices = defaultdict[str, list[Attributes | None]](list)
    for (driver, _), parts in pools.items():
        newest = [each for each in parts if each.generation == max(part.generation for part in parts)]
        if len(newest) == newest[0].parts:
            devices[driver] += [device for each in newest for device in each.devices]
    return devices


def _count(of: DeviceClass, devices: Mapping[str, Sequence[Attributes | None]]) -> int | None:
    """Return how many devices a class selects on a node; None where nobody knows, or where its driver offers none."""
    mine = devices.get(of.driver or "")
    if not mine or None in mine:
        return None
    return sum(device is not None and of.attributes <= device for device in mine)


async def _index_class(body: kopf.Body, **_: Any) -> dict[str, DeviceClass]:
    return {body["metadata"]["name"]: device_class(body)}


async def _index_slice(body: kopf.Body, **_: Any) -> dict[str, DeviceSlice]:
    found = device_slice(body)
    return {} if found is None else {body["spec"]["nodeName"]: found}
