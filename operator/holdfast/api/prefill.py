"""What a service with a prefill pool asks of the rest of its spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.api.rules import Rule

MAX_NAMES_LENGTH = 44
"""Of a service and an accelerator of its prefill pool: Kubernetes cuts the names of pods, which have 9 more."""


def _asks(cel: str, message: str, holds: Callable[[Any], bool], field: str = ".prefill") -> Rule:
    """What must hold for a spec with `prefill`."""
    return Rule(f"!has(self.prefill) || {cel}", message, lambda spec: spec.prefill is None or holds(spec), field)


PREFILL_RULES = (
    _asks(
        "has(self.router)",
        "prefill needs something that sends prompts to a prefill engine first: set router: {}",
        lambda spec: spec.router is not None,
    ),
    _asks(
        "self.scaling.min > 0",
        "with prefill, scaling.min must be at least 1: raise it, or remove prefill",
        lambda spec: spec.scaling.min > 0,
        ".scaling",
    ),
    _asks(
        "has(self.replicas) && has(self.prefill.replicas)",
        "sizing of a prefill pool is not there yet: set replicas and prefill.replicas",
        lambda spec: spec.replicas is not None and spec.prefill.replicas is not None,
    ),
    _asks(
        "self.accelerators.all(a, a.nodes == 1)"
        " && (!has(self.prefill.accelerators) || self.prefill.accelerators.all(a, a.nodes == 1))",
        "prefill and nodes above 1 exclude each other, because a hand-over between groups of pods was not tried: remove"
        " nodes, or prefill",
        lambda spec: all(each.nodes == 1 for each in (*spec.accelerators, *spec.prefill.accelerators)),
    ),
    _asks(
        "!has(self.model.lora)",
        "prefill and model.lora exclude each other, because vllm-router hands no request for an adapter over: remove"
        " model.lora, or prefill",
        lambda spec: spec.model.lora is None,
    ),
    _asks(
        "!has(self.slo.classes) || self.slo.classes.size() == 0 || (has(self.slo.claim) && self.slo.claim == 'Body')",
        "with prefill, requests can name their class in the body only, because vllm-router passes no headers of clients"
        " on to a pair: set slo.claim: Body, or remove slo.classes",
        lambda spec: not spec.slo.classes or spec.slo.claim == "Body",
        ".slo.claim",
    ),
    _asks(
        "!has(self.engine) || !has(self.engine.plugin) || self.engine.plugin != 'Disabled'",
        "prefill and engine.plugin Disabled exclude each other, because only Holdfast's plugin counts a request of two"
        " engines once: remove engine.plugin, or prefill",
        lambda spec: spec.engine.plugin != "Disabled",
    ),
    _asks(
        "!has(self.budget) || !has(self.budget.maxCostPerHour)",
        "prefill and budget.maxCostPerHour exclude each other, because the budget does not bound a prefill pool yet:"
        " remove the budget, and choose the sizes by their cost",
        lambda spec: spec.budget.max_cost_per_hour is None,
    ),
)


def _names_fit(service: Any) -> bool:
    spec = service.spec
    pool = spec.prefill.accelerators or spec.accelerators if spec.prefill else ()
    return all(len(service.metadata.name) + len(each.name) <= MAX_NAMES_LENGTH for each in pool)


_CEL_FIT = f".all(a, self.metadata.name.size() + a.name.size() <= {MAX_NAMES_LENGTH})"
NAMES_OF_PREFILL_FIT = Rule(
    "!has(self.spec.prefill) || !has(self.spec.accelerators) || (has(self.spec.prefill.accelerators)"
    f" ? self.spec.prefill.accelerators{_CEL_FIT} : self.spec.accelerators{_CEL_FIT})",
    f"with prefill, metadata.name and the name of an accelerator must have at most {MAX_NAMES_LENGTH} characters"
    " together: shorten one of them",
    _names_fit,
)
