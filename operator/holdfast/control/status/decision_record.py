"""Inputs of a decision, small enough for the Event of a change, so that later code can replay the decision."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from holdfast.domain.cluster import NodeOffer
from holdfast.domain.service import AcceleratorOption, ServiceKey, ServiceSpec
from holdfast.domain.snapshot import Snapshot
from holdfast.domain.taints import Taint, are_tolerated
from holdfast.policy.memory import FleetContext, Memory, ServiceMemory
from holdfast.policy.settings import PolicySettings

MOST_TEXT = 64 * 1024
"""Characters of a record; an object may carry 256 KiB of annotations, and etcd keeps Events for an hour."""

_Value = TypeVar("_Value")
_MOST_JSON = 4 * 1024 * 1024  # limit of the decompressed size


Records = Callable[[ServiceKey], str]
"""The record of one service's decision, built on demand: most ticks change nothing."""


class Unreadable(ValueError):
    """A record that this version cannot read: another version wrote it, or something else did."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One service's part of a snapshot, its memory before the tick, and its allocation.

    Of competing services and caps it holds only the sentence of the allocation, which names none of other namespaces.
    It holds only the relevant parts of nodes: readers of a namespace's Events need not see the labels of all nodes.
    """

    snapshot: Snapshot
    memory: ServiceMemory
    settings: PolicySettings
    context: FleetContext


def record_of(
    key: ServiceKey, snapshot: Snapshot, memory: Memory, settings: PolicySettings, context: FleetContext
) -> DecisionRecord:
    """Return the inputs of this service's decision. Raises KeyError if the snapshot lacks it."""
    own = tuple(service for service in snapshot.services if service.spec.key == key)
    if not own:
        raise KeyError(key)
    nodes = tuple(_offers(snapshot.nodes, own[0].spec))
    remembered = memory.services.get(key, ServiceMemory())
    return DecisionRecord(replace(snapshot, services=own, nodes=nodes, gpu_caps=()), remembered, settings, context)


def _offers(nodes: Iterable[NodeOffer], spec: ServiceSpec) -> Iterator[NodeOffer]:
    """The nodes with the service's accelerators, reduced to these resources, the selected labels, and taints."""
    resources = {option.resource for option in spec.accelerators}
    selected = {name for option in spec.accelerators for name, _ in option.node_selector}

    def of(names: set[str], pairs: tuple[tuple[str, _Value], ...]) -> tuple[tuple[str, _Value], ...]:
        return tuple(pair for pair in pairs if pair[0] in names)

    for node in nodes:
        if offered := of(resources, node.allocatable):
            taints = tuple(_told(taint, spec) for taint in node.taints)
            yield NodeOffer(node.name, of(selected, node.labels), offered, of(resources, node.used), taints)


def _told(taint: Taint, spec: ServiceSpec) -> Taint:
    """A taint, with its name only if the service tolerates it by name; a wildcard tolerates it either way."""

    def is_named(option: AcceleratorOption) -> bool:
        named = [each for each in option.tolerations if each.key == taint.key]
        return are_tolerated([taint], named, option.resource)

    return taint if any(map(is_named, spec.accelerators)) else Taint("", "", taint.effect)


def written(record: DecisionRecord) -> str:
    """Serialize the record; empty if it is too long for an Event, as with thousands of nodes."""
    plain = json.dumps(_adapter().dump_python(record, mode="json"), separators=(",", ":"))
    text = base64.b64encode(zlib.compress(plain.encode(), 9)).decode()
    return text if len(text) <= MOST_TEXT else ""


def nothing(key: ServiceKey) -> str:
    """Record nothing."""
    return ""


def read(text: str) -> DecisionRecord:
    """Return the record of a text; raises Unreadable."""
    plain = _unpacked(text)
    try:
        found = _adapter().validate_python(json.loads(plain))
    except ValidationError as error:
        raise Unreadable("another version of Holdfast wrote the record") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not a decision record: {error}") from error
    if len(found.snapshot.services) != 1:
        raise Unreadable("the record is not of a single service")
    return found


def _unpacked(text: str) -> bytes:
    unpack = zlib.decompressobj()
    try:
        plain = unpack.decompress(base64.b64decode(text, validate=True), _MOST_JSON)
    except (ValueError, zlib.error) as error:
        raise Unreadable(f"not a decision record: {error}") from error
    if not unpack.eof:
        raise Unreadable("the record is truncated or too long")
    return plain


@cache
def _adapter() -> TypeAdapter[DecisionRecord]:
    """Built when first needed: most ticks change nothing."""
    return TypeAdapter(DecisionRecord)
