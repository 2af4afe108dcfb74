"""A policy in the style of SageServe: an hourly forecast sets a floor, memory in use trims around it.

Source: SageServe, arXiv 2502.14617: hourly ARIMA per model, an integer program that turns token rates into instances,
and reactive trimming at an effective memory utilization above 0.5 and below 0.25. With one model on one kind of GPU the
program is a division. Its profile is taken from the step times, as Dynamo's planner does (perf_model/agg.py).
A system that runs knows the hours before, a scenario does not tell them: the load of the first five minutes is taken
for that of the hour before, so that runs of less than an hour have a floor too, and only longer ones follow changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import Sight

HOUR_SECONDS = 3600.0
MINUTES_SECONDS = 300.0


@dataclass(slots=True)
class _History:
    """Highest rate of five minutes in each hour, what is under way, and the floor for this hour."""

    began: float
    peaks: list[float] = field(default_factory=list)
    peak: float = 0.0
    minutes: list[tuple[float, float]] = field(default_factory=list)
    floor: int = 1


class SageServe(Peer):
    """One replica more above 0.5 of the KV cache or below the floor, one less below 0.25; one change per start-up.

    The knob is the 0.5, the 0.25 goes along.
    """

    name = "sageserve"
    behavior = None
    _high, _low = 0.5, 0.25

    def __init__(self, util: float = _high) -> None:
        super().__init__()
        self._target = positive(self.name, "util", util)
        self._histories: dict[ServiceKey, _History] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        history = self._histories.setdefault(key, _History(now))
        self._remember(history, seen, now)
        if seen.size < history.floor:
            return history.floor
        if seen.ready < seen.size or not seen.engines:
            return seen.size
        usage = fmean(seen.kv_usage)
        if usage > self._target:
            return seen.size + 1
        if usage < self._target * self._low / self._high and seen.size > history.floor:
            return seen.size - 1
        return seen.size

    def _remember(self, history: _History, seen: Sight, now: float) -> None:
        history.minutes = [each for each in history.minutes if each[0] > now - MINUTES_SECONDS]
        history.minutes.append((now, seen.arrivals_rps))
        if now - history.began < MINUTES_SECONDS and not history.peaks:
            return
        history.peak = max(history.peak, fmean(rate for _, rate in history.minutes))
        if not history.peaks:
            self._plan(history, seen)
        elif now - history.began >= HOUR_SECONDS:
            self._plan(history, seen)
            history.began, history.peak = now, 0.0

    def _plan(self, history: _History, seen: Sight) -> None:
        history.peaks.append(history.peak)
        history.floor = max(1, math.ceil(forecast(history.peaks) / max(engine_rps(seen), 1e-9)))


def forecast(peaks: Sequence[float]) -> float:
    """The next value by ARIMA(1, 1, 0), its coefficient by least squares; the last one where there are too few."""
    steps = [after - before for before, after in itertools.pairwise(peaks)]
    squares = sum(step * step for step in steps[:-1])
    if squares <= 0.0:
        return peaks[-1]
    slope = sum(before * after for before, after in itertools.pairwise(steps)) / squares
    return max(0.0, peaks[-1] + min(max(slope, -1.0), 1.0) * steps[-1])


def engine_rps(seen: Sight) -> float:
    """Requests per second of the largest batch whose step, prompts of the same rate included, keeps TPOT."""
    output, best = max(1.0, seen.output_tokens), 0.0
    for batch in range(1, seen.shape.max_num_seqs + 1):
        prompts = round(batch * seen.prompt_tokens / output)
        context = seen.prompt_tokens + 0.5 * output
        if prompts + batch > seen.shape.max_num_batched_tokens or batch * context > seen.shape.kv_tokens:
            break
        seconds = seen.shape.timer.step_seconds(((prompts, 0),) if prompts else (), batch, context)
        if seconds > seen.slo.tpot_seconds:
            break
        best = max(best, batch / (output * seconds))
    return best
