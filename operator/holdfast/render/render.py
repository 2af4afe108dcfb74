"""The table of contents: which objects an LLMService becomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.render import activator, objects, plugin, router, unusual
from holdfast.render.deployment import deployment, max_surge
from holdfast.render.leader_worker_set import leader_worker_set
from holdfast.render.pod_template import pod_files_name
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.context import AcceleratorFacts, RenderContext
from holdfast.rendered.names import Manifest
from holdfast.rendered.pools import prefill_pool


def render(
    service: LLMService, accelerators_wanted: Sequence[str], settings: RenderSettings, context: RenderContext
) -> tuple[Manifest, ...]:
    """Every object the service should have, in the order in which they can be applied.

    Deployments and LeaderWorkerSets come last, in the order of `accelerators_wanted`; a name the spec does not list is
    left out, and so are groups of pods where the cluster does not have the API.
    """
    workloads = [
        _workload(service, accelerator, settings, context)
        for accelerator in _listed(service, accelerators_wanted)
        if accelerator.nodes == 1 or context.group_sets
    ]
    return (*_common(service, settings, context, workloads), *_prefill(service, settings, context), *workloads)


def remarks(
    service: LLMService,
    accelerators_wanted: Sequence[str],
    context: RenderContext,
    *,
    serving: bool = True,
    platform_assigns_ids: bool = False,
) -> tuple[str, ...]:
    """What people should know about the pods: different sentences for the condition Ready.

    `serving`: whether a replica serves, which a rollout could interrupt.
    """
    found = (
        remark
        for accelerator in _listed(service, accelerators_wanted)
        for remark in (
            _no_admission(service, accelerator, context),
            _no_plugin(service, accelerator, context),
            _downtime(service, accelerator, context, serving),
            "" if platform_assigns_ids else unusual.ids_by_null(service, accelerator),
            unusual.unknown_link(accelerator),
            unusual.adapters_at_run_time(service, accelerator),
        )
        if remark
    )
    return tuple(dict.fromkeys(found))


def _workload(
    service: LLMService, accelerator: Accelerator, settings: RenderSettings, context: RenderContext
) -> Manifest:
    made = deployment(service, accelerator, settings, context)
    if accelerator.nodes == 1:
        return made
    return leader_worker_set(service, accelerator, made, context.facts(accelerator.name).deployed)


def _common(
    service: LLMService, settings: RenderSettings, context: RenderContext, workloads: Sequence[Manifest]
) -> Iterator[Manifest]:
    yield objects.service_account(service)
    with_activator = activator.is_wanted(service, settings, context.holding)
    routed = router.is_wanted(service, settings) and context.routed
    yield objects.kubernetes_service(service, holding=with_activator and context.holding, routed=routed)
    if with_activator:
        yield from activator.activator(service, settings, context)
    if service.spec.router is not None and router.is_wanted(service, settings):
        yield from router.router(service, service.spec.router, settings)
    if context.replicas:
        yield objects.disruption_budget(service, context.max_unavailable)
        yield objects.loading_budget(service)
    if context.pod_monitor:
        yield objects.pod_monitor(service, settings)
    if context.inference_pools and service.spec.inference_pool is not None:
        yield objects.inference_pool(service, service.spec.inference_pool.endpoint_picker)
    yield from _files(service, settings, context, workloads)


def _prefill(service: LLMService, settings: RenderSettings, context: RenderContext) -> Iterator[Manifest]:
    """The prefill pool: as a service of its own, but that nobody asks it, and that its size is in its manifest.

    None without a router, which alone sends it requests. Its pods have the service's ServiceAccount, which the operator
    may not delete.
    """
    if (pool := prefill_pool(service)) is None or not router.is_wanted(service, settings):
        return
    (accelerator,) = pool.spec.accelerators
    own = replace(context, accelerators=((accelerator.name, context.prefill),), limits=())
    made = deployment(pool, accelerator, settings, own)
    made["spec"]["replicas"] = pool.spec.replicas
    yield objects.disruption_budget(pool, 1)
    if context.pod_monitor:
        yield objects.pod_monitor(pool, settings)
    yield from _files(pool, settings, own, [made])
    yield made


def _files(
    service: LLMService, settings: RenderSettings, context: RenderContext, workloads: Sequence[Manifest]
) -> Iterator[Manifest]:
    """What the pods of these workloads mount."""
    if any(_mounts(manifest, pod_files_name(service, settings)) for manifest in workloads):
        yield objects.pod_files(service, settings)
    if any(_mounts(manifest, names.limits_name(service.metadata.name)) for manifest in workloads):
        yield objects.limits(service, context)


def _listed(service: LLMService, wanted: Sequence[str]) -> list[Accelerator]:
    by_name = {accelerator.name: accelerator for accelerator in service.spec.accelerators}
    return [by_name[name] for name in dict.fromkeys(wanted) if name in by_name]


def _mounts(manifest: Manifest, config_map: str) -> bool:
    spec = manifest["spec"]
    template = spec["leaderWorkerTemplate"]["leaderTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]
    volumes = template["spec"].get("volumes", ())
    return any(volume.get("configMap", {}).get("name") == config_map for volume in volumes)


def _no_admission(service: LLMService, accelerator: Accelerator, context: RenderContext) -> str:
    facts = context.facts(accelerator.name)
    ordered = facts.deployed.has_plugin if facts.deployed else not plugin.withheld(service.spec, accelerator)
    if ordered or _admission_tokens(facts) is not None:
        return ""
    return (
        f"{accelerator.name}: no admission limit, because the objectives are not expected to be met there; "
        "past its capacity an engine queues without bound"
    )


def _no_plugin(service: LLMService, accelerator: Accelerator, context: RenderContext) -> str:
    facts = context.facts(accelerator.name)
    return plugin.remark(service, accelerator, facts.deployed, limited=_admission_tokens(facts) is not None)


def _admission_tokens(facts: AcceleratorFacts) -> int | None:
    return facts.deployed.admission_tokens if facts.deployed else facts.admission_tokens


def _downtime(service: LLMService, accelerator: Accelerator, context: RenderContext, serving: bool) -> str:
    """Warn that a rollout interrupts the service, before, during and after it: for the next edit of the service.

    Empty where nothing serves that a rollout could interrupt, and for an accelerator that the service leaves.
    """
    facts = context.facts(accelerator.name)
    matters = (serving or facts.surge_under_way is not None) and not facts.kept and context.replicas == 1
    if not matters or facts.deployed is None or max_surge(service, accelerator, facts, rolls_out=True):
        return ""
    name = names.deployment_name(service.metadata.name, accelerator.name)
    cause, remedy = "no GPU is free", "free a GPU before you edit the spec"
    if service.spec.rollout.max_surge == 0:
        cause, remedy = "rollout.maxSurge is 0", "set rollout.maxSurge to Auto"
    return f"{name}: {cause}, so a rollout serves no request between its only replica and the next one; {remedy}"
