"""Check whether engines work with the limits written for them, judged by what the engines report.

The condition must not change because of a failed scrape, a rollout or a change in progress. So an engine is only named
after its limits were missing for longer than writing, reading and scraping take together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast.api.conditions import ConditionType
from holdfast.api.quantities import some_of
from holdfast.api.reasons import Reason
from holdfast.domain.decision import ConditionValue
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.value import value

APPLY_SECONDS = 30.0
"""Time an engine may take to apply limits; the scrape interval is added to it."""

_SIGHTED = frozenset({SignalState.FRESH, SignalState.PARTIAL, SignalState.FOREIGN, SignalState.DUPLICATE})


def can_see(traffic: Traffic) -> bool:
    """Return whether metrics are complete enough for an engine's missing report to count against it."""
    return traffic.state in _SIGHTED


@value
class Watched:
    """A ready engine: the version it should work with, its last report, and since when the two differ."""

    wanted: int
    state: EngineState | None = None
    lacking_since: float | None = None

    @property
    def at_work(self) -> bool:
        """Whether the plugin is active with the wanted version."""
        state = self.state
        return state is not None and state.mode is PluginMode.ACTIVE and state.limits_version == self.wanted


@value
class Applied:
    """State of the fast loop of one service; `condition` is None where no engine has the plugin.

    `live` is what engines report now, None where none has reported. The bounds are the tightest ones in force.
    """

    condition: ConditionValue | None = None
    live: bool | None = None
    active_sequences: float | None = None
    tokens_per_step: float | None = None


NOTHING_APPLIED = Applied()


def watch(
    before: Mapping[str, Watched], wanted: Mapping[str, int], reports: Iterable[EngineState], now: float
) -> dict[str, Watched]:
    """Return the updated state of the engines in `wanted` (ready pods, with the version of their limits).

    An engine that one scrape misses keeps its last report.
    """
    reported = {state.pod: state for state in reports}
    return {pod: _observed(before.get(pod), version, reported.get(pod), now) for pod, version in wanted.items()}


def _observed(before: Watched | None, wanted: int, state: EngineState | None, now: float) -> Watched:
    """Return the updated state of one engine."""
    found = Watched(wanted, state or (before.state if before else None))
    if found.at_work:
        return found
    since = before.lacking_since if before else None
    return replace(found, lacking_since=now if since is None else since)


def applied(watched: Mapping[str, Watched], before: Applied, scrape_seconds: float, now: float) -> Applied:
    """Return the state to report for a service whose ready engines with the plugin are `watched`."""
    patience = _patience_seconds(scrape_seconds)
    overdue = {
        pod: engine
        for pod, engine in sorted(watched.items())
        if engine.lacking_since is not None and now - engine.lacking_since > patience
    }
    reporting = [engine for pod, engine in watched.items() if engine.state is not None or pod in overdue]
    at_work = [engine.state for engine in reporting if engine.state is not None and engine.at_work]
    return Applied(
        condition=_condition(overdue, bool(at_work), before.condition),
        live=len(at_work) == len(reporting) if reporting else None,
        active_sequences=_least(state.active_sequences for state in at_work),
        tokens_per_step=_least(state.tokens_per_step for state in at_work),
    )


def stands_until(watched: Iterable[Watched], scrape_seconds: float, now: float) -> float:
    """Return until when time alone does not change the result of `applied`: no engine becomes overdue."""
    patience = _patience_seconds(scrape_seconds)
    lacking = (engine.lacking_since for engine in watched if engine.lacking_since is not None)
    return min((since + patience for since in lacking if now - since <= patience), default=math.inf)


def _patience_seconds(scrape_seconds: float) -> float:
    """Return how long an engine's limits may be missing before it is overdue."""
    return APPLY_SECONDS + 2.0 * scrape_seconds


def unseen(before: Applied) -> Applied:
    """Return the state to report without metrics: the last condition, with `live` unknown."""
    return replace(before, condition=before.condition or _condition({}, False, None), live=None)


def _condition(overdue: Mapping[str, Watched], any_at_work: bool, before: ConditionValue | None) -> ConditionValue:
    if overdue:
        return _overdue_condition(overdue)
    kind = ConditionType.FAST_LOOP_ACTIVE
    if any_at_work or (before is not None and before.status):
        return ConditionValue(kind, True, Reason.LIMITS_APPLIED, "engines run with the last written limits")
    return ConditionValue(kind, None, Reason.LIMITS_PENDING, "no engine has reported its limits yet")


def _overdue_condition(overdue: Mapping[str, Watched]) -> ConditionValue:
    """Return the condition that names the overdue engines."""
    off = [pod for pod, engine in overdue.items() if engine.state is not None and engine.state.mode is PluginMode.OFF]
    silent = [pod for pod, engine in overdue.items() if engine.state is None]
    late = [pod for pod in overdue if pod not in off and pod not in silent]
    said = (
        (off, "the plugin is off in {}, so vLLM's own scheduler runs; see the engine log"),
        (late, f"limits written more than {APPLY_SECONDS:.0f} s ago have not taken effect in {{}}"),
        (
            silent,
            (
                "no plugin metrics from {}: vLLM runs without the plugin or is not scraped; "
                "check the engine log and the scrape targets"
            ),
        ),
    )
    text = "; ".join(words.format(some_of(pods)) for pods, words in said if pods)
    reason = Reason.PLUGIN_OFF if off else Reason.LIMITS_NOT_APPLIED
    return ConditionValue(ConditionType.FAST_LOOP_ACTIVE, False, reason, text)


def _least(values: Iterable[float | None]) -> float | None:
    """Return the least known value; None without any."""
    return min((value for value in values if value is not None), default=None)
