"""The Deployment of one accelerator: the scaling field manager owns its replicas, rendering everything else."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.render.pod_template import pod_template, selector
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.batching import TRIAL_SECONDS, with_limits
from holdfast.rendered.context import AcceleratorFacts, RenderContext, as_text
from holdfast.rendered.declared import inputs
from holdfast.rendered.names import Manifest

REVISION_HISTORY = 3
_DEADLINE_STEP_SECONDS = 600


def deployment(
    service: LLMService, accelerator: Accelerator, settings: RenderSettings, context: RenderContext
) -> Manifest:
    """The manifest as the rendering manager applies it, without replicas."""
    facts = context.facts(accelerator.name)
    tuned = facts.tuned
    service = with_limits(service, tuned.limits) if tuned else service
    pods = _pods(service, accelerator, settings, context)
    trial_seconds = TRIAL_SECONDS if tuned and tuned.before is not None else 0
    startup_seconds = settings.startup_seconds_of(service.spec)
    surge = max_surge(service, accelerator, facts, rolls_out=pods.rolls_out)
    name = names.deployment_name(service.metadata.name, accelerator.name)
    metadata = names.metadata(service, name, selector(service, accelerator) | names.queue_labels(service))
    metadata["annotations"] = {
        names.INPUTS_ANNOTATION: pods.inputs,
        names.TEMPLATE_ANNOTATION: as_text(pods.template),
        names.OBJECTIVES_ANNOTATION: context.created_objectives(service.spec.slo).to_json(),
        **({} if pods.admission_tokens is None else {names.ADMISSION_ANNOTATION: str(pods.admission_tokens)}),
        **({} if pods.changed_at is None else {names.ADMISSION_CHANGED_ANNOTATION: str(pods.changed_at)}),
        **({names.BATCHING_ANNOTATION: tuned.to_json()} if tuned else {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": selector(service, accelerator)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0 if surge else 1},
            },
            "progressDeadlineSeconds": progress_deadline_seconds(startup_seconds, facts) + trial_seconds,
            # The first new replica must have served for that long before the next is replaced.
            **({"minReadySeconds": trial_seconds} if trial_seconds else {}),
            "revisionHistoryLimit": REVISION_HISTORY,
            "template": pods.template,
        },
    }


def with_replicas(manifest: Manifest, replicas: int) -> Manifest:
    """The Deployment as the scaling manager creates it."""
    sized = copy.deepcopy(manifest)
    sized["spec"]["replicas"] = replicas
    return sized


def max_surge(service: LLMService, accelerator: Accelerator, facts: AcceleratorFacts, *, rolls_out: bool) -> int:
    """Return how many further replicas may run during a rollout.

    Auto looks for free GPUs when a rollout starts. From then on the surge only grows with the size, because its own
    replicas take those GPUs and must not count against them. Only a surge replica that finds no place after all turns
    it to 0, or the rollout would wait for ever. An accelerator that the service
    leaves gets a surge of 1: its replicas are removed as replicas elsewhere become ready, so a rollout there may wait.
    A trial of batching limits replaces one replica first.
    """
    wanted = service.spec.rollout.max_surge
    if wanted != "Auto":
        return int(wanted)
    if accelerator.is_left:
        return 1
    on_trial = facts.tuned is not None and facts.tuned.before is not None
    return min(1, _surge(facts, rolls_out)) if on_trial else _surge(facts, rolls_out)


def _surge(facts: AcceleratorFacts, rolls_out: bool) -> int:
    if rolls_out or facts.deployed is None:
        return facts.surge_room
    return facts.deployed.max_surge if facts.surge_under_way is None else facts.surge_under_way


def progress_deadline_seconds(startup_seconds: float, facts: AcceleratorFacts) -> int:
    """Longer than any start, in coarse steps so that a cold start measured anew writes nothing."""
    slowest = max(startup_seconds, 2.0 * (facts.cold_start_seconds or 0.0))
    return _DEADLINE_STEP_SECONDS * (math.ceil(slowest / _DEADLINE_STEP_SECONDS) + 1)


@dataclass(frozen=True, slots=True)
class _Pods:
    """A pod template with its memory, and whether applying it replaces running pods."""

    template: Manifest
    inputs: str
    admission_tokens: int | None
    changed_at: int | None
    rolls_out: bool


def _pods(service: LLMService, accelerator: Accelerator, settings: RenderSettings, context: RenderContext) -> _Pods:
    """Decide between a new template and the one that runs.

    | inputs  | admission limit | template                           | admission   |
    | changed | any             | new: a rollout                     | new         |
    | same    | measured since  | new: a rollout                     | new         |
    | same    | as deployed     | as rendered when they last changed | as deployed |

    Pods that admission refuses get a new one too: the administrator may have changed a setting for their sake.
    Where pods are kept they count as the same: a rollout would take replicas away, for pods that are to go.
    """
    facts = context.facts(accelerator.name)
    deployed, wanted = facts.deployed, inputs(service, accelerator)
    changed_at = facts.admission_changed_at
    if deployed is not None and (
        facts.kept
        or (not deployed.refused and deployed.inputs == wanted and changed_at in (None, deployed.admission_changed_at))
    ):
        template, tokens = json.loads(deployed.template_json), deployed.admission_tokens
        return _Pods(template, deployed.inputs, tokens, deployed.admission_changed_at, rolls_out=False)
    template = pod_template(
        service,
        accelerator,
        context.created_objectives(service.spec.slo),
        facts.admission_tokens,
        settings,
        scraped_by_annotation=not context.pod_monitor,
    )
    return _Pods(template, wanted, facts.admission_tokens, changed_at, rolls_out=True)
