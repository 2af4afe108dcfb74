"""Shortcut for unchanged services: nothing to write or publish, so that a tick costs little more than this check.

Each scrape changes the figures of a decision, so hardly one equals the last. The question is therefore whether
carrying it out would write anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from holdfast.act.deadband import same
from holdfast.act.status import has_moved
from holdfast.control.status.report import FIGURES, figures
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import ServiceParts

_LEAST_SECONDS = 150.0
"""Time-driven work is checked this often, or up to half as often, so that not all services fall into one tick.

Such work is the removal of old pod files, every 300 s (`objects`); figures have their own time, `until`.
"""


@dataclass(frozen=True, slots=True)
class SettledService:
    """A service had nothing to do at a time, given its decision and all other inputs.

    `written` is its status. `until` is when changed figures are written, infinite if none changed.
    """

    decision: Decision
    seen: tuple[object, ...]
    written: Mapping[str, Any]
    since: float
    until: float

    def holds(
        self, part: ServiceParts, decision: Decision, seen: tuple[object, ...], written: Mapping[str, Any], now: float
    ) -> bool:
        """Whether there is still nothing to do."""
        if not 0.0 <= now - self.since < _LEAST_SECONDS * (1.0 + _share(decision.key)) or now >= self.until:
            return False
        if written is not self.written or seen != self.seen:
            return False
        if decision is self.decision:
            return True
        return _hold_alike(self.decision, decision) and (
            math.isfinite(self.until) or self._figures_stand(part, decision)
        )

    def _figures_stand(self, part: ServiceParts, decision: Decision) -> bool:
        """Whether status has these figures within the deadband; written ones are compared, to notice drift."""
        if has_moved({name: self.written[name] for name in FIGURES & self.written.keys()}, figures(part, decision)):
            return False
        messages = {shown["type"]: shown["message"] for shown in self.written.get("conditions", ())}
        return all(
            value.message == before.message or same(messages.get(value.type), value.message)
            for before, value in zip(self.decision.conditions, decision.conditions, strict=True)
        )


def _share(key: ServiceKey) -> float:
    """A fixed fraction in [0, 1) per service, the same in every process."""
    return crc32(str(key).encode()) / 2**32


def _hold_alike(one: Decision, other: Decision) -> bool:
    """Whether both are holds and differ only in figures and in fields that are not shown."""
    return (
        one.verdict.action is other.verdict.action is Action.HOLD
        and _words(one) == _words(other)
        and one.recommendation is None
        and other.recommendation is None
        and (other.batching is None or other.batching.reason is None)
    )


def _words(decision: Decision) -> tuple[object, ...]:
    verdict, capacity = decision.verdict, decision.capacity
    return (
        decision.generation,
        verdict.reason,
        [(target.accelerator, target.replicas) for target in verdict.targets],
        [(value.type, value.status, value.reason) for value in decision.conditions],
        capacity and (capacity.accelerator, capacity.bound_by),
        decision.cold_start_seconds,
        decision.batching,
        decision.queue_limit,
        decision.holding,
        decision.max_unavailable,
        decision.engines,
    )
