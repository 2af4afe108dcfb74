"""Names, labels and paths on which the rendered objects, their readers and the pod-side files agree."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from holdfast.api import group_set
from holdfast.api.llmservice import API_VERSION, GROUP, KIND, LLMService

Manifest = dict[str, Any]

PORT = 8000
PORT_NAME = "http"
ADMIN_PORT = 8081
ADMIN_PORT_NAME = "admin"
POD_PORT = 8082
POD_PORT_NAME = "pod"
"""Where a pod answers by itself, whose first process serves no requests (`pod/holdfast_pod_server.py`)."""
CONTAINER = "vllm"
BENCHMARK_CONTAINER = "bench"
SCHEDULER_FLAG = "--scheduler-cls"
SCHEDULER = "holdfast_engine.scheduler.HoldfastScheduler"
READY_PATH = "/holdfast/ready"
HEALTH_PATH = "/health"
METRICS_PATH = "/metrics"

SERVICE_LABEL = f"{GROUP}/service"
ACCELERATOR_LABEL = f"{GROUP}/accelerator"
ACTIVATOR_LABEL = f"{GROUP}/activator"
ROUTER_LABEL = f"{GROUP}/router"
COMPONENT_LABEL = f"{GROUP}/component"
ROUTER_METRICS_PORT = 29000  # vllm-router's default
POD_FILES = "pod-files"
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "holdfast"

# Prometheus copies them from the pod to its series: label names that PromQL can spell.
METRIC_SERVICE_LABEL = "holdfast_service"
METRIC_ACCELERATOR_LABEL = "holdfast_accelerator"
METRIC_REVISION_LABEL = "holdfast_revision"
METRIC_LABELS = (METRIC_SERVICE_LABEL, METRIC_ACCELERATOR_LABEL, METRIC_REVISION_LABEL)

INPUTS_ANNOTATION = f"{GROUP}/pod-inputs"
TEMPLATE_ANNOTATION = f"{GROUP}/pod-template"  # as rendered: what an edit by hand is put back to
FOLLOWER_ANNOTATION = f"{GROUP}/follower-template"  # the same of a group's other pods
ADMISSION_ANNOTATION = f"{GROUP}/admission-tokens"
ADMISSION_CHANGED_ANNOTATION = f"{GROUP}/admission-changed"  # by a measurement: epoch seconds
BATCHING_ANNOTATION = f"{GROUP}/batching"
OBJECTIVES_ANNOTATION = f"{GROUP}/created-objectives"
# Of pods, written while they run; their engines read it as a file.
LIMITS_ANNOTATION = f"{GROUP}/engine-limits"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of pods by which Kubernetes chooses those to remove: the lowest first."""
PROTECTIONS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations by which node autoscalers leave a pod where it is."""
# Of pods, while they load: a disruption budget of their own selects them.
LOADING_LABEL = f"{GROUP}/loading"
FRONT_END_LABEL = f"{GROUP}/front-end"
"""Of pods whose metrics are on `POD_PORT`, not on the engine's own port: `RUST`, or `python` in several processes."""
RUST = "rust"

_RESERVED_DOMAINS = (f"{GROUP}/", "kubernetes.io/", ".kubernetes.io/", "k8s.io/", ".k8s.io/")


QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class")
"""Labels by which a queue admits engine pods: passed on to Deployments and their pods."""


def deployment_name(service: str, accelerator: str) -> str:
    """The Deployment or LeaderWorkerSet of a service on one accelerator; the API keeps it within 53 characters."""
    return f"{service}-{accelerator}"


def workload_kind(nodes: int) -> str:
    """The kind of object that makes replicas of so many pods each."""
    return group_set.KIND if nodes > 1 else "Deployment"


FOLLOWERS = "followers"


def followers_label(service: str) -> str:
    """The service label of pods that answer nobody: a name with a dot, which no service has."""
    return f"{service}.{FOLLOWERS}"


def limits_name(service: str) -> str:
    """The ConfigMap with the limits for the engines of a service, by accelerator."""
    return f"{service}-engine-limits"


def activator_name(service: str) -> str:
    """The Deployment that holds the requests of a service without replicas, and the Service that it is asked by."""
    return f"{service}-activator"


def engines_name(service: str) -> str:
    """The Service that leads to the engines whatever the one of clients leads to."""
    return f"{service}-engines"


def router_name(service: str) -> str:
    """The Deployment of the router of a service."""
    return f"{service}-router"


def replicas_name(service: str) -> str:
    """The headless Service by which a router finds the replicas: one address for each, ready or not."""
    return f"{service}-replicas"


def prefill_replicas_name(service: str) -> str:
    """The same Service for the engines of a prefill pool."""
    return f"{service}-prefill-replicas"


def activator_url(namespace: str, service: str) -> str:
    """Where the operator asks what an activator holds."""
    return f"http://{activator_name(service)}.{namespace}.svc:{ADMIN_PORT}/held"


def scheme(service: LLMService) -> str:
    """What engines speak: `https` or `http`."""
    return "https" if service.spec.engine.tls_secret_ref else "http"


def service_port(name: str, port: int, protocol: str) -> Manifest:
    """A port of a Service; `protocol` is for meshes and gateways, which guess it from the name otherwise."""
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}


def service_url(service: LLMService) -> str:
    """Where clients inside the cluster reach the service."""
    return f"{scheme(service)}://{service.metadata.name}.{service.metadata.namespace}.svc:{PORT}"


def metadata(service: LLMService, name: str, labels: dict[str, str] | None = None) -> Manifest:
    """Metadata of an owned object: the user's labels, ours over them, and the owner."""
    return {
        "name": name,
        "namespace": service.metadata.namespace,
        "labels": {**user_labels(service), **owned_labels(service), **(labels or {})},
        "ownerReferences": [owner_reference(service)],
    }


def owned_labels(service: LLMService) -> dict[str, str]:
    """Labels of every object of a service."""
    name = service.metadata.name
    return {
        SERVICE_LABEL: name,
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        MANAGED_BY: MANAGER,
    }


def user_labels(service: LLMService) -> dict[str, str]:
    """The LLMService's own labels as far as they are the user's to give (team, cost centre, ...)."""
    return {key: value for key, value in service.metadata.labels.items() if not _is_reserved(key)}


def queue_labels(service: LLMService) -> dict[str, str]:
    """The LLMService's labels for a queue."""
    labels = service.metadata.labels
    return {key: labels[key] for key in QUEUE_LABELS if key in labels}


def declared_name(service: LLMService) -> str:
    """The name of the LLMService itself, also of a pool of it."""
    return service.metadata.name.partition(".")[0]


def owner_reference(service: LLMService) -> Manifest:
    """The LLMService as owner: deleting it deletes everything, nothing of it can block the deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": declared_name(service),
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def literal(value: str) -> str:
    """Keep the kubelet from expanding $(NAME), and from taking $$ for $, in an argument that is meant as written."""
    return value.replace("$", "$$")


def short_hash(value: Any) -> str:
    """Ten hexadecimal digits that change with any JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _is_reserved(key: str) -> bool:
    domain = key.partition("/")[0] + "/" if "/" in key else ""
    return domain.startswith(_RESERVED_DOMAINS[0]) or domain.endswith(_RESERVED_DOMAINS[1:])
