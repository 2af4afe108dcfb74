"""The target of an LLMService: a Deployment of somebody else that is sized as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from holdfast.api import fields
from holdfast.api.rules import ApiModel, Checked, Rule

MAX_NAME_LENGTH = 46
"""Kubernetes cuts the names of pods behind 58 characters: `NAME-`, up to 10 of the ReplicaSet's hash, and `-`."""

_NAME_FITS = Rule(
    f"self.size() <= {MAX_NAME_LENGTH}",
    f"target.name must have at most {MAX_NAME_LENGTH} characters, because Kubernetes cuts the names of pods behind"
    " them: give the Deployment a shorter name",
    lambda name: len(name) <= MAX_NAME_LENGTH,
)


class Target(ApiModel):
    """A Deployment in the same namespace that runs vLLM and that Holdfast did not make."""

    kind: Literal["Deployment"] = "Deployment"
    """Kind of the object; only Deployment."""
    name: Annotated[fields.ObjectName, Checked(_NAME_FITS)]
    """Name of the Deployment. Holdfast changes nothing of it but its size."""


_READ = ("model", "accelerators", "engine", "template", "rollout", "batching", "router", "inferencePool", "prefill")


def _absent(name: str) -> Rule:
    return Rule(
        f"!has(self.target) || !has(self.{name})",
        f"{name} and target exclude each other, because the Deployment says how its engines run: remove {name}",
        lambda spec: spec.target is None or not _is_given(spec, name),
        f".{name}",
    )


def _needed(name: str, example: str) -> Rule:
    return Rule(
        f"has(self.target) || has(self.{name})",
        f"{name} is required without target: add it, such as {example}",
        lambda spec: spec.target is not None or _is_given(spec, name),
        f".{name}",
    )


def _with_target(cel: str, message: str, holds: Callable[[Any], bool], field: str) -> Rule:
    return Rule(f"!has(self.target) || {cel}", message, lambda spec: spec.target is None or holds(spec), field)


TARGET_RULES = (
    _needed("model", "model: {uri: Qwen/Qwen3-8B}"),
    _needed("accelerators", "accelerators: [{name: h100}]"),
    *(_absent(name) for name in _READ),
    _with_target(
        "self.scaling.min > 0",
        "scaling.min must be at least 1 with target, because Holdfast cannot route requests of somebody else's"
        " Deployment to its activator: raise scaling.min",
        lambda spec: spec.scaling.min > 0,
        ".scaling.min",
    ),
    _with_target(
        "(!has(self.replicas) || self.replicas > 0)",
        "replicas must be at least 1 with target: change it, or remove it to resume SLO scaling",
        lambda spec: spec.replicas is None or spec.replicas > 0,
        ".replicas",
    ),
    _with_target(
        "(!has(self.scaling.minOnDemand) || self.scaling.minOnDemand == 0)",
        "scaling.minOnDemand and target exclude each other, because a Deployment does not say which of its nodes are"
        " spot: remove minOnDemand",
        lambda spec: not spec.scaling.min_on_demand,
        ".scaling",
    ),
    _with_target(
        "(!has(self.budget) || !has(self.budget.maxCostPerHour))",
        "budget.maxCostPerHour and target exclude each other, because a Deployment has no prices: remove the budget,"
        " and bound the size by scaling.max",
        lambda spec: spec.budget.max_cost_per_hour is None,
        ".budget",
    ),
    _with_target(
        "self.overload == 'Queue'",
        "overload Reject and target exclude each other, because only Holdfast's plugin rejects requests: remove"
        " overload",
        lambda spec: spec.overload == "Queue",
        ".overload",
    ),
)
"""What fields of a spec ask of each other where it has a target, and what they ask where it has none."""


def unless_target(rule: Rule, *read: str) -> Rule:
    """The rule for specs that have the fields it reads: with target they are absent, and CEL cannot read those."""
    absent = " || ".join(f"!has(self.{name})" for name in read)
    return replace(
        rule, cel=f"{absent} || ({rule.cel})", holds=lambda spec: not _all_given(spec, read) or rule.holds(spec)
    )


def _all_given(spec: ApiModel, names: Iterable[str]) -> bool:
    return all(_is_given(spec, name) for name in names)


def _is_given(spec: ApiModel, name: str) -> bool:
    """`name` is the field's name in manifests."""
    attribute = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    return attribute in spec.model_fields_set and getattr(spec, attribute) is not None
