"""What the demo plays, and why each figure is what it is."""

from __future__ import annotations

import dataclasses

from e2e.load import trace
from e2e.load.verdict import Span


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One load step; seconds count from the first moment of load.

    | figure          | reason                                                                                   |
    |-----------------|------------------------------------------------------------------------------------------|
    | base_rps 4      | what the two replicas of the manifest carry with room to spare                           |
    | factor 3        | 1.4 times what two replicas carry: the fast loop keeps most of that good, stock does not |
    | before 90 s     | three windows of calm, and more than one rate window of history for the forecast         |
    | step 120 s      | one cold start (30 s and a pod's own few), two ticks, then at least two whole windows    |
    | after 180 s     | the hold before letting go is drain plus lead time, about 80 s; the rest shows the drain |
    | cold_start 30 s | emulated: what weights of this size take from a warm local cache                         |
    | tick 5 s        | the operator's default                                                                   |
    | scrape 2 s      | with 15 s or more the scrape would be a large part of a lead time as short as this one   |
    | window 30 s     | about 120 requests at the base load: enough for a share of 95 % to say something         |
    """

    base_rps: float = 4.0
    factor: float = 3.0
    before_seconds: float = 90.0
    step_seconds: float = 120.0
    after_seconds: float = 180.0
    cold_start_seconds: float = 30.0
    tick_seconds: float = 5.0
    scrape_seconds: float = 2.0
    window_seconds: float = 30.0
    seed: int = 1

    @property
    def step_start_seconds(self) -> float:
        """Return when the load rises."""
        return self.before_seconds

    @property
    def step_end_seconds(self) -> float:
        """Return when the load falls back."""
        return self.before_seconds + self.step_seconds

    @property
    def duration_seconds(self) -> float:
        """Return the length of the load."""
        return self.before_seconds + self.step_seconds + self.after_seconds

    def load(self) -> trace.LoadStep:
        """Return the load step that the trace is cut to."""
        return trace.LoadStep(
            self.base_rps, self.factor, self.step_start_seconds, self.step_end_seconds, self.duration_seconds
        )

    def excused(self, start: float, cold_start_seconds: float) -> Span:
        """Return the span in which a miss is forgiven, for a load that began at `start` (epoch seconds).

        One cold start, as it was measured on the first replica of this very run before any load, and two ticks: one to
        see the step and one to act on it.
        """
        step = start + self.step_start_seconds
        return Span(step, step + cold_start_seconds + 2 * self.tick_seconds)

    def phase(self, elapsed_seconds: float, cold_start_seconds: float) -> str:
        """Return what is going on, in words."""
        if elapsed_seconds < 0:
            return "about to begin"
        if elapsed_seconds < self.step_start_seconds:
            return f"base load, {self.base_rps:g} req/s as recorded"
        if elapsed_seconds >= self.duration_seconds:
            return "load over, last answers are coming in"
        if elapsed_seconds >= self.step_end_seconds:
            return "load back to x1: replicas are let go, no stream may break"
        if elapsed_seconds < self.step_start_seconds + cold_start_seconds + 2 * self.tick_seconds:
            return f"LOAD x{self.factor:g}: new replicas start (a cold start takes {cold_start_seconds:.0f} s)"
        return f"LOAD x{self.factor:g}: the objective must hold again"
