"""What clients see: takes the API server's reports into the ledger, and learns the front-end lag from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from holdfast_engine.clients.clientlag import LagEstimate, LagHistogram
from holdfast_engine.clients.ledger import Ledger
from holdfast_engine.clients.written_file import BEGINS, CLASS_BYTES, Report, ReportKind, class_digest, name_of
from holdfast_engine.objectives.rules import LONGEST_WAIT_SECONDS, SERVICE_CLASS, Ending, Limits, RequestClass

# Verdicts count as the clients' while no more than this share of about the last 256 used the engine's times: a client
# that leaves at the wrong moment does not change what all verdicts are called.
MOST_ENGINE_TIMED = 0.02
_VERDICTS = 256
_STARTED, _FIRST, _GONE = ReportKind.STARTED, ReportKind.FIRST, ReportKind.GONE
_ENDS = (ReportKind.LAST, ReportKind.GONE)
# An API server that takes longer than this for a request is asked at once for the age of the next one.
NOTICED_SECONDS = 0.05
# Reports of requests that this engine does not know: those of other engines behind the same API server.
_MOST_UNKNOWN = 16384


class Reports(Protocol):
    """Where the API server's reports are read, such as WrittenReader."""

    @property
    def is_open(self) -> bool: ...
    @property
    def taken(self) -> int: ...
    def poll(self, now: float) -> list[Report]: ...


class ClientTimes:
    """Without a reader tokens reach clients as they leave the engine, as in the emulator: the engine's times are the
    clients'."""

    def __init__(self, ledger: Ledger, reader: Reports | None, clock: Callable[[], float]) -> None:
        self.lag = LagEstimate()
        self.reading = LagEstimate()
        """From the moment a request came until the engine had it."""
        self.first = LagHistogram()
        self.last = LagHistogram()
        self._ledger = ledger
        self._reader = reader
        self._clock = clock
        self._names: dict[bytes, str] = {}
        self._early: dict[bytes, tuple[Report, str | None]] = {}
        self._held: dict[bytes, tuple[str, float]] = {}
        self._classes: Mapping[bytes, RequestClass] = {}
        self._resumed: str | None = None
        self._followed = False
        self._waited = 0.0
        self._weight = 0.0
        self._engine_timed = 0.0
        self._known = (0, 0)

    @property
    def are_known(self) -> bool:
        """Whether verdicts use the times at which bytes were written."""
        if self._reader is None:
            return True
        return self._reader.is_open and self._engine_timed <= MOST_ENGINE_TIMED * max(self._weight, 1.0)

    @property
    def taken(self) -> int:
        """So many reports have been read."""
        return 0 if self._reader is None else self._reader.taken

    @property
    def held(self) -> int:
        """So many requests wait at the door: the record has them within a second."""
        return len(self._held)

    def take(self, limits: Limits) -> None:
        """These classes are declared."""
        self._classes = {class_digest(name): each for name, each in limits.by_name.items() if limits.may_claim(each)}

    def arrive(self, request_id: str, arrived: float, now: float, request_class: RequestClass) -> None:
        """Count a request that came at `arrived`, or earlier where the API server has reported that.

        It reports before the engine hears of the request. Where it keeps up, that is read with the next step.
        """
        if self._reader is None:
            self._ledger.arrive(request_id, arrived, request_class)
            return
        name = name_of(request_id)
        if self._held or self._waited > NOTICED_SECONDS:
            self._take_all(self._reader, now)
        self._names[name] = request_id
        report, held = self._early.pop(name, (None, None))
        if held is not None:
            self._ledger.rename(held, request_id, request_class)
        self._ledger.arrive(request_id, arrived, request_class)
        if report is not None:
            self._begin(request_id, report, now)

    def leave(self, request_id: str) -> None:
        """A request has left the engine, and its answer may still be written."""
        if self._reader is not None and not self._ledger.is_unwritten(request_id):
            self._names.pop(name_of(request_id), None)

    def poll(self, now: float) -> None:
        """Take the reports since the last call."""
        if self._reader is None:
            return
        read_at = self._take_all(self._reader, now)
        if not self._reader.is_open and (self._followed or self._held):
            self._followed = False
            self._ledger.unfollow_all()
            self._early.clear()
            for name in list(self._held):
                self._end_held(name, read_at)
            self._names = {name: each for name, each in self._names.items() if self._ledger.entry(each) is not None}
        if self._held:
            oldest = next(iter(self._held))
            if read_at - self._held[oldest][1] > 2.0 * LONGEST_WAIT_SECONDS:
                self._end_held(oldest, read_at)  # its report was lost
        self.lag.update(read_at)
        if self._ledger.judged != self._known[0]:
            self._weigh()

    def _take_all(self, reader: Reports, now: float) -> float:
        """Take the reports since the last call; returns when they were read."""
        reports = reader.poll(now)
        if not reports:
            return now
        # A report may have been written since then, and one of the future would not be believed.
        read_at = self._clock()
        for report in reports:
            kind, name, at = report
            request_id = self._names.get(name)
            if request_id is None:
                self._note_unknown(report, read_at)
            elif kind is _FIRST:
                self._take_first(request_id, at, read_at)
            elif kind in _ENDS:
                self._take_end(request_id, report, read_at)
            elif kind in BEGINS:
                self._begin(request_id, report, read_at)
        return read_at

    def _note_unknown(self, report: Report, now: float) -> None:
        """Reports overtake the requests that they are about, which queue on their way to the engine."""
        if report.kind in BEGINS and report.name not in self._held:
            self._early[report.name], self._resumed = (report, self._resumed), None
            if len(self._early) > _MOST_UNKNOWN:
                del self._early[next(iter(self._early))]
        elif report.kind is ReportKind.HELD:
            self._hold(report, now)
        elif report.kind is ReportKind.RESUMED:
            self._resumed, _ = self._held.pop(report.name, (None, 0.0))
        elif report.name in self._held:
            self._end_held(report.name, now)
        elif report.kind is not _FIRST:
            self._early.pop(report.name, None)

    def _hold(self, report: Report, now: float) -> None:
        """Count a request that waits at the door: it may never come to the engine."""
        if self._classes and report.at <= now:
            own = self._classes[class_digest(SERVICE_CLASS)]
            self._held[report.name] = f"{report.name.hex()} at the door", now
            found = self._classes.get(report.name[:CLASS_BYTES], own)
            self._ledger.arrive(self._held[report.name][0], report.at, found)

    def _end_held(self, name: bytes, now: float) -> None:
        self._ledger.end(self._held.pop(name)[0], Ending.ABORTED, now, 0)

    def _take_first(self, request_id: str, at: float, now: float) -> None:
        lag = self._ledger.write_first(request_id, at, now)
        if lag >= 0.0:
            self.first.add(lag)
            self.lag.add(now, lag)

    def _take_end(self, request_id: str, report: Report, now: float) -> None:
        kind, name, at = report
        if kind is _GONE:
            self._ledger.unfollow(request_id)
        else:
            lag = self._ledger.write_last(request_id, at, now)
            if lag >= 0.0:
                self.last.add(lag)
        if self._ledger.entry(request_id) is None:
            del self._names[name]

    def _begin(self, request_id: str, report: Report, now: float) -> None:
        """A request of the engine came at that time; its answer may be watched."""
        kind, _, at = report
        if 0.0 <= now - at <= LONGEST_WAIT_SECONDS:
            self._ledger.date_back(request_id, at)
            self._waited = now - at
            self.reading.add(now, self._waited)
        if kind is _STARTED:
            self._ledger.follow(request_id)
            self._followed = True

    def _weigh(self) -> None:
        """The share of late verdicts that used the engine's times, the last ones counting most."""
        known, self._known = self._known, (self._ledger.judged, self._ledger.engine_timed)
        judged, engine_timed = self._known[0] - known[0], self._known[1] - known[1]
        total = self._weight + judged
        kept = min(1.0, _VERDICTS / total)
        self._engine_timed = (self._engine_timed + engine_timed) * kept
        self._weight = total * kept
