"""How long the parts of a run last, and how long a run takes.

A run's tail lasts as long as the TTFT objective: at its end every request of the window has its first token in time or
is late for good, and the client lets go of those whose verdict is known (`inside/cut_off.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.engine_overload.cells import Slo, Window

# Until as many requests run as ever will, and the queue of an overload has grown to the TTFT objective.
_SHORTEST_WARM_UP_SECONDS, _LONGEST_WARM_UP_SECONDS, _QUEUES = 5.0, 12.0, 1.2
_AT_CAPACITY_WARM_UP_SECONDS = 8.0
# Without an overload a few mean answers suffice; so they must where only the best of many is looked for.
_CALM_WARM_UP_SECONDS = 4.0
# The probes and the start of the client, 3 s in a rehearsal, and answers that are still to come at the end.
_OVERHEAD_SECONDS = 5.0


@dataclass(frozen=True)
class Seconds:
    """Of the windows: of runs that choose limits and rates, of those at C and above it, and of those below it."""

    glance: float = 8.0
    full: float = 16.0
    calm: float = 10.0

    def of_glance(self, slo: Slo) -> Window:
        """A candidate in the search."""
        return Window(_CALM_WARM_UP_SECONDS, self.glance, slo.ttft_seconds)

    def of_load(self, load: float | None, slo: Slo) -> Window:
        """A load in units of C; None: the point where C was found."""
        if load is None:
            return Window(_AT_CAPACITY_WARM_UP_SECONDS, self.full, slo.ttft_seconds)
        if load <= 1.0:
            return Window(_CALM_WARM_UP_SECONDS, self.calm, slo.ttft_seconds)
        fills = _QUEUES * slo.ttft_seconds / (load - 1.0)
        warm_up = min(max(fills, _SHORTEST_WARM_UP_SECONDS), _LONGEST_WARM_UP_SECONDS)
        return Window(round(warm_up, 1), self.full, slo.ttft_seconds)


def expected_seconds(window: Window) -> float:
    """How long a run takes, from the probe before it to the probe behind it."""
    return window.total_seconds + _OVERHEAD_SECONDS
