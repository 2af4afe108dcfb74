"""Only numbers that make sense enter a decision: whatever does not turns the whole picture into INVALID."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter

from holdfast.domain.signals import AcceleratorTraffic, LengthHistogram, SignalState, Traffic

LARGEST = 1e12
"""No count, token sum or gauge of one interval is larger."""

OTHERS = ("kv_usage", "in_flight_growth", "exact")
NAMES = tuple(field.name for field in fields(AcceleratorTraffic) if field.name not in OTHERS)
_values: Callable[[AcceleratorTraffic], tuple[float, ...]] = attrgetter(*NAMES)


@dataclass(frozen=True, slots=True)
class Seen:
    """One interval of a service: the sum over accelerators, and each of them by name in order of names.

    Where `fresh` is False the numbers are a lower bound: they may raise a size and never lower one. `countable` says
    that shares (good of judged) still mean something.
    """

    state: SignalState
    detail: str
    interval_seconds: float
    total: AcceleratorTraffic
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...]
    prompt_lengths: LengthHistogram
    output_lengths: LengthHistogram

    @property
    def fresh(self) -> bool:
        return self.state is SignalState.FRESH

    @property
    def countable(self) -> bool:
        """Numbers were read, even if not of every engine."""
        return self.state in (SignalState.FRESH, SignalState.PARTIAL, SignalState.DUPLICATE)

    @property
    def visible(self) -> bool:
        """Any number at all was read."""
        return bool(self.by_accelerator) and self.interval_seconds > 0.0


def judge(traffic: Traffic) -> Seen:
    """Return what can be believed of `traffic`, insensitive to the order of accelerators."""
    usable = tuple(sorted((pair for pair in traffic.by_accelerator if _makes_sense(pair[1])), key=lambda pair: pair[0]))
    interval = traffic.interval_seconds
    state, detail = traffic.state, traffic.detail
    if len(usable) < len(traffic.by_accelerator):
        state, detail = SignalState.INVALID, detail or "NaN, infinite, negative or absurdly large counts"
    if not 0.0 < interval < LARGEST:
        interval = 0.0
        if traffic.fresh:
            state, detail = SignalState.INVALID, "counts without an interval"
    return Seen(state, detail, interval, _sum(usable), usable, traffic.prompt_lengths, traffic.output_lengths)


def _makes_sense(traffic: AcceleratorTraffic) -> bool:
    values = _values(traffic)
    return 0.0 <= sum(values) < LARGEST and min(values) >= 0.0 and abs(traffic.in_flight_growth) < LARGEST


def _sum(usable: tuple[tuple[str, AcceleratorTraffic], ...]) -> AcceleratorTraffic:
    if len(usable) == 1:
        return usable[0][1]
    columns = zip(*(_values(traffic) for _, traffic in usable), strict=True)
    sums: dict[str, float] = dict(zip(NAMES, map(math.fsum, columns), strict=False))
    return AcceleratorTraffic(
        in_flight_growth=math.fsum(traffic.in_flight_growth for _, traffic in usable),
        **sums,  # type: ignore[arg-type]  # engines is a whole number of floats
    )
