"""What fields of a spec ask of each other: in CEL for the API server, in Python for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.rules import Rule

if TYPE_CHECKING:
    from holdfast.api.llmservice import Accelerator, LLMServiceSpec


def _costs(spec: LLMServiceSpec) -> list[bool]:
    return [accelerator.cost_per_hour is not None for accelerator in spec.accelerators]


def _pays_for(spec: LLMServiceSpec, replicas: int) -> bool:
    most = spec.budget.max_cost_per_hour
    return most is None or any(
        a.cost_per_hour is None or a.cost_per_hour * (a.count * replicas) <= most * _ROUNDING for a in spec.accelerators
    )


_ROUNDING = 1.000001  # prices are decimal fractions: three times 0.1 is more than 0.3
_NO_BUDGET = "!has(self.budget) || !has(self.budget.maxCostPerHour)"
_NO_SCHEDULES = "!has(self.scaling.schedules)"
_LEAST = "(self.scaling.min > 0 ? self.scaling.min : 1)"


def _least(spec: LLMServiceSpec) -> int:
    """Fewest replicas that must be possible: at rest, the next one."""
    return max(1, spec.scaling.min)


def _cel_pays_for(replicas: str) -> str:
    """CEL for `_pays_for`, where there is a budget."""
    return (
        "self.accelerators.exists(a, !has(a.costPerHour)"
        f" || a.costPerHour * double(a.count * {replicas}) <= self.budget.maxCostPerHour * {_ROUNDING})"
    )


DISTINCT_ACCELERATORS = Rule(
    "self.accelerators.all(a, self.accelerators.exists_one(b, b.name == a.name))",
    "accelerators must have distinct names: rename or remove the duplicate",
    lambda spec: len({accelerator.name for accelerator in spec.accelerators}) == len(spec.accelerators),
    ".accelerators",
)
COSTS_ALL_OR_NONE = Rule(
    "self.accelerators.all(a, has(a.costPerHour)) || !self.accelerators.exists(a, has(a.costPerHour))",
    "costPerHour must be given for all accelerators or for none: add the missing ones or remove the others",
    lambda spec: len(set(_costs(spec))) == 1,
    ".accelerators",
)
BUDGET_NEEDS_COSTS = Rule(
    f"{_NO_BUDGET} || self.accelerators.all(a, has(a.costPerHour))",
    "budget.maxCostPerHour needs costPerHour on every accelerator: add the costs or remove the budget",
    lambda spec: spec.budget.max_cost_per_hour is None or all(_costs(spec)),
    ".budget",
)
BUDGET_PAYS_FOR_THE_MINIMUM = Rule(
    f"{_NO_BUDGET} || {_cel_pays_for(_LEAST)}",
    "budget.maxCostPerHour pays for no replica, or for fewer than scaling.min, on every accelerator:"
    " raise it or lower min",
    lambda spec: _pays_for(spec, _least(spec)),
    ".budget",
)
BUDGET_PAYS_FOR_THE_SCHEDULES = Rule(
    f"{_NO_BUDGET} || {_NO_SCHEDULES} || self.scaling.schedules.all(s, {_cel_pays_for('s.min')})",
    "budget.maxCostPerHour pays for fewer replicas than the min of a schedule on every accelerator:"
    " raise it or lower the schedule's min",
    lambda spec: _pays_for(spec, spec.scaling.highest_floor),
    ".budget",
)
REPLICAS_WITHIN_BOUNDS = Rule(
    "!has(self.replicas) || (self.replicas >= self.scaling.min && self.replicas <= self.scaling.max)",
    "replicas must be within scaling.min and scaling.max: change it or the bounds, or remove it to resume SLO scaling",
    lambda spec: spec.replicas is None or spec.scaling.min <= spec.replicas <= spec.scaling.max,
    ".replicas",
)
_NO_MAXIMA = "self.accelerators.exists(a, !has(a.max))"
_MAXIMA = "self.accelerators.map(a, a.max).sum()"


def _hold(spec: LLMServiceSpec, replicas: int) -> bool:
    """Whether the accelerators may run so many together."""
    most = [accelerator.max for accelerator in spec.accelerators]
    return None in most or sum(filter(None, most)) >= replicas


MAXIMA_HOLD_THE_MINIMUM = Rule(
    f"{_NO_MAXIMA} || {_MAXIMA} >= {_LEAST}",
    "the accelerators' max allow no replica, or fewer together than scaling.min: raise one of them, or lower min",
    lambda spec: _hold(spec, _least(spec)),
    ".accelerators",
)
MAXIMA_HOLD_THE_SCHEDULES = Rule(
    f"{_NO_MAXIMA} || {_NO_SCHEDULES} || self.scaling.schedules.all(s, s.min <= {_MAXIMA})",
    "the accelerators' max allow fewer replicas together than the min of a schedule:"
    " raise one of them, or lower the schedule's min",
    lambda spec: _hold(spec, spec.scaling.highest_floor),
    ".accelerators",
)
_NO_FLOOR = "!has(self.scaling.minOnDemand) || self.scaling.minOnDemand == 0"
_CEL_REGULAR = (
    "(!has(a.spot) || !a.spot) && (!has(a.max) || a.max >= self.scaling.minOnDemand)"
    " && (!has(self.budget) || !has(self.budget.maxCostPerHour) || !has(a.costPerHour)"
    f" || a.costPerHour * double(a.count * self.scaling.minOnDemand) <= self.budget.maxCostPerHour * {_ROUNDING})"
)


def _keeps_the_floor(spec: LLMServiceSpec, accelerator: Accelerator) -> bool:
    floor, limit, cost = spec.scaling.min_on_demand, spec.budget.max_cost_per_hour, accelerator.cost_per_hour
    room = accelerator.max is None or accelerator.max >= floor
    paid = limit is None or cost is None or cost * (accelerator.count * floor) <= limit * _ROUNDING
    return not accelerator.spot and room and paid


FLOOR_CAN_BE_KEPT = Rule(
    f"{_NO_FLOOR} || self.accelerators.exists(a, {_CEL_REGULAR})",
    "scaling.minOnDemand needs an accelerator that is not spot, with a max and a budget for that many replicas:"
    " list one, raise its max or the budget, or lower minOnDemand",
    lambda spec: not spec.scaling.min_on_demand or any(_keeps_the_floor(spec, a) for a in spec.accelerators),
    ".scaling",
)
ZERO_WITHOUT_TLS = Rule(
    "self.scaling.min > 0 || !has(self.engine) || !has(self.engine.tlsSecretRef)",
    "scaling.min 0 and engine.tlsSecretRef exclude each other, for what holds requests has no certificate:"
    " raise scaling.min, or end TLS at a gateway",
    lambda spec: spec.scaling.min > 0 or spec.engine.tls_secret_ref is None,
    ".scaling",
)
ACTIVATOR_IS_TAKEN = Rule(
    "self.scaling.min > 0 || !self.accelerators.exists(a, a.name == 'activator')",
    "with scaling.min 0 no accelerator may be called activator, which is what holds requests: rename it",
    lambda spec: spec.scaling.min > 0 or all(a.name != "activator" for a in spec.accelerators),
    ".accelerators",
)

SPEC_RULES = (
    DISTINCT_ACCELERATORS,
    COSTS_ALL_OR_NONE,
    BUDGET_NEEDS_COSTS,
    BUDGET_PAYS_FOR_THE_MINIMUM,
    BUDGET_PAYS_FOR_THE_SCHEDULES,
    REPLICAS_WITHIN_BOUNDS,
    MAXIMA_HOLD_THE_MINIMUM,
    MAXIMA_HOLD_THE_SCHEDULES,
    FLOOR_CAN_BE_KEPT,
    ZERO_WITHOUT_TLS,
    ACTIVATOR_IS_TAKEN,
)
"""In the order in which they are told."""
