"""`holdfast adopt`: the LLMService that sizes a Deployment of somebody else as it is."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import yaml

from holdfast.act.api import ApiError, ApiPort
from holdfast.api.llmservice import API_VERSION, KIND, InvalidLLMService, LLMService
from holdfast.api.quantities import counted
from holdfast.cli import reading
from holdfast.cli.reading import Body
from holdfast.cli.terminal import printable, said
from holdfast.control.status.report import told_sizer
from holdfast.control.tick.targets import autoscalers_in, read_target
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.service import AcceleratorOption
from holdfast.enginemodel.prior import option_prior
from holdfast.observe.adoption.adoption import UNNAMED, TargetState, accelerator_labels, adopted, own_pods
from holdfast.observe.objects import mapping
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.sizers import autoscalers_path
from holdfast.observe.objects.spec import to_spec

_DEPLOYMENT = re.compile(r"(?:(?:deploy|deployments?|deployments?\.apps)/)?([^/]+)")
_MOST = 10
_HEADER = """# Deployment {name} runs {model} in {replicas} of {gpus} x {resource}{product}.
# Holdfast only recommends until mode is Auto; then it changes the size and nothing else.
# A target has no prices, so its status has no cost: holdfast plan --cost GPU=DOLLARS compares accelerators.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the LLMService; 1 with one sentence where the Deployment cannot be sized, 2 for bad arguments."""
    found = _DEPLOYMENT.fullmatch(arguments.deployment)
    if found is None:
        return said("adopt", 2, f"{arguments.deployment}: only Deployments can be adopted; name one as deploy/NAME")
    return reading.read("adopt", arguments, lambda api: told(api, arguments, found[1]))


async def told(api: ApiPort, arguments: argparse.Namespace, name: str) -> int:
    """Print what the cluster says of a Deployment; the exit code."""
    namespace = arguments.namespace
    state = await read_target(api, namespace, name, lambda: autoscalers_in(api, namespace))
    body = manifest(namespace, name, arguments, await _bounds(api, namespace, state))
    try:
        declared = LLMService.parse(body)
    except InvalidLLMService as error:
        return said("adopt", 2, str(error))
    if state.unreadable:
        return said("adopt", 1, f"you may not {state.unreadable}; ask for that right")
    labels = await labels_of(api, state)
    part = adopted(ServiceParts(declared, to_spec(declared)), state, labels)
    if isinstance(part, Invalid):
        return said("adopt", 1, part.message)
    if other := await _other(api, namespace, name):
        return said("adopt", 1, f"LLMService {other} has Deployment {name} as target already; edit it instead")
    print(json.dumps(body) if arguments.json else text(body, part, bool(labels)), end="\n" if arguments.json else "")
    if part.adoption and part.adoption.autoscaler:
        sizes, remedy = told_sizer(part.adoption)
        said("adopt", 0, f"{sizes}; {remedy} before you set mode to Auto")
    return 0


async def labels_of(api: ApiPort, state: TargetState) -> dict[str, str]:
    """Labels of its nodes that name the accelerator; none where no node may be read."""
    if not state.deployment:
        return {}
    return accelerator_labels(own_pods(state.deployment, state.pods), await _nodes(api))


def manifest(namespace: str, name: str, arguments: argparse.Namespace, bounds: dict[str, int]) -> Body:
    """Return the LLMService for a Deployment."""
    own = re.sub(r"[^-a-z0-9]", "-", name)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": own if own[:1].isalpha() else f"llm-{own}", "namespace": namespace},
        "spec": {
            "target": {"kind": "Deployment", "name": name},
            "mode": "Recommend",
            "slo": {"ttft": arguments.ttft, "tpot": arguments.tpot, "objective": arguments.objective},
            "scaling": bounds,
        },
    }


def text(body: Body, part: ServiceParts, placed: bool) -> str:
    """Return the manifest as YAML, with what was read of the Deployment; `placed`: a node names the accelerator."""
    option = part.spec.accelerators[0]
    header = _HEADER.format(
        name=part.placements[0].workload.name,
        model=part.spec.model_uri,
        replicas=counted(part.placements[0].replicas, "replica"),
        gpus=option.gpus_per_replica,
        resource=option.resource,
        product="" if option.name == UNNAMED else f" ({option.name}{'' if placed else ', by its nodeSelector'})",
    )
    lines = "".join(f"{printable(line)}\n" for line in header.splitlines())
    return lines + _unknown(part.spec.model_uri, option) + yaml.safe_dump(body, sort_keys=False)


def _unknown(model: str, option: AcceleratorOption) -> str:
    prior = option_prior(model, option, option.quantization)
    said = [
        name for name, is_so in (("model", prior.unknown_model), ("accelerator", prior.unknown_accelerator)) if is_so
    ]
    return f"# Unknown {' and '.join(said)}: what a replica carries is learned from its load.\n" if said else ""


async def _bounds(api: ApiPort, namespace: str, state: TargetState) -> dict[str, int]:
    """The bounds of an HPA that sizes it, else from one replica to ten, or to as many as there are."""
    size = int(((state.deployment or {}).get("spec") or {}).get("replicas", 1))
    kind, _, name = state.autoscaler.partition(" ")
    spec: dict[str, Any] = {}
    if kind:
        spec = (await api.request("GET", f"{autoscalers_path(kind, namespace)}/{name}")).get("spec") or {}
    least = int(spec.get("minReplicas", spec.get("minReplicaCount", 1)))
    most = int(spec.get("maxReplicas", spec.get("maxReplicaCount", max(_MOST, size))))
    return {"min": max(1, least), "max": max(1, least, most)}


async def _nodes(api: ApiPort) -> tuple[NodeOffer, ...]:
    """The nodes that take pods; none where they may not be read: the accelerator is then unknown."""
    try:
        listed = (await api.request("GET", "/api/v1/nodes")).get("items") or ()
    except ApiError:
        return ()
    return tuple(offer for body in listed if (offer := mapping.node_offer_from_node(body)) is not None)


async def _other(api: ApiPort, namespace: str, name: str) -> str:
    """The LLMService that has the Deployment as target, empty without one or without the CRD."""
    try:
        listed = (await api.request("GET", reading.services_path(namespace))).get("items") or ()
    except ApiError:
        return ""
    targets = {(each["spec"].get("target") or {}).get("name"): each["metadata"]["name"] for each in listed}
    return str(targets.get(name, ""))
