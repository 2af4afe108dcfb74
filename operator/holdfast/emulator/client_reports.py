"""What an emulated API server reports to the plugin: when clients saw their tokens."""

from __future__ import annotations

import heapq
import itertools
import math

from holdfast_engine.clients.written_file import Report, ReportKind, name_of


class ClientReports:
    """In place of the file between two processes: each report is there once its time has come."""

    is_open = True
    taken = 0

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Report]] = []
        self._numbers = itertools.count()

    def add(self, kind: ReportKind, request_id: str, at: float) -> None:
        """Report at that time."""
        heapq.heappush(self._due, (at, next(self._numbers), Report(kind, name_of(request_id), at)))

    def tell(self, kind: ReportKind, request_id: str, at: float) -> None:
        """Report now of that time."""
        heapq.heappush(self._due, (-math.inf, next(self._numbers), Report(kind, name_of(request_id), at)))

    def poll(self, now: float) -> list[Report]:
        """The reports since the last call."""
        found = []
        while self._due and self._due[0][0] <= now:
            found.append(heapq.heappop(self._due)[2])
        return found
