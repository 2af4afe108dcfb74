"""What a decision was made from, small enough for the Event of a change: so that it can be made again by later code."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from holdfast import policy
from holdfast.domain.decision import Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.memory import Memory, ServiceMemory
from holdfast.policy.settings import PolicySettings

MOST_TEXT = 64 * 1024
"""Characters of a record; an object may carry 256 KiB of annotations, and etcd keeps Events for an hour."""

_MOST_JSON = 4 * 1024 * 1024  # what a few characters may unpack to


Records = Callable[[ServiceKey], str]
"""The record of one service's decision, made when asked for: most ticks change nothing."""


class Unreadable(ValueError):
    """A record that this version cannot read: another version wrote it, or something else did."""


@dataclass(frozen=True, slots=True)
class Record:
    """One service's part of a snapshot with all nodes, and what was remembered of the service before."""

    snapshot: Snapshot
    memory: ServiceMemory
    settings: PolicySettings


def record_of(key: ServiceKey, snapshot: Snapshot, memory: Memory, settings: PolicySettings) -> Record:
    """Return what this service's decision was made from; KeyError where the snapshot lacks it."""
    own = tuple(service for service in snapshot.services if service.spec.key == key)
    if not own:
        raise KeyError(key)
    return Record(replace(snapshot, services=own), memory.services.get(key, ServiceMemory()), settings)


def written(record: Record) -> str:
    """Return it as text; empty where it would be too long for an Event, as with thousands of nodes."""
    plain = json.dumps(_adapter().dump_python(record, mode="json"), separators=(",", ":"))
    text = base64.b64encode(zlib.compress(plain.encode(), 9)).decode()
    return text if len(text) <= MOST_TEXT else ""


def nothing(key: ServiceKey) -> str:
    """Record nothing."""
    return ""


def read(text: str) -> Record:
    """Return the record of a text; raises Unreadable."""
    unpack = zlib.decompressobj()
    try:
        plain = unpack.decompress(base64.b64decode(text, validate=True), _MOST_JSON)
        if not unpack.eof:
            raise Unreadable("it is cut short, or too long")
        found = _adapter().validate_python(json.loads(plain))
    except (binascii.Error, zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Unreadable(f"it is no record: {error}") from error
    except ValidationError as error:
        raise Unreadable("another version of Holdfast wrote it") from error
    if len(found.snapshot.services) != 1:
        raise Unreadable("it is not of one service")
    return found


def decided_again(record: Record) -> Decision | None:
    """Return what this code decides from the record; the service is alone, so that no other one competes for its GPUs.

    None where this code would not have decided yet.
    """
    key = record.snapshot.services[0].spec.key
    decisions, _ = policy.decide(record.snapshot, Memory({key: record.memory}), record.settings)
    return next(iter(decisions), None)


@cache
def _adapter() -> TypeAdapter[Record]:
    """Made when first needed: most ticks change nothing."""
    return TypeAdapter(Record)
