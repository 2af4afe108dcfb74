"""What engines of other pools add to the counts of a service: the requests that end there, and were not handed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from holdfast.domain.engine import ExactCounts
from holdfast.domain.signals import AcceleratorTraffic

_ADDED = tuple(each.name for each in dataclasses.fields(ExactCounts) if not each.name.startswith("engine"))

ByAccelerator = tuple[tuple[str, AcceleratorTraffic], ...]


def with_ended(by_accelerator: ByAccelerator, others: Sequence[ExactCounts]) -> ByAccelerator:
    """Add the requests that ended in other pools, which no replica has seen, to those of the first accelerator.

    A request may arrive there in one interval and be handed over in the next: only the sum over pools is a count.
    """
    name = next((name for name, traffic in by_accelerator if traffic.exact is not None), None)
    if not others or name is None:
        return by_accelerator
    return tuple((each, _added(traffic, others) if each == name else traffic) for each, traffic in by_accelerator)


def _added(traffic: AcceleratorTraffic, others: Iterable[ExactCounts]) -> AcceleratorTraffic:
    if traffic.exact is None:
        return traffic
    counts = (traffic.exact, *others)
    sums = {name: max(0.0, sum(getattr(each, name) for each in counts)) for name in _ADDED}
    return dataclasses.replace(traffic, exact=dataclasses.replace(traffic.exact, **sums))
