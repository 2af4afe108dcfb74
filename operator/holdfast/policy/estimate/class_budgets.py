"""Error budgets by class: the class that is hardest to keep stands for the service.

Requests that claim no class are a class without a name, with the service's own objectives.

Source: docs/designs/0030-classes.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast.domain.service import Slo
from holdfast.domain.signals import History
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.enginemodel.class_mix import MATERIAL_SHARE
from holdfast.policy.estimate.evidence_window import LEAST_REQUESTS, LOOK_SECONDS
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.estimate.slo_budget import (
    NONE,
    Budget,
    SloState,
    Verdicts,
    add,
    budget_from_history,
    recent,
    slo_state,
)

SHARES_SECONDS, LEAST_JUDGED = 600.0, 20.0
"""Time over which the shares of the classes are taken, and the fewest requests that show them."""

Budgets = Mapping[str, Budget]
"""The budget of each class by its name, the service's own first; empty where a service has no classes."""


@value
class ClassState:
    """The objectives of a class, its budget, and what that means."""

    slo: Slo
    budget: Budget
    state: SloState


def account_classes(
    memory: Budgets, before: Budget, judged: Budget, engines: Verdicts, seen: Seen, slo: Slo, now: float
) -> Budgets:
    """Add the verdicts of the last tick to the budget of their class; the latest ones are those of `engines` alone.

    What no class claims is the service's own, as is all that was judged `before` there were classes.
    """
    if not slo.classes:
        return {}
    exact = seen.total.exact
    counted = 0.0 if exact is None else exact.good + exact.bad
    share = engines.judged / counted if counted > 0.0 else 0.0
    told = {each.name: Verdicts(each.good * share, each.bad * share) for each in seen.classes}
    found = {each.name: told.get(each.name, NONE) for each in slo.classes}
    own = add(_of_window(memory.get(slo.name, before), slo), _without(judged.latest, found.values()), now)
    return {
        slo.name: replace(own, latest=_without(engines, found.values())),
        **{name: add(_of_window(memory.get(name, Budget()), slo), each, now) for name, each in found.items()},
    }


def _of_window(memory: Budget, slo: Slo) -> Budget:
    return memory if memory.window_seconds == slo.window_seconds else Budget(window_seconds=slo.window_seconds)


def _without(whole: Verdicts, parts: Iterable[Verdicts]) -> Verdicts:
    """Return the rest. The activator retracts verdicts: no number may become negative."""
    good, bad = whole.good, whole.bad
    for part in parts:
        good, bad = good - part.good, bad - part.bad
    return Verdicts(max(0.0, good), max(0.0, bad))


def classes_from_history(history: History, slo: Slo, now: float) -> Budgets:
    """Rebuild the budgets from the history of Prometheus."""
    each = (slo, *slo.classes) if slo.classes else ()
    return {one.name: budget_from_history(_of_class(history, one.name), slo, now) for one in each}


def _of_class(history: History, name: str) -> History:
    """Return the history with the verdicts of one class, or those of no class."""
    samples = []
    for sample in history.samples:
        each = {one.name: Verdicts(one.good, one.bad) for one in sample.classes}
        found = each.get(name, NONE) if name else _without(Verdicts(sample.good, sample.bad), each.values())
        samples.append(replace(sample, good=found.good, bad=found.bad))
    return replace(history, samples=tuple(samples))


def class_states(budgets: Budgets, whole: Budget, engines: Verdicts, slo: Slo, now: float) -> tuple[ClassState, ...]:
    """Return what the verdicts of each class mean: those of all requests where a service has no classes."""
    if not slo.classes:
        return (ClassState(slo, replace(whole, latest=engines), slo_state(whole, slo, now)),)
    judged = math.fsum(each.total.judged for each in budgets.values())
    return tuple(
        ClassState(each, budget, slo_state(budget, each, now, (budget.total.judged or 1.0) / (judged or 1.0)))
        for each, budget in zip((slo, *slo.classes), budgets.values(), strict=True)
    )


def helped(states: Sequence[ClassState], belief: Belief | None) -> Sequence[ClassState]:
    """Return the classes that replicas help, by what is believed of the accelerator: all where they help none."""
    return [each for each in states if belief is None or belief.meets(each.slo.name)] or states


def spare_requests(states: Sequence[ClassState], belief: Belief | None, level_rps: float) -> float:
    """Return how many requests of a window may still be bad at this level of arrivals of all; at least 0.

    They are those of the hardest of the classes that replicas help.
    """
    found = hardest(helped(states, belief))
    state, slo = found.state, found.slo
    bad = 0.0 if state.attainment is None else (1.0 - state.attainment) * state.judged
    expected = max(state.judged, level_rps * state.share * slo.window_seconds)
    return max(0.0, slo.budget_share * expected - bad) / state.share


def hardest(states: Sequence[ClassState]) -> ClassState:
    """Return the class that burned most of its budget; the service's own where too few were judged to say."""
    return min(states, key=lambda each: math.inf if (left := each.state.budget_remaining) is None else left)


def shares(states: Sequence[ClassState], now: float) -> dict[str, float]:
    """Return the share of each class in the requests that were judged lately; empty where too few were, or no class."""
    if len(states) == 1:
        return {}
    judged = {each.slo.name: recent(each.budget, now, SHARES_SECONDS).judged for each in states}
    whole = math.fsum(judged.values())
    return {name: one / whole for name, one in judged.items()} if whole >= LEAST_JUDGED else {}


def evidence_of(
    verdicts: Verdicts, states: Sequence[ClassState], belief: Belief | None, slo: Slo, level_rps: float, now: float
) -> Verdicts:
    """Return the verdicts that say whether replicas keep up, for the service's own objective.

    They are those of the class that lately burned most: in time, the others would hide that it is late. It has a
    material share, and enough requests for a look. Without such a class all `verdicts` count, and so they do where
    replicas do not help every class. A bad request counts more where its class allows fewer.
    """
    least = max(MATERIAL_SHARE, LEAST_REQUESTS / (LOOK_SECONDS * level_rps)) if level_rps > 0.0 else math.inf
    lately = shares(states, now)
    told = [each for each in states if lately.get(each.slo.name, 0.0) >= least]
    if not told or len(helped(states, belief)) < len(states):
        return verdicts
    found = max(told, key=lambda each: recent(each.budget, now, SHARES_SECONDS).bad_share / each.slo.budget_share)
    good, bad = found.budget.latest.good, found.budget.latest.bad
    more = bad * (slo.budget_share / found.slo.budget_share - 1.0)
    return Verdicts(max(0.0, good - more), bad + more)
