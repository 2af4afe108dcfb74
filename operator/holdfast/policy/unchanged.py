"""Skip services without new facts: their last decision still holds, and costs nothing.

Engines are scraped less often than decisions are made, and most services are quiet: most ticks have no new facts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Recalled, ServiceSnapshot, Timing


class Last(NamedTuple):
    """A decision, its facts, its time, and until when no scheduled minimum begins or ends."""

    decision: Decision
    facts: ServiceSnapshot
    at: float
    until: float = math.inf


def facts(service: ServiceSnapshot) -> ServiceSnapshot:
    """Return what a decision depends on: without quantiles, ages and history, which change or end with time alone."""
    seen = service.traffic
    traffic = Traffic(
        seen.state,
        seen.detail,
        seen.interval_seconds,
        by_accelerator=seen.by_accelerator,
        hung=seen.hung,
        lagging=seen.lagging,
    )
    return replace(service, traffic=traffic, history=None, recalled=Recalled(), born_at=None)


def still_holds(last: Last | None, known: ServiceSnapshot, now: float, timing: Timing) -> bool:
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
