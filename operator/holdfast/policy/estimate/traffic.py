"""Only numbers that make sense enter a decision: whatever does not turns the whole picture into INVALID."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter

from holdfast.domain.decision import BadByCause
from holdfast.domain.engine import ExactCounts, StepSums
from holdfast.domain.service import Slo
from holdfast.domain.signals import AcceleratorTraffic, LengthHistogram, SignalState, Traffic
from holdfast.domain.value import value

LARGEST = 1e12
"""No count, token sum or gauge of one interval is larger."""

OTHERS = ("kv_usage", "in_flight_growth", "exact", "busiest")
NAMES = tuple(field.name for field in fields(AcceleratorTraffic) if field.name not in OTHERS)
_values: Callable[[AcceleratorTraffic], tuple[float, ...]] = attrgetter(*NAMES)

EXACT_NAMES = tuple(field.name for field in fields(ExactCounts))
_exact_values: Callable[[ExactCounts], tuple[float, ...]] = attrgetter(*EXACT_NAMES)


@value
class Seen:
    """One interval of a service: the sum over accelerators, and each of them by name in order of names.

    Where `fresh` is False the numbers are a lower bound: they may raise a size and never lower one. `countable` says
    that shares (good of judged) still mean something. Requests are those that the plugins counted, where every engine
    has one (`total.exact`), else what vLLM's own counters say of them.
    """

    state: SignalState
    detail: str
    interval_seconds: float
    total: AcceleratorTraffic
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...]
    prompt_lengths: LengthHistogram
    output_lengths: LengthHistogram
    steps: tuple[tuple[str, StepSums], ...] = ()

    @property
    def fresh(self) -> bool:
        return self.state is SignalState.FRESH

    @property
    def countable(self) -> bool:
        """Numbers were read, even if not of every engine, or of others as well."""
        return self.state in (SignalState.FRESH, SignalState.PARTIAL, SignalState.FOREIGN, SignalState.DUPLICATE)

    @property
    def visible(self) -> bool:
        """Any number at all was read."""
        return bool(self.by_accelerator) and self.interval_seconds > 0.0

    def steps_on(self, accelerator: str) -> StepSums | None:
        """What the engine steps of the last minutes took there, None where no plugin says so."""
        return next((sums for name, sums in self.steps if name == accelerator), None)

    @property
    def arrived(self) -> float:
        """Requests that came, refused ones included.

        vLLM has no counter of arrivals: what ended, plus what was refused, plus the growth of what is in flight.
        """
        total = self.total
        if total.exact is not None:
            return total.exact.arrived
        return total.finished + total.failed + total.aborted + total.rejected + total.in_flight_growth

    @property
    def refused(self) -> float:
        """Requests that were turned away."""
        return self.total.rejected if self.total.exact is None else self.total.exact.bad_rejected

    @property
    def failed(self) -> float:
        """Requests that an engine lost."""
        return self.total.failed if self.total.exact is None else self.total.exact.bad_error

    @property
    def late(self) -> float:
        """Requests whose first token came too late; plugins count those that still wait for it as well."""
        if self.total.exact is not None:
            return self.total.exact.bad_ttft
        return max(0.0, self.total.ttft_count - self.total.ttft_within)

    @property
    def started(self) -> float:
        """Requests whose first token came, or is known to be late."""
        if self.total.exact is not None:
            return self.total.exact.good + self.total.exact.bad - self.total.exact.bad_rejected
        return self.total.ttft_count


def bad_by_cause(seen: Seen, slo: Slo) -> BadByCause | None:
    """Return what went wrong with requests, as far as it was seen; None where no counts can be believed."""
    if not (seen.countable and seen.visible):
        return None
    total, exact, end_to_end = seen.total, seen.total.exact, slo.e2e_seconds is not None
    if exact is not None:
        late_tokens, late_end = exact.bad_tpot, exact.bad_e2e
    else:
        late_tokens, late_end = total.tpot_count - total.tpot_within, total.e2e_count - total.e2e_within

    def rate(requests: float) -> float:
        return max(0.0, requests) / seen.interval_seconds

    return BadByCause(
        ttft_rps=rate(seen.late),
        tpot_rps=rate(late_tokens),
        e2e_rps=rate(late_end) if end_to_end else None,
        rejected_rps=rate(seen.refused),
        error_rps=rate(seen.failed),
        exact=exact is not None,
    )


def judge(traffic: Traffic) -> Seen:
    """Return what can be believed of `traffic`, insensitive to the order of accelerators."""
    usable = tuple(
        (name, _believed(counts))
        for name, counts in sorted(traffic.by_accelerator, key=lambda pair: pair[0])
        if _makes_sense(counts)
    )
    interval = traffic.interval_seconds
    state, detail = traffic.state, traffic.detail
    if len(usable) < len(traffic.by_accelerator):
        state, detail = SignalState.INVALID, detail or "NaN, infinite, negative or absurdly large counts"
    if not 0.0 < interval < LARGEST:
        interval = 0.0
        if traffic.fresh:
            state, detail = SignalState.INVALID, "counts without an interval"
    return Seen(
        state, detail, interval, _sum(usable), usable, traffic.prompt_lengths, traffic.output_lengths, traffic.steps
    )


def _makes_sense(traffic: AcceleratorTraffic) -> bool:
    values = _values(traffic)
    return 0.0 <= sum(values) < LARGEST and min(values) >= 0.0 and abs(traffic.in_flight_growth) < LARGEST


def _believed(traffic: AcceleratorTraffic) -> AcceleratorTraffic:
    """Exact counts that make no sense are left out, vLLM's own say less and are there; so is a share like that."""
    if not 0.0 <= traffic.busiest < LARGEST:
        traffic = replace(traffic, busiest=0.0)
    if traffic.exact is None:
        return traffic
    values = _exact_values(traffic.exact)
    return traffic if 0.0 <= sum(values) < LARGEST and min(values) >= 0.0 else replace(traffic, exact=None)


def _exact(usable: tuple[tuple[str, AcceleratorTraffic], ...]) -> ExactCounts | None:
    """The sum of exact counts, None unless there are some of every accelerator of which anything was seen."""
    some = [traffic.exact for _, traffic in usable if traffic.exact is not None or any(_values(traffic))]
    known = [exact for exact in some if exact is not None]
    if not known or len(known) < len(some):
        return None
    columns = map(math.fsum, zip(*map(_exact_values, known), strict=True))
    return ExactCounts(**dict(zip(EXACT_NAMES, columns, strict=True)))  # type: ignore[arg-type]  # engines, as below


def _sum(usable: tuple[tuple[str, AcceleratorTraffic], ...]) -> AcceleratorTraffic:
    if len(usable) == 1:
        return usable[0][1]
    columns = zip(*(_values(traffic) for _, traffic in usable), strict=True)
    sums: dict[str, float] = dict(zip(NAMES, map(math.fsum, columns), strict=False))
    return AcceleratorTraffic(
        in_flight_growth=math.fsum(traffic.in_flight_growth for _, traffic in usable),
        exact=_exact(usable),
        **sums,  # type: ignore[arg-type]  # engines is a whole number of floats
    )
