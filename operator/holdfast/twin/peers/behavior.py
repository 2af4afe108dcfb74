"""How a HorizontalPodAutoscaler carries out what a metric asks for: stabilization windows and scaling policies.

Source: Kubernetes autoscaling/v2, pkg/controller/podautoscaler/horizontal.go, stabilizeRecommendationWithBehaviors
and convertDesiredReplicasWithBehaviorRate; replica_calculator.go, GetExternalPerPodMetricReplicas and isWithin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Steps:
    """Scaling policies of one direction, the largest change of them counts; `window_seconds` is its stabilization."""

    percent: float | None
    pods: int | None
    period_seconds: float
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Behavior:
    """An HPA's `behavior`; the defaults are Kubernetes'."""

    up: Steps = Steps(100.0, 4, 15.0, 0.0)
    down: Steps = Steps(100.0, None, 15.0, 300.0)

    @property
    def longest_seconds(self) -> float:
        """What is older counts for nothing."""
        return max(max(steps.period_seconds, steps.window_seconds) for steps in (self.up, self.down))


@dataclass(slots=True)
class Governor:
    """One HPA's memory: what was recommended, and what was added and removed, each with its moment."""

    behavior: Behavior
    recommended: list[tuple[float, int]] = field(default_factory=list)
    changed: list[tuple[float, int]] = field(default_factory=list)

    def size(self, now: float, current: int, wanted: int) -> int:
        """The size that may be taken now on the way to the wanted one."""
        found = self._limited(now, current, self._stabilized(now, current, wanted))
        oldest = now - self.behavior.longest_seconds
        self.recommended = [each for each in self.recommended if each[0] > oldest]
        self.changed = [each for each in self.changed if each[0] > oldest]
        if found != current:
            self.changed.append((now, found - current))
        return found

    def _stabilized(self, now: float, current: int, wanted: int) -> int:
        if not self.recommended:
            # As recordInitialRecommendation does: a controller that has just started does not scale down.
            self.recommended.append((now, current))
        self.recommended.append((now, wanted))
        least = min(self._lately(now, self.behavior.up.window_seconds), default=wanted)
        most = max(self._lately(now, self.behavior.down.window_seconds), default=wanted)
        return min(max(current, min(least, wanted)), max(most, wanted))

    def _lately(self, now: float, seconds: float) -> list[int]:
        return [size for at, size in self.recommended if at > now - seconds]

    def _limited(self, now: float, current: int, wanted: int) -> int:
        if wanted > current:
            steps, began = self.behavior.up, self._before(now, current, self.behavior.up)
            most = [current]
            most += [] if steps.percent is None else [math.ceil(began * (1.0 + steps.percent / 100.0))]
            most += [] if steps.pods is None else [began + steps.pods]
            return min(wanted, max(most))
        if wanted < current:
            steps, began = self.behavior.down, self._before(now, current, self.behavior.down)
            least = [current]
            least += [] if steps.percent is None else [math.floor(began * (1.0 - steps.percent / 100.0))]
            least += [] if steps.pods is None else [began - steps.pods]
            return max(wanted, min(least))
        return current

    def _before(self, now: float, current: int, steps: Steps) -> int:
        """The size at the beginning of the period, without what changed the other way."""
        return current - sum(change for at, change in self.changed if at > now - steps.period_seconds)


TOLERANCE = 0.1


def average_value(total: float, target: float, current: int) -> int:
    """An external or pods metric with AverageValue: ceil(total / target), but nothing within 10 % of the target."""
    if current > 0 and 1.0 - TOLERANCE <= total / (target * current) <= 1.0 + TOLERANCE:  # as isWithin: 11 of 10 are
        return current
    return math.ceil(total / target)
