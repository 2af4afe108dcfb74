"""Skip services without new facts: their last decision still holds, and costs nothing.

Engines are scraped less often than decisions are made, and most services are quiet: most ticks have no new facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from holdfast.domain.activator import Activator
from holdfast.domain.benchmark import Measured
from holdfast.domain.cluster import ClusterProblem, Placement, Replica
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceSpec
from holdfast.domain.signals import AcceleratorTraffic, SignalState
from holdfast.domain.snapshot import ServiceSnapshot, Timing


class Facts(NamedTuple):
    """All inputs about one service except the time, independent of the order of arrival."""

    spec: ServiceSpec
    state: SignalState
    detail: str
    interval_seconds: float
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...]
    replicas: tuple[Replica, ...]
    placements: tuple[Placement, ...]
    problems: tuple[ClusterProblem, ...]
    hung: tuple[str, ...] = ()
    lagging: tuple[str, ...] = ()
    activator: Activator | None = None
    measured: tuple[Measured, ...] = ()
    ended: tuple[Replica, ...] = ()


class Last(NamedTuple):
    """A decision, its facts, its time, and until when no scheduled minimum begins or ends."""

    decision: Decision
    facts: Facts
    at: float
    until: float = math.inf


_Item = TypeVar("_Item")
_by_first = itemgetter(0)
_by_name = attrgetter("name")
_by_accelerator = attrgetter("accelerator")
_by_reason = attrgetter("reason", "message")


def facts(service: ServiceSnapshot) -> Facts:
    """Return the inputs that a decision about the service depends on."""
    traffic = service.traffic
    return Facts(
        service.spec,
        traffic.state,
        traffic.detail,
        traffic.interval_seconds,
        _in_order(traffic.by_accelerator, _by_first),
        _in_order(service.replicas, _by_name),
        _in_order(service.placements, _by_accelerator),
        _in_order(service.problems, _by_reason),
        tuple(sorted(traffic.hung)),
        tuple(sorted(traffic.lagging)),
        service.activator,
        service.measured,
        _in_order(service.ended, _by_name),
    )


def _in_order(items: tuple[_Item, ...], key: Callable[[_Item], Any]) -> tuple[_Item, ...]:
    return tuple(sorted(items, key=key)) if len(items) > 1 else items


def still_holds(last: Last | None, known: Facts, now: float, timing: Timing) -> bool:
    """Return whether the last decision held everything, on the same facts, less than a scrape interval ago.

    Changes that only need time (the end of a hold time, a replica that waited too long) are thus delayed by up to one
    scrape interval. A new scrape, another pod, an edited spec or the time of a schedule is decided on at once.
    """
    return (
        last is not None
        and last.decision.verdict.action is Action.HOLD
        and 0.0 <= now - last.at < timing.scrape_seconds
        and now < last.until
        and last.facts == known
    )
