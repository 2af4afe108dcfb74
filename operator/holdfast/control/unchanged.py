"""Services at rest: nothing is left to do for them or to tell, and a tick costs little more than seeing that.

Decisions are made anew with each scrape and their figures never stand still, so hardly one equals the last. What
counts is whether carrying one out would write anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from holdfast.act.deadband import same
from holdfast.act.status import has_moved
from holdfast.control.report import FIGURES, figures
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.observe.cluster import ServiceParts

_LEAST_SECONDS = 150.0
"""What only time brings up is looked after this often, or up to half as often: not of all services in one tick.

That is files of earlier pods, which are looked for every 300 s (`objects`); figures have a time of their own, `until`.
"""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing was left to do for a service at a time, by a decision on it and all else that was seen.

    `written` is what its status says. `until` is when figures that have moved since are written, infinite where none
    has.
    """

    decision: Decision
    seen: tuple[object, ...]
    written: Mapping[str, Any]
    since: float
    until: float

    def holds(
        self, part: ServiceParts, decision: Decision, seen: tuple[object, ...], written: Mapping[str, Any], now: float
    ) -> bool:
        """Whether nothing is left to do still."""
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
        """Whether status says these figures but for noise: compared with what is written, so that no drift is lost."""
        if has_moved({name: self.written[name] for name in FIGURES & self.written.keys()}, figures(part, decision)):
            return False
        messages = {shown["type"]: shown["message"] for shown in self.written.get("conditions", ())}
        return all(
            value.message == before.message or same(messages.get(value.type), value.message)
            for before, value in zip(self.decision.conditions, decision.conditions, strict=True)
        )


def _share(key: ServiceKey) -> float:
    """Between 0 and 1, the same for a service at any time and in any process."""
    return crc32(str(key).encode()) / 2**32


def _hold_alike(one: Decision, other: Decision) -> bool:
    """Whether both keep everything as it is, and differ in nothing but figures and in what is not shown."""
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
        decision.holding,
    )
