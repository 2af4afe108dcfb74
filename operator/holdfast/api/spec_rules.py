"""What fields of a spec ask of each other: in CEL for the API server, in Python for the operator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.api.classes import CLASS_RULES
from holdfast.api.engine_flags import GENERATES
from holdfast.api.inference_pool import POOL_WITHOUT_ZERO
from holdfast.api.lora import LORA_RULES
from holdfast.api.parallelism import cel_gpus
from holdfast.api.prefill import PREFILL_RULES
from holdfast.api.router import ROUTER_IS_TAKEN, ROUTER_RULES
from holdfast.api.rules import Rule
from holdfast.api.target import TARGET_RULES, unless_target

Spec = Any
Accelerator = Any
"""The values that a rule gets; the modules of their types list the rules."""


def _costs(spec: Spec) -> list[bool]:
    return [accelerator.cost_per_hour is not None for accelerator in spec.accelerators]


_ROUNDING = 1.000001  # prices are decimal fractions: three times 0.1 is more than 0.3
_NO_BUDGET = "!has(self.budget) || !has(self.budget.maxCostPerHour)"
_NO_SCHEDULES = "!has(self.scaling.schedules)"
_NO_FLOOR = "!has(self.scaling.minOnDemand) || self.scaling.minOnDemand == 0"
_LEAST = "self.scaling.min > 0 ? self.scaling.min : 1"
_FLOOR = "has(self.scaling.minOnDemand) ? self.scaling.minOnDemand : 0"


def _may_run(spec: Spec, replicas: int, *, on_demand: bool = False) -> bool:
    """Whether the spec allows so many: accelerators are used one at a time, within their max and the budget.

    With scaling.minOnDemand a spot accelerator serves together with that many on-demand replicas of the same resource
    and count.
    """
    floor = spec.scaling.min_on_demand
    on_demand_replicas = min(floor, replicas)
    regular = [each for each in spec.accelerators if not each.spot]
    spots = [each for each in spec.accelerators if each.spot and not on_demand]
    alone = regular if floor else regular + spots
    if any(_has_room(each, replicas) and _is_paid(spec, (each, replicas)) for each in alone):
        return True
    return floor > 0 and any(
        (spot.resource, spot.count) == (each.resource, each.count)
        and _has_room(spot, replicas - on_demand_replicas) and _has_room(each, floor)
        and _is_paid(spec, (spot, replicas - on_demand_replicas), (each, on_demand_replicas))
        for spot in spots for each in regular
    )  # fmt: skip


def _has_room(accelerator: Accelerator, replicas: int) -> bool:
    return accelerator.max is None or accelerator.max >= replicas


def _is_paid(spec: Spec, *parts: tuple[Accelerator, int]) -> bool:
    limit = spec.budget.max_cost_per_hour
    cost = sum((accelerator.cost_per_hour or 0.0) * (accelerator.count * replicas) for accelerator, replicas in parts)
    return limit is None or cost <= limit * _ROUNDING


def _cel_may_run(replicas: str, *, on_demand: bool = False) -> str:
    """CEL for `_may_run`; lists of one name the replicas n, the floor f, and the on-demand replicas d."""
    spot, alone = "(has(a.spot) && a.spot)", f"{_cel_room('a', 'n')} && {_cel_paid(('a', 'n'))}"
    if on_demand:
        return f"[{replicas}].all(n, self.accelerators.exists(a, !{spot} && {alone}))"
    alike = f"b.resource == a.resource && {cel_gpus('b')} == {cel_gpus('a')} && !(has(b.spot) && b.spot)"
    keeper = f"{alike} && {_cel_room('b', 'f')} && {_cel_paid(('a', '(n - d)'), ('b', 'd'))}"
    pair = f"f > 0 && {spot} && {_cel_room('a', 'n - d')} && self.accelerators.exists(b, {keeper})"
    found = f"self.accelerators.exists(a, (f == 0 || !{spot}) && {alone} || {pair})"
    return f"[{replicas}].all(n, [{_FLOOR}].all(f, [n < f ? n : f].all(d, {found})))"


def _cel_room(name: str, replicas: str) -> str:
    return f"(!has({name}.max) || {name}.max >= {replicas})"


def _cel_paid(*parts: tuple[str, str]) -> str:
    cost = " + ".join(
        f"(has({name}.costPerHour) ? {name}.costPerHour * double({cel_gpus(name)} * {replicas}) : 0.0)"
        for name, replicas in parts
    )
    return f"({_NO_BUDGET} || {cost} <= self.budget.maxCostPerHour * {_ROUNDING})"


DISTINCT_ACCELERATORS = Rule(
    "self.accelerators.all(a, self.accelerators.exists_one(b, b.name == a.name))",
    "accelerators must have distinct names: rename or remove the duplicate",
    lambda spec: len({accelerator.name for accelerator in spec.accelerators}) == len(spec.accelerators),
    ".accelerators",
)
COSTS_ALL_OR_NONE = Rule(
    "self.accelerators.all(a, has(a.costPerHour)) || !self.accelerators.exists(a, has(a.costPerHour))",
    "costPerHour must be set for all accelerators or for none: add the missing prices or remove the others",
    lambda spec: len(set(_costs(spec))) == 1,
    ".accelerators",
)
BUDGET_NEEDS_COSTS = Rule(
    f"{_NO_BUDGET} || self.accelerators.all(a, has(a.costPerHour))",
    "budget.maxCostPerHour needs costPerHour on every accelerator: add the prices or remove the budget",
    lambda spec: spec.budget.max_cost_per_hour is None or all(_costs(spec)),
    ".budget",
)
MINIMUM_CAN_RUN = Rule(
    _cel_may_run(_LEAST),
    "scaling.min replicas, at least one, must fit within the max of an accelerator and budget.maxCostPerHour:"
    " raise a max or the budget, or lower min",
    lambda spec: _may_run(spec, max(1, spec.scaling.min)),
    ".accelerators",
)
SCHEDULES_CAN_RUN = Rule(
    f"{_NO_SCHEDULES} || self.scaling.schedules.all(s, {_cel_may_run('s.min')})",
    "the min of each schedule must fit within the max of an accelerator and budget.maxCostPerHour:"
    " raise a max or the budget, or lower the schedule's min",
    lambda spec: _may_run(spec, spec.scaling.highest_floor),
    ".accelerators",
)
REPLICAS_WITHIN_BOUNDS = Rule(
    "!has(self.replicas) || (self.replicas >= self.scaling.min && self.replicas <= self.scaling.max)",
    "replicas must be within scaling.min and scaling.max: change it or the bounds, or remove it to resume SLO scaling",
    lambda spec: spec.replicas is None or spec.scaling.min <= spec.replicas <= spec.scaling.max,
    ".replicas",
)
REPLICAS_CAN_RUN = Rule(
    f"!has(self.replicas) || {_cel_may_run('self.replicas')}",
    "replicas must fit within the max of an accelerator and budget.maxCostPerHour:"
    " raise a max or the budget, lower replicas, or remove it to resume SLO scaling",
    lambda spec: spec.replicas is None or _may_run(spec, spec.replicas),
    ".replicas",
)
FLOOR_CAN_RUN = Rule(
    f"{_NO_FLOOR} || {_cel_may_run('self.scaling.minOnDemand', on_demand=True)}",
    "scaling.minOnDemand needs an on-demand accelerator, with a max and a budget for that many replicas:"
    " list one, raise its max or the budget, or lower minOnDemand",
    lambda spec: not spec.scaling.min_on_demand or _may_run(spec, spec.scaling.min_on_demand, on_demand=True),
    ".scaling",
)
ZERO_WITHOUT_TLS = Rule(
    "self.scaling.min > 0 || !has(self.engine) || !has(self.engine.tlsSecretRef)",
    "scaling.min 0 and engine.tlsSecretRef exclude each other, because the activator has no certificate:"
    " raise scaling.min, or terminate TLS at a gateway",
    lambda spec: spec.scaling.min > 0 or spec.engine.tls_secret_ref is None,
    ".scaling",
)
ACTIVATOR_IS_TAKEN = Rule(
    "self.scaling.min > 0 || !self.accelerators.exists(a, a.name == 'activator')",
    "with scaling.min 0 no accelerator may have the name activator, which the operator uses: rename it",
    lambda spec: spec.scaling.min > 0 or all(a.name != "activator" for a in spec.accelerators),
    ".accelerators",
)


def _python(cel: str, field: str, why: str, holds: Callable[[Spec], bool]) -> Rule:
    """What the Rust front end cannot do."""
    rust = "has(self.engine) && has(self.engine.frontEnd) && self.engine.frontEnd == 'Rust'"
    return Rule(
        f"!({rust}) || {cel}",
        f"engine.frontEnd Rust and {field} exclude each other, because {why}: remove {field}, or set frontEnd: Python",
        lambda spec: not spec.engine.has_rust_front_end or holds(spec),
        ".engine.frontEnd",
    )


RUST_RULES = (
    _python(
        "self.overload == 'Queue'",
        "overload Reject",
        "that front end cannot answer a refused request with 503",
        lambda spec: spec.overload == "Queue",
    ),
    _python(
        "!has(self.engine.tlsSecretRef)",
        "engine.tlsSecretRef",
        "that front end does not read a renewed certificate",
        lambda spec: spec.engine.tls_secret_ref is None,
    ),
)

_NO_TEXT = re.compile(
    "(?i)((sentence-transformers|cross-encoder|distil-whisper)/.*|([^/:]+/)?([^/:]*[-_.])?(embed|embed(ding|der|qa)[a-z]*|"
    "rerank[a-z]*|bge|gte|e5|reward|classif[a-z]*|(ro|distil|modern|col|de|al)?berta?|col(pali|qwen[0-9]*)|whisper|asr|"
    "parakeet)([-_.][^/:]*)?)"
)
"""Names on the Hugging Face Hub of models that embed, rank, classify or transcribe."""


def is_named_for_text(uri: str) -> bool:
    """Whether nothing in the name of a model says that it makes something else than text."""
    return _NO_TEXT.fullmatch(uri) is None


GENERATES_TEXT = Rule(
    f"!self.model.uri.matches('^{_NO_TEXT.pattern}$') "
    f" || has(self.engine) && has(self.engine.args) && self.engine.args.exists(a, a == '{GENERATES}')",
    "model.uri names a model for embeddings, ranking, classification or speech, and ttft and tpot say nothing of those:"
    f" serve it without Holdfast, or add {GENERATES} to engine.args if it generates text",
    lambda spec: is_named_for_text(spec.model.uri) or GENERATES in spec.engine.args,
    ".model.uri",
)

SPEC_RULES = (
    *TARGET_RULES,
    unless_target(GENERATES_TEXT, "model"),
    unless_target(DISTINCT_ACCELERATORS, "accelerators"),
    unless_target(COSTS_ALL_OR_NONE, "accelerators"),
    unless_target(BUDGET_NEEDS_COSTS, "accelerators"),
    unless_target(FLOOR_CAN_RUN, "accelerators"),
    unless_target(MINIMUM_CAN_RUN, "accelerators"),
    unless_target(SCHEDULES_CAN_RUN, "accelerators"),
    REPLICAS_WITHIN_BOUNDS,
    unless_target(REPLICAS_CAN_RUN, "accelerators"),
    ZERO_WITHOUT_TLS,
    POOL_WITHOUT_ZERO,
    *ROUTER_RULES,
    *RUST_RULES,
    *CLASS_RULES,
    *(unless_target(rule, "model") for rule in LORA_RULES),
    *(unless_target(rule, "accelerators", "model") for rule in PREFILL_RULES),
    unless_target(ACTIVATOR_IS_TAKEN, "accelerators"),
    unless_target(ROUTER_IS_TAKEN, "accelerators"),
)
"""In the order in which violations are reported."""
