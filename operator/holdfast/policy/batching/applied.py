"""Whether engines work with the limits that were written for them: judged by what they show, never by what was sent.

A condition must not move with a scrape that fails, a rollout or a change on its way. So an engine is only named after
it has lacked its limits for longer than writing, reading and scraping take together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.decision import ConditionValue
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.value import value

APPLY_SECONDS = 30.0
"""What an engine may take to apply limits; scraping comes on top."""

_MOST_NAMES = 3
_SIGHTED = frozenset({SignalState.FRESH, SignalState.PARTIAL, SignalState.FOREIGN, SignalState.DUPLICATE})


def can_see(traffic: Traffic) -> bool:
    """Whether what is missing of an engine says something about it; if not, nothing is held against anybody."""
    return traffic.state in _SIGHTED


@value
class Watched:
    """One ready engine: the version it should work with, what it showed last, and since when that is not it."""

    wanted: int
    state: EngineState | None = None
    lacking_since: float | None = None

    @property
    def at_work(self) -> bool:
        state = self.state
        return state is not None and state.mode is PluginMode.ACTIVE and state.limits_version == self.wanted


@value
class Applied:
    """What is known of the fast loop of one service; `condition` is None where no engine has the plugin.

    `live` is what engines show at this moment, None where none has shown anything. The bounds are the tightest in
    force.
    """

    condition: ConditionValue | None = None
    live: bool | None = None
    active_sequences: float | None = None
    tokens_per_step: float | None = None


NOTHING_APPLIED = Applied()


def watch(
    before: Mapping[str, Watched], wanted: Mapping[str, int], seen: Iterable[EngineState], now: float
) -> dict[str, Watched]:
    """Return what is known of the engines in `wanted` (pods that are ready, with their version) after another look.

    An engine that one scrape misses is believed to be as it was.
    """
    shown = {state.pod: state for state in seen}
    return {pod: _looked(before.get(pod), version, shown.get(pod), now) for pod, version in wanted.items()}


def _looked(before: Watched | None, wanted: int, state: EngineState | None, now: float) -> Watched:
    found = Watched(wanted, state or (before.state if before else None))
    if found.at_work:
        return found
    since = before.lacking_since if before else None
    return replace(found, lacking_since=now if since is None else since)


def applied(watched: Mapping[str, Watched], before: Applied, scrape_seconds: float, now: float) -> Applied:
    """Return what to tell of a service whose ready engines with the plugin are `watched`, after `before` was told."""
    patience = _patience_seconds(scrape_seconds)
    overdue = {
        pod: engine
        for pod, engine in sorted(watched.items())
        if engine.lacking_since is not None and now - engine.lacking_since > patience
    }
    shown = [engine for pod, engine in watched.items() if engine.state is not None or pod in overdue]
    at_work = [engine.state for engine in shown if engine.state is not None and engine.at_work]
    return Applied(
        condition=_condition(overdue, bool(at_work), before.condition),
        live=len(at_work) == len(shown) if shown else None,
        active_sequences=_least(state.active_sequences for state in at_work),
        tokens_per_step=_least(state.tokens_per_step for state in at_work),
    )


def stands_until(watched: Iterable[Watched], scrape_seconds: float, now: float) -> float:
    """Return until when time alone changes nothing of what `applied` told now: no engine becomes overdue."""
    patience = _patience_seconds(scrape_seconds)
    lacking = (engine.lacking_since for engine in watched if engine.lacking_since is not None)
    return min((since + patience for since in lacking if now - since <= patience), default=math.inf)


def _patience_seconds(scrape_seconds: float) -> float:
    return APPLY_SECONDS + 2.0 * scrape_seconds


def unseen(before: Applied) -> Applied:
    """Return what to tell while nothing can be seen: what was found before, and that nobody knows whether it lasts."""
    return replace(before, condition=before.condition or _condition({}, False, None), live=None)


def _condition(overdue: Mapping[str, Watched], any_at_work: bool, before: ConditionValue | None) -> ConditionValue:
    if overdue:
        return _lacking(overdue)
    kind = ConditionType.FAST_LOOP_ACTIVE
    if any_at_work or (before is not None and before.status):
        return ConditionValue(kind, True, Reason.LIMITS_APPLIED, "engines work with the limits last written")
    return ConditionValue(kind, None, Reason.LIMITS_PENDING, "no engine has shown yet that it works with its limits")


def _lacking(overdue: Mapping[str, Watched]) -> ConditionValue:
    off = [pod for pod, engine in overdue.items() if engine.state is not None and engine.state.mode is PluginMode.OFF]
    silent = [pod for pod, engine in overdue.items() if engine.state is None]
    late = [pod for pod in overdue if pod not in off and pod not in silent]
    said = (
        (off, "the plugin is off, and vLLM's own scheduling serves, in {} (the log says why)"),
        (late, f"limits written more than {APPLY_SECONDS:.0f} s ago are not in force in {{}}"),
        (silent, "no metrics of the plugin come from {}: its vLLM runs without it, or is not scraped"),
    )
    text = "; ".join(words.format(_some(pods)) for pods, words in said if pods)
    reason = Reason.PLUGIN_OFF if off else Reason.LIMITS_NOT_APPLIED
    return ConditionValue(ConditionType.FAST_LOOP_ACTIVE, False, reason, text)


def _some(pods: list[str]) -> str:
    more = len(pods) - _MOST_NAMES
    return ", ".join(pods[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
