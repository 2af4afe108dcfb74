"""Facts about the cluster that rendering depends on, as frozen (and hashable) values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.api.llmservice import SLO
from holdfast.rendered import names
from holdfast.rendered.batching import Tuned
from holdfast.rendered.live import is_as_rendered
from holdfast_engine.objectives.rules import Limits


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds of a good request in seconds, as they were when the service was created."""

    ttft_seconds: float
    tpot_seconds: float
    e2e_seconds: float | None = None

    @classmethod
    def of(cls, slo: SLO) -> Self:
        """The objectives as declared now."""
        return cls(slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds)

    def to_json(self) -> str:
        """Text for an annotation."""
        return json.dumps([self.ttft_seconds, self.tpot_seconds, self.e2e_seconds])

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Read what `to_json` wrote; None for anything else."""
        try:
            ttft, tpot, e2e = json.loads(text)
        except (RecursionError, TypeError, ValueError):
            return None
        bounds = [ttft, tpot] if e2e is None else [ttft, tpot, e2e]
        if not all(isinstance(bound, int | float) and math.isfinite(bound) and bound > 0 for bound in bounds):
            return None
        return cls(ttft, tpot, e2e)


@dataclass(frozen=True, slots=True)
class Deployed:
    """What an existing Deployment remembers of its own rendering.

    `template_json` is its pod template as it was rendered: it is kept until something the user owns changes, so that
    neither an edited SLO nor a new operator restarts an engine. It is read from an annotation, for the live template
    may have been edited by somebody else since; only where nothing is recorded, or somebody else wrote the record, is
    the live one kept, and so recorded.
    """

    inputs: str
    template_json: str
    max_surge: int
    admission_tokens: int | None = None
    objectives: Objectives | None = None
    tuned: Tuned | None = None
    admission_changed_at: int | None = None
    follower_json: str = ""
    """The same as `template_json`, of the followers of a LeaderWorkerSet; empty where replicas are single pods."""
    refused: bool = False
    """Admission refuses its pods, and none with this template exists: a new template replaces nothing."""

    @classmethod
    def read(cls, deployment: Mapping[str, Any]) -> Self | None:
        """The memory of a live Deployment; None where it was not rendered by us."""
        annotations = deployment["metadata"].get("annotations") or {}
        if names.INPUTS_ANNOTATION not in annotations:
            return None
        spec = deployment["spec"]
        rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
        return cls(
            inputs=annotations[names.INPUTS_ANNOTATION],
            template_json=_recorded(deployment["metadata"], names.TEMPLATE_ANNOTATION) or as_text(spec["template"]),
            follower_json=_recorded(deployment["metadata"], names.FOLLOWER_ANNOTATION) or "",
            max_surge=whole(str(rolling.get("maxSurge"))) or 0,
            admission_tokens=whole(annotations.get(names.ADMISSION_ANNOTATION)),
            objectives=Objectives.from_json(annotations.get(names.OBJECTIVES_ANNOTATION, "")),
            tuned=Tuned.from_json(annotations.get(names.BATCHING_ANNOTATION, "")),
            admission_changed_at=whole(annotations.get(names.ADMISSION_CHANGED_ANNOTATION)),
            refused=_is_refused(deployment.get("status") or {}),
        )

    @property
    def has_plugin(self) -> bool:
        """Whether its pods are started with the plugin."""
        return f"{names.SCHEDULER_FLAG}={names.SCHEDULER}" in self.template_json


@dataclass(frozen=True, slots=True)
class AcceleratorFacts:
    """What is known of one accelerator of a service.

    surge_room: further replicas that a rollout starting now may have. surge_under_way: the same of the
    rollout under way, None where there is none. admission_tokens: the limit that a rollout starting now would get (see
    `admission`), None for none. admission_changed_at: when a measurement last changed it; later than the deployed
    one, it is a rollout. tuned: batching limits in place of the declared ones. kept: it is being left, and its
    pods stay as they are.
    """

    surge_room: int = 0
    surge_under_way: int | None = None
    cold_start_seconds: float | None = None
    admission_tokens: int | None = None
    admission_changed_at: int | None = None
    deployed: Deployed | None = None
    tuned: Tuned | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class RenderContext:
    """What rendering one service needs to know apart from its object.

    `pod_monitor`, `inference_pools`, `group_sets`: whether the cluster has that API.
    `replicas` is the wanted size over all accelerators; `accelerators` names every one that has facts, wanted or not.
    `limits` are the limits of running engines by accelerator; without them the declared limits apply.
    `holding`: clients are led to the activator. `routed`: a router is ready to take them.
    `max_unavailable`: replicas that evictions may leave unavailable. `prefill`: facts of the prefill pool.
    """

    replicas: int = 1
    pod_monitor: bool = False
    inference_pools: bool = False
    group_sets: bool = False
    accelerators: tuple[tuple[str, AcceleratorFacts], ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()
    holding: bool = False
    routed: bool = False
    max_unavailable: int = 1
    prefill: AcceleratorFacts = AcceleratorFacts()

    def facts(self, accelerator: str) -> AcceleratorFacts:
        """The facts of one accelerator, nothing known by default."""
        return next((facts for name, facts in self.accelerators if name == accelerator), AcceleratorFacts())

    def created_objectives(self, slo: SLO) -> Objectives:
        """The objectives when the first Deployment was made: histograms add up only over the same edges."""
        remembered = (facts.deployed.objectives for _, facts in self.accelerators if facts.deployed)
        return next((objectives for objectives in remembered if objectives), Objectives.of(slo))


def as_text(template: Mapping[str, Any]) -> str:
    """A pod template as its annotation holds it."""
    return json.dumps(_plain(template), sort_keys=True, separators=(",", ":"))


def _is_refused(status: Mapping[str, Any]) -> bool:
    failing = any(
        each["type"] == "ReplicaFailure" and each["status"] == "True" for each in status.get("conditions", ())
    )
    return failing and not status.get("updatedReplicas")


def _recorded(meta: Mapping[str, Any], annotation: str) -> str | None:
    """The record, where it is a pod template (earlier versions wrote a hash in its place) and nobody else's."""
    if not is_as_rendered(meta, "metadata", "annotations", annotation):
        return None
    text = (meta.get("annotations") or {}).get(annotation, "")
    try:
        template = json.loads(text)
    except (RecursionError, ValueError):
        return None
    return text if isinstance(template, dict) and isinstance(template.get("spec"), dict) else None


def whole(text: str | None) -> int | None:
    """The number of an annotation; None for anything else."""
    return int(text) if text and text.isdecimal() else None


def _plain(value: Any) -> Any:
    """Plain dicts and lists: watch events arrive as read-only mapping views."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
