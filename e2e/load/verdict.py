"""The one definition of a good request, and whether an objective held over a run.

Good = finished with every token, TTFT <= ttft, TPOT <= tpot and, where given, E2E <= e2e. Everything else that arrived
is bad: rejected, failed, truncated. Times count from the moment the trace scheduled the request, so a slow client
cannot flatter the service.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from e2e.load.records import Record


@dataclasses.dataclass(frozen=True, slots=True)
class Objectives:
    """The objectives of one service; `share` is the share of requests that must be good (0.99 for 99 %)."""

    ttft_seconds: float
    tpot_seconds: float
    share: float
    e2e_seconds: float = math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A half-open span [start, end) of epoch seconds."""

    start: float
    end: float

    def overlaps(self, other: Span) -> bool:
        """Return whether the two share more than a border."""
        return self.start < other.end and other.start < self.end


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The requests that arrived in one span; `excused` windows are shown and not held against the service."""

    span: Span
    arrivals: int
    good: int
    excused: bool = False

    @property
    def attainment(self) -> float | None:
        """Return good / arrivals; None for an empty window, which is neither 0 nor 100 %."""
        return self.good / self.arrivals if self.arrivals else None

    def meets(self, share: float) -> bool:
        """Return whether a window that has arrivals met the objective."""
        # Multiplied, with a hair of tolerance: 0.95 x 20 must not ask for 19.000000000000004.
        return self.good >= share * self.arrivals - 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a run showed."""

    windows: tuple[Window, ...]
    arrivals: int
    good: int
    rejected: int
    lost: tuple[Record, ...]
    retried: int
    lateness_p99_seconds: float
    share: float

    @property
    def attainment(self) -> float | None:
        """Return the attainment of the whole run, excused windows included."""
        return self.good / self.arrivals if self.arrivals else None

    @property
    def failing(self) -> tuple[Window, ...]:
        """Return the judged windows below the objective."""
        return tuple(w for w in self.windows if not w.excused and w.arrivals and not w.meets(self.share))

    @property
    def empty(self) -> tuple[Window, ...]:
        """Return the judged windows in which nothing arrived, of which nothing can be said."""
        return tuple(w for w in self.windows if not w.excused and not w.arrivals)

    @property
    def holds(self) -> bool:
        """Whether something was judged, every judged window met the objective, and no request was lost."""
        judged = any(w.arrivals for w in self.windows if not w.excused)
        return judged and not self.failing and not self.lost

    @property
    def client_overloaded(self) -> bool:
        """Whether the client was too late in sending for its figures to be trusted."""
        return self.lateness_p99_seconds > 0.1


def ttft_seconds(record: Record) -> float:
    """Return the time to the first token; infinite when none came."""
    return math.inf if record.first_token_at is None else record.first_token_at - record.scheduled_at


def tpot_seconds(record: Record) -> float:
    """Return (E2E - TTFT) / (tokens - 1); 0 for one token, infinite when none came."""
    if record.first_token_at is None:
        return math.inf
    if record.output_tokens <= 1:
        return 0.0
    return (record.finished_at - record.first_token_at) / (record.output_tokens - 1)


def is_good(record: Record, objectives: Objectives) -> bool:
    """Return whether the request finished inside every objective."""
    return (
        record.status == "ok"
        and ttft_seconds(record) <= objectives.ttft_seconds
        and tpot_seconds(record) <= objectives.tpot_seconds
        and record.finished_at - record.scheduled_at <= objectives.e2e_seconds
    )


def is_lost(record: Record) -> bool:
    """Return whether the service took the request (no 503) and did not deliver all of it."""
    return record.status in ("error", "truncated")


def judged(records: Iterable[Record]) -> list[Record]:
    """Return the arrivals: everything but what the client itself stopped."""
    return [record for record in records if record.status != "aborted"]


def attainment_windows(
    records: Iterable[Record],
    objectives: Objectives,
    span: Span,
    excused: Sequence[Span] = (),
    width_seconds: float = 30.0,
) -> tuple[Window, ...]:
    """Cut a run into windows by time of arrival.

    The judged parts of `span` and the excused ones are cut separately, so that a judged window begins at the very
    moment an excuse ends. The last window of each part ends with it, overlapping its neighbour rather than being
    shorter; only a part that is itself shorter than the width gives a shorter window.
    """
    arrived = judged(records)
    windows = []
    for part, is_excused in _parts(span, excused):
        for cut in _cuts(part, width_seconds):
            inside = [record for record in arrived if cut.start <= record.scheduled_at < cut.end]
            good = sum(is_good(record, objectives) for record in inside)
            windows.append(Window(cut, len(inside), good, is_excused))
    return tuple(windows)


def judge(
    records: Sequence[Record],
    objectives: Objectives,
    span: Span,
    excused: Sequence[Span] = (),
    width_seconds: float = 30.0,
) -> Verdict:
    """Judge a whole run."""
    arrived = judged(records)
    return Verdict(
        windows=attainment_windows(records, objectives, span, excused, width_seconds),
        arrivals=len(arrived),
        good=sum(is_good(record, objectives) for record in arrived),
        rejected=sum(record.status == "rejected" for record in arrived),
        lost=tuple(record for record in arrived if is_lost(record)),
        retried=sum(record.retried for record in arrived),
        lateness_p99_seconds=percentile([record.lateness_seconds for record in arrived], 0.99),
        share=objectives.share,
    )


def percentile(values: Iterable[float], q: float) -> float:
    """Return the smallest value that at least a share q does not exceed; NaN for nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def _parts(span: Span, excused: Sequence[Span]) -> list[tuple[Span, bool]]:
    """Split a span into judged and excused parts, in order."""
    borders = {span.start, span.end}
    for excuse in excused:
        borders |= {border for border in (excuse.start, excuse.end) if span.start < border < span.end}
    parts: list[tuple[Span, bool]] = []
    ordered = sorted(borders)
    for start, end in itertools.pairwise(ordered):
        part = Span(start, end)
        is_excused = any(excuse.overlaps(part) for excuse in excused)
        if parts and parts[-1][1] == is_excused:
            part = Span(parts.pop()[0].start, end)
        parts.append((part, is_excused))
    return parts


def _cuts(part: Span, width_seconds: float) -> list[Span]:
    if part.end - part.start <= width_seconds:
        return [part]
    whole = int((part.end - part.start) / width_seconds + 1e-9)
    cuts = [Span(part.start + k * width_seconds, part.start + (k + 1) * width_seconds) for k in range(whole)]
    if cuts[-1].end < part.end - 1e-6:
        cuts.append(Span(part.end - width_seconds, part.end))
    return cuts
