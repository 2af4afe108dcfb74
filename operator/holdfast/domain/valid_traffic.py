"""Validate metrics: impossible numbers never enter a decision, and mark the whole observation as INVALID."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter

from holdfast.domain.decision import BadByCause
from holdfast.domain.engine import ExactCounts, StepSums
from holdfast.domain.service import Slo
from holdfast.domain.signals import (
    NO_BATCH,
    AcceleratorTraffic,
    BatchTraffic,
    ClassTraffic,
    LengthHistogram,
    SignalState,
    Traffic,
)
from holdfast.domain.value import value

LARGEST = 1e12
"""Upper bound of any plausible count, token sum or gauge of one interval."""

OTHERS = ("kv_usage", "in_flight_growth", "exact", "busiest")
NAMES = tuple(field.name for field in fields(AcceleratorTraffic) if field.name not in OTHERS)
_values: Callable[[AcceleratorTraffic], tuple[float, ...]] = attrgetter(*NAMES)

EXACT_NAMES = tuple(field.name for field in fields(ExactCounts))
_exact_values: Callable[[ExactCounts], tuple[float, ...]] = attrgetter(*EXACT_NAMES)


@value
class Seen:
    """The observation of one interval of a service: the sum over accelerators, and each of them in order of names.

    Where `fresh` is False the numbers are a lower bound: they may raise a size and never lower one. `countable`: shares
    (good of judged) are still meaningful. `hidden` requests left the queue and are in no series.
    Requests are counted by the plugins, where every engine has one (`total.exact`). Otherwise they come from vLLM's own
    counters.
    """

    state: SignalState
    detail: str
    interval_seconds: float
    total: AcceleratorTraffic
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...]
    prompt_lengths: LengthHistogram
    output_lengths: LengthHistogram
    steps: tuple[tuple[str, StepSums], ...] = ()
    hidden: float = 0.0
    late_seconds: float = 0.0
    classes: tuple[ClassTraffic, ...] = ()
    batch: BatchTraffic = NO_BATCH

    @property
    def fresh(self) -> bool:
        """Whether the metrics are fresh and complete."""
        return self.state is SignalState.FRESH

    @property
    def countable(self) -> bool:
        """Whether counts were read, even if some engines are missing or foreign ones included."""
        return self.state in (SignalState.FRESH, SignalState.PARTIAL, SignalState.FOREIGN, SignalState.DUPLICATE)

    @property
    def visible(self) -> bool:
        """Whether any count was read."""
        return bool(self.by_accelerator) and self.interval_seconds > 0.0

    def steps_on(self, accelerator: str) -> StepSums | None:
        """Return the engine steps of the last minutes on an accelerator; None where no plugin reports them."""
        return next((sums for name, sums in self.steps if name == accelerator), None)

    @property
    def arrived(self) -> float:
        """Requests that arrived, including refused ones.

        vLLM has no counter of arrivals. They are derived: requests that ended or were refused, plus the growth in
        flight, and the `hidden` ones. Requests in flight are counted a moment apart, but never less than none arrive.
        """
        total = self.total
        if total.exact is not None:
            return total.exact.arrived
        ended = total.finished + total.failed + total.aborted + total.rejected + self.hidden
        return max(0.0, ended + total.in_flight_growth)

    @property
    def refused(self) -> float:
        """Requests that were rejected."""
        return self.total.rejected if self.total.exact is None else self.total.exact.bad_rejected

    @property
    def failed(self) -> float:
        """Requests that failed in an engine, or with it."""
        exact = self.total.exact
        return self.total.failed if exact is None else exact.bad_error + exact.bad_killed

    @property
    def late(self) -> float:
        """Requests with a late first token, and the `hidden` ones; plugins also count late requests that still wait."""
        if self.total.exact is not None:
            return self.total.exact.bad_ttft
        return max(0.0, self.total.ttft_count - self.total.ttft_within) + self.hidden

    @property
    def started(self) -> float:
        """Requests whose first token came, or is known to be late."""
        if self.total.exact is not None:
            exact = self.total.exact
            return exact.good + exact.bad - exact.bad_rejected - exact.bad_killed
        return self.total.ttft_count + self.hidden


def bad_by_cause(seen: Seen, slo: Slo) -> BadByCause | None:
    """Return the rates of bad requests by cause; None where no counts are usable."""
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
    """Return the valid part of `traffic`, independent of the order of accelerators."""
    usable = tuple(
        (name, _validated(counts))
        for name, counts in sorted(traffic.by_accelerator, key=lambda pair: pair[0])
        if _is_plausible(counts)
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
        state,
        detail,
        interval,
        _sum(usable),
        usable,
        traffic.prompt_lengths,
        traffic.output_lengths,
        traffic.steps,
        late_seconds=traffic.late_seconds if 0.0 <= traffic.late_seconds < LARGEST else 0.0,
        classes=traffic.classes if all(0.0 <= each.good + each.bad < LARGEST for each in traffic.classes) else (),
        batch=traffic.batch if all(0.0 <= number < LARGEST for number in traffic.batch.numbers) else NO_BATCH,
    )


def _is_plausible(traffic: AcceleratorTraffic) -> bool:
    """Return whether all counts are finite, non-negative and plausible."""
    values = _values(traffic)
    return 0.0 <= sum(values) < LARGEST and min(values) >= 0.0 and abs(traffic.in_flight_growth) < LARGEST


def _validated(traffic: AcceleratorTraffic) -> AcceleratorTraffic:
    """Return the counts without an impossible `busiest` and without impossible exact counts.

    vLLM's own counters remain; they are less precise.
    """
    if not 0.0 <= traffic.busiest < LARGEST:
        traffic = replace(traffic, busiest=0.0)
    if traffic.exact is None:
        return traffic
    values = _exact_values(traffic.exact)
    return traffic if 0.0 <= sum(values) < LARGEST and min(values) >= 0.0 else replace(traffic, exact=None)


def _exact(usable: tuple[tuple[str, AcceleratorTraffic], ...]) -> ExactCounts | None:
    """Return the sum of exact counts; None unless every accelerator with any counts has them."""
    some = [traffic.exact for _, traffic in usable if traffic.exact is not None or any(_values(traffic))]
    known = [exact for exact in some if exact is not None]
    if not known or len(known) < len(some):
        return None
    columns = map(math.fsum, zip(*map(_exact_values, known), strict=True))
    return ExactCounts(**dict(zip(EXACT_NAMES, columns, strict=True)))  # type: ignore[arg-type]  # engines, as below


def _sum(usable: tuple[tuple[str, AcceleratorTraffic], ...]) -> AcceleratorTraffic:
    """Return the sum over accelerators."""
    if len(usable) == 1:
        return usable[0][1]
    columns = zip(*(_values(traffic) for _, traffic in usable), strict=True)
    sums: dict[str, float] = dict(zip(NAMES, map(math.fsum, columns), strict=False))
    return AcceleratorTraffic(
        in_flight_growth=math.fsum(traffic.in_flight_growth for _, traffic in usable),
        exact=_exact(usable),
        **sums,  # type: ignore[arg-type]  # engines is a whole number of floats
    )
