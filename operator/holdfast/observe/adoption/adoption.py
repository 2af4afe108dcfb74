"""A Deployment of somebody else -> the service that the policy decides on, or why it cannot be sized. Pure.

The LLMService with a target says only objectives and bounds. Model, flags and GPUs are read from the vLLM container of
the Deployment, the accelerator from the nodes of its pods.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.api.engine_flags import NO_TEXT, SEVERAL_PODS, flag_name, half_of
from holdfast.api.llmservice import Accelerator, Batching, Engine, LLMService, LLMServiceSpec, Model
from holdfast.api.parallelism import Parallelism
from holdfast.api.reasons import Reason
from holdfast.api.spec_rules import is_named_for_text
from holdfast.domain.cluster import Adoption, NodeOffer, Replica
from holdfast.enginemodel.acceleratornames import MACHINE_LABEL, accelerator_of_machine
from holdfast.enginemodel.catalog import IDENTIFYING_LABELS, PRODUCT_LABELS
from holdfast.observe.objects import mapping
from holdfast.observe.objects.cluster import Invalid, ObservedDeployment, ServiceParts
from holdfast.observe.objects.deletion_costs import has_other_deletion_cost
from holdfast.observe.objects.ended import ended_from_pod, newest
from holdfast.observe.objects.mapping import Object
from holdfast.observe.objects.sizers import owner_of
from holdfast.observe.objects.spec import to_spec
from holdfast.observe.objects.vllm_container import VllmContainer, engine_url, vllm_containers
from holdfast.rendered.names import MANAGED_BY, MANAGER, SERVICE_LABEL

_GPU = "nvidia.com/gpu"
UNNAMED = "gpu"
"""The name of an accelerator that nothing names."""
_BLINDING = "--disable-log-stats"


@dataclass(frozen=True, slots=True)
class TargetState:
    """What the API server has of one target; `deployment` is None where it does not exist.

    `pods` are the pods that its selector finds. `autoscaler` names the autoscaler that sizes it; empty if none does.
    `unreadable` says what may not be read, such as `list pods in namespace prod`. `may_scale`: whether the operator may
    use `/scale`.
    """

    deployment: Object | None = None
    pods: tuple[Object, ...] = ()
    autoscaler: str = ""
    may_scale: bool = True
    unreadable: str = ""


def adopted(part: ServiceParts, state: TargetState, labels: Mapping[str, str]) -> ServiceParts | Invalid:
    """Return the service as it runs, or why its target cannot be sized.

    `labels` are those of its nodes that name the accelerator (see `accelerator_labels`).
    """
    refusal = _refusal(part, state)
    if refusal or state.deployment is None:
        return _refused(part, refusal)
    deployment, template = state.deployment, state.deployment["spec"].get("template") or {}
    found = vllm_containers(template)
    refusal = _unsuitable(deployment["metadata"]["name"], found, template)
    if refusal:
        return _refused(part, refusal)
    service = _completed(part.service, found[0], template.get("spec") or {}, labels)
    return _as_it_runs(part, service, state, deployment)


def rivals(parts: Iterable[ServiceParts]) -> Iterator[Invalid]:
    """Yield the services whose target another service has too: nobody can tell whose objectives hold."""
    targets: dict[tuple[str, str], list[ServiceParts]] = {}
    for part in parts:
        if part.service.spec.target is not None:
            targets.setdefault((part.spec.key.namespace, part.service.spec.target.name), []).append(part)
    for (_, name), several in targets.items():
        for part in several if len(several) > 1 else ():
            others = ", ".join(sorted(each.spec.key.name for each in several if each is not part))
            yield _refused(
                part,
                f"LLMService {others} has Deployment {name} as target too, so neither sizes it; delete one of them",
            )


def own_pods(deployment: Object, pods: Iterable[Object]) -> tuple[Object, ...]:
    """Return the pods that ReplicaSets of this Deployment control: a selector may find those of others."""
    return tuple(pod for pod in pods if _replica_set(pod) == _expected_replica_set(deployment, pod))


def accelerator_labels(pods: Iterable[Object], nodes: Iterable[NodeOffer]) -> dict[str, str]:
    """Return the labels that name the accelerator, of the kind of node that has most of the pods; the least of equals.

    Empty while no pod has a node that takes pods.
    """
    named = {
        node.name: tuple((name, word) for name, word in node.labels if name in IDENTIFYING_LABELS) for node in nodes
    }
    homes = Counter(named[home] for pod in pods if (home := pod.get("spec", {}).get("nodeName", "")) in named)
    kinds = sorted(homes, key=lambda kind: (-homes[kind], kind))
    return dict(kinds[0]) if kinds else {}


def selector_text(deployment: Object) -> str:
    """Return a Deployment's label selector as a query of the API server has it."""
    selector = deployment["spec"].get("selector") or {}
    terms = [f"{name}={word}" for name, word in sorted((selector.get("matchLabels") or {}).items())]
    return ",".join([*terms, *(_expression(each) for each in selector.get("matchExpressions") or ())])


def _expression(item: Object) -> str:
    words = ",".join(item.get("values") or ())
    match item["operator"]:
        case "In":
            return f"{item['key']} in ({words})"
        case "NotIn":
            return f"{item['key']} notin ({words})"
        case "Exists":
            return str(item["key"])
    return f"!{item['key']}"


def _refusal(part: ServiceParts, state: TargetState) -> str:
    """Why the Deployment cannot be sized, whatever it runs; empty where it can."""
    target, namespace = part.service.spec.target, part.spec.key.namespace
    name = target.name if target else ""
    if state.unreadable:
        return f"the operator may not {state.unreadable}; grant it (the chart does)"
    if state.deployment is None:
        return f"Deployment {name} does not exist in namespace {namespace}; create it, or correct spec.target.name"
    if _is_ours(state.deployment):
        return f"Deployment {name} was made by Holdfast, which sizes it already; delete this LLMService"
    if not state.may_scale:
        return (
            f"the operator may not get and patch deployments/scale in namespace {namespace}, so it cannot size "
            f"Deployment {name}; grant both (the chart does)"
        )
    return ""


def _is_ours(deployment: Object) -> bool:
    meta = deployment["metadata"]
    labels, owners = meta.get("labels") or {}, meta.get("ownerReferences") or ()
    owned = any(str(owner.get("apiVersion", "")).startswith("holdfast.dev/") for owner in owners)
    return owned or (SERVICE_LABEL in labels and labels.get(MANAGED_BY) == MANAGER)


def _unsuitable(name: str, found: Sequence[VllmContainer], template: Object) -> str:
    """Why the containers of the Deployment cannot be sized by their vLLM; empty where one can."""
    if not found:
        names = ", ".join(each.get("name", "") for each in (template.get("spec") or {}).get("containers") or ())
        return (
            f"no container of Deployment {name} runs vLLM ({names or 'it has none'}): neither does a command start "
            "vllm serve, nor is an image called vllm; name a Deployment of vLLM, or write its command out"
        )
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        return (
            f"containers {names} of Deployment {name} all run vLLM, but a replica is one engine; leave one in each pod"
        )
    return _one_engine(name, found[0]) or _measurable(name, found[0])


def _one_engine(name: str, engine: VllmContainer) -> str:
    """Why a pod is not one whole engine; empty where it is."""
    if engine.engines > 1:
        return f"container {engine.name} of Deployment {name} starts several engines, but a replica is one; leave one"
    # As written out: `--data-parallel-size` begins another flag, and is none.
    divided = next((flag for flag in SEVERAL_PODS if flag in _flags(engine)), "")
    if divided:
        return (
            f"Deployment {name} divides an engine among several pods ({divided}), but a replica is one pod; remove it"
        )
    wanted = math.prod(engine.sharing)
    if engine.gpus and wanted > engine.gpus and wanted % engine.gpus == 0:
        return (
            f"Deployment {name} divides an engine among several pods: it shares {wanted} GPUs and a pod has "
            f"{engine.gpus}, but a replica is one pod; lower the parallelism or give it all GPUs"
        )
    role = half_of(engine.arguments)
    if role:
        return (
            f"Deployment {name} is one half of an engine ({role}), and neither half sees a request's ttft and tpot; "
            "adopt a Deployment of whole engines"
        )
    return ""


def _measurable(name: str, engine: VllmContainer) -> str:
    """Why no metric says whether the objectives hold; empty where some do."""
    kind = engine.value("--runner", "--task", "--convert") or ""
    if kind in NO_TEXT or not (kind == "generate" or is_named_for_text(engine.model or "")):
        told = f"Deployment {name} serves a model that generates no text ({kind if kind in NO_TEXT else engine.model})"
        return f"{told}, so ttft and tpot say nothing of it; delete this LLMService"
    if _BLINDING in _flags(engine):
        return f"Deployment {name} runs vLLM with {_BLINDING}, so it has no metrics to size it by; remove that argument"
    return ""


def _flags(engine: VllmContainer) -> list[str]:
    return [flag_name(argument) for argument in engine.arguments if argument.startswith("-")]


def _refused(part: ServiceParts, message: str) -> Invalid:
    service = part.service
    key, meta = part.spec.key, service.metadata
    return Invalid(key, meta.generation, message, service.status, meta.uid, Reason.TARGET_UNUSABLE)


def _completed(service: LLMService, engine: VllmContainer, pod: Object, labels: Mapping[str, str]) -> LLMService:
    """The service with what its spec would say if Holdfast had made these engines; nothing of it is ever rendered."""
    completed = service.spec.model_copy(
        update={
            "model": _model(service.spec, engine),
            "accelerators": (_accelerator(engine, pod, labels),),
            "engine": _engine(engine),
            "batching": Batching.model_construct(  # Fixed: limits are arguments, which Holdfast does not write
                mode="Fixed",
                max_num_seqs=engine.number("--max-num-seqs"),
                max_num_batched_tokens=engine.number("--max-num-batched-tokens"),
            ),
        }
    )
    return service.model_copy(update={"spec": completed})


def _engine(engine: VllmContainer) -> Engine:
    found = Engine.model_construct(image=engine.image, args=engine.arguments)
    return found.model_copy(update={"resources": {"limits": dict(engine.shares)}}) if engine.shares else found


def _model(spec: LLMServiceSpec, engine: VllmContainer) -> Model:
    return Model.model_construct(
        uri=engine.model or (spec.target.name if spec.target else ""),
        served_name=engine.value("--served-model-name"),
        max_model_len=engine.number("--max-model-len"),
        dtype=engine.value("--dtype"),
        quantization=engine.value("--quantization", "-q"),
    )


def _accelerator(engine: VllmContainer, pod: Object, labels: Mapping[str, str]) -> Accelerator:
    """The accelerator of the nodes, with the GPUs of the container's limits, else with the GPUs of its flags.

    Until a pod has a node, it is the one that the pod's nodeSelector names.
    """
    tensor, pipeline, data = engine.sharing
    gpus = engine.gpus or tensor * pipeline * data
    if gpus % (pipeline * data):
        pipeline = data = 1
    sharing = Parallelism.model_construct(tensor=gpus // (pipeline * data), pipeline=pipeline, data=data)
    selected = {**(pod.get("nodeSelector") or {}), **labels}
    machine = "" if labels else accelerator_of_machine(selected.get(MACHINE_LABEL, ""))
    product = next((selected[label] for label in PRODUCT_LABELS if label in selected), machine or UNNAMED)
    return Accelerator.model_construct(
        name=re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:50].rstrip("-") or UNNAMED,
        resource=engine.resource or _GPU,
        count=gpus,
        parallelism=sharing,
        node_selector=selected,
        tolerations=tuple(pod.get("tolerations") or ()),
    )


def _as_it_runs(part: ServiceParts, service: LLMService, state: TargetState, deployment: Object) -> ServiceParts:
    spec = to_spec(service)
    option = spec.accelerators[0]
    pods = own_pods(deployment, state.pods)
    placement = replace(
        mapping.placement_from_deployment(deployment),
        accelerator=option.name,
        revision=option.revision,
        queue_limit=None,
    )
    problems = mapping.problems_from_deployment(deployment, placement.workload.name)
    owner = owner_of(deployment)
    sizer = state.autoscaler or owner
    return replace(
        part,
        service=service,
        spec=replace(
            spec,
            adopted=True,
            priority=part.spec.priority,
            pin_lacked_by=part.spec.pin_lacked_by,
            recommend_only=spec.recommend_only or bool(sizer),
            pinned_replicas=None if sizer else spec.pinned_replicas,
        ),
        replicas=tuple(
            replace(mapping.replica_from_pod(pod, placement.workload.name), accelerator=option.name)
            for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
            if mapping.is_replica(pod)
        ),
        urls=tuple((str(pod["metadata"]["name"]), url) for pod in pods if (url := engine_url(pod))),
        deployed=(ObservedDeployment(placement, problems, version=mapping.version_of(deployment)),),
        ended=newest(_ended(pods, option.name, placement.workload.name)),
        adoption=Adoption(
            placement.workload,
            selector_text(deployment),
            sizer,
            frozenset(str(pod["metadata"]["name"]) for pod in pods if has_other_deletion_cost(pod)),
            is_owned=bool(owner) and not state.autoscaler,
        ),
    )


def _ended(pods: Iterable[Object], accelerator: str, target: str) -> Iterator[Replica]:
    for pod in pods:
        if (ended := ended_from_pod(pod, target)) is not None:
            yield replace(ended, accelerator=accelerator)


def _replica_set(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next(
        (str(each.get("name", "")) for each in owners if each.get("controller") and each.get("kind") == "ReplicaSet"),
        "",
    )


def _expected_replica_set(deployment: Object, pod: Object) -> str:
    """The ReplicaSet of this Deployment that would have made the pod: they are named after the hash of the template."""
    return f"{deployment['metadata']['name']}-{(pod['metadata'].get('labels') or {}).get('pod-template-hash')}"
