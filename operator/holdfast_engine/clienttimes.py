"""What clients see: takes the API server's reports into the ledger, and learns the front-end lag from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast_engine.clientlag import LagEstimate, LagHistogram
from holdfast_engine.ledger import Ledger
from holdfast_engine.written_file import Report, ReportKind, name_of

# Verdicts count as the clients' while no more than this share of about the last 256 used the engine's times: a client
# that leaves at the wrong moment does not change what all verdicts are called.
MOST_ENGINE_TIMED = 0.02
_VERDICTS = 256
# Reports of requests that this engine does not know: those of other engines behind the same API server.
_MOST_UNKNOWN = 16384


class Reports(Protocol):
    """Where the API server's reports are read, such as WrittenReader."""

    @property
    def is_open(self) -> bool: ...
    def poll(self, now: float) -> list[Report]: ...


class ClientTimes:
    """Without a reader tokens reach clients as they leave the engine, as in the emulator: the engine's times are the
    clients'."""

    def __init__(self, ledger: Ledger, reader: Reports | None, clock: Callable[[], float]) -> None:
        self.lag = LagEstimate()
        self.first = LagHistogram()
        self.last = LagHistogram()
        self._ledger = ledger
        self._reader = reader
        self._clock = clock
        self._names: dict[bytes, str] = {}
        self._early: dict[bytes, None] = {}
        self._followed = False
        self._weight = 0.0
        self._engine_timed = 0.0
        self._known = (0, 0)

    @property
    def are_known(self) -> bool:
        """Whether verdicts use the times at which bytes were written."""
        if self._reader is None:
            return True
        return self._reader.is_open and self._engine_timed <= MOST_ENGINE_TIMED * max(self._weight, 1.0)

    def arrive(self, request_id: str) -> None:
        """A request was counted; the report that its answer is watched may be there already."""
        if self._reader is None:
            return
        name = name_of(request_id)
        self._names[name] = request_id
        if name in self._early:
            del self._early[name]
            self._follow(request_id)

    def leave(self, request_id: str) -> None:
        """A request has left the engine, and its answer may still be written."""
        if self._reader is not None and not self._ledger.is_unwritten(request_id):
            self._names.pop(name_of(request_id), None)

    def poll(self, now: float) -> None:
        """Take the reports since the last call."""
        if self._reader is None:
            return
        reports = self._reader.poll(now)
        # A report may have been written since then, and one of the future would not be believed.
        read_at = self._clock() if reports else now
        for report in reports:
            self._take(report, read_at)
        if self._followed and not self._reader.is_open:
            self._followed = False
            self._ledger.unfollow_all()
            self._early.clear()
            self._names = {name: each for name, each in self._names.items() if self._ledger.entry(each) is not None}
        self.lag.update(read_at)
        if self._ledger.judged != self._known[0]:
            self._weigh()

    def _take(self, report: Report, now: float) -> None:
        request_id = self._names.get(report.name)
        if request_id is None:
            self._note_unknown(report)
        elif report.kind is ReportKind.STARTED:
            self._follow(request_id)
        elif report.kind is ReportKind.FIRST:
            self._take_first(request_id, report.at, now)
        else:
            self._take_end(request_id, report, now)

    def _note_unknown(self, report: Report) -> None:
        """Reports overtake the requests that they are about, which queue on their way to the engine."""
        if report.kind is ReportKind.STARTED:
            self._early[report.name] = None
            if len(self._early) > _MOST_UNKNOWN:
                del self._early[next(iter(self._early))]
        elif report.kind is not ReportKind.FIRST:
            self._early.pop(report.name, None)

    def _take_first(self, request_id: str, at: float, now: float) -> None:
        lag = self._ledger.write_first(request_id, at, now)
        if lag >= 0.0:
            self.first.add(lag)
            self.lag.add(now, lag)

    def _take_end(self, request_id: str, report: Report, now: float) -> None:
        if report.kind is ReportKind.GONE:
            self._ledger.unfollow(request_id)
        else:
            lag = self._ledger.write_last(request_id, report.at, now)
            if lag >= 0.0:
                self.last.add(lag)
        if self._ledger.entry(request_id) is None:
            del self._names[report.name]

    def _follow(self, request_id: str) -> None:
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
