"""The pod of a benchmark that tunes: the client, and an engine of its own, as the replicas of the service are.

No replica is touched: the engine's limits are a file on a volume of this pod, which the client writes and the engine's
plugin reads. The engine is a container of the kind that ends with the client (Kubernetes 1.29). The pod carries none of
the labels by which a Service or a Prometheus finds replicas, and none of a person's either, for a Service of theirs may
select them: nobody's requests get there. Nor has it their priority class: replicas that need its GPUs come first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.api.engine_flags import flag_name
from holdfast.api.llmbenchmark import Tune
from holdfast.api.llmservice import API_VERSION, GROUP, KIND, LLMService
from holdfast.api.objectives import Objectives
from holdfast.rendered import names
from holdfast.rendered.names import Manifest
from holdfast.rendered.own_engine import OwnEngine, largest_limits

LIMITS_VARIABLE = "HOLDFAST_ENGINE_LIMITS"
"""Where the plugin finds the name of its file: `holdfast_engine.objectives.limits` reads files and is not imported."""

URL = f"http://127.0.0.1:{names.PORT}"
LIMITS_FILE = "/run/holdfast/engine-limits"
SERVICE_FILE = "/benchmark/service/service.json"

_LIMITS, _SERVICE = "tune-limits", "tune-service"
_SERVICE_ANNOTATION = f"{GROUP}/tuned-service"
_SCRAPING = "prometheus.io/"
_TLS_FLAGS = frozenset({"--ssl-certfile", "--ssl-keyfile", "--enable-ssl-refresh"})
_NOT_OF_REPLICAS = frozenset(
    {"containers", "topologySpreadConstraints", "priorityClassName", "priority", "preemptionPolicy"}
)
# It has no other clients, so its readiness and its end need not be announced.
_NOT_OF_ITS_OWN = frozenset({"lifecycle", "readinessProbe"})


def with_engine(client: Manifest, engine: OwnEngine, slo: Objectives | None) -> Manifest:
    """The pod template of a client, of one container, with the engine next to it; `slo` is what the run judges by."""
    replica = json.loads(engine.template_json)
    annotations = {
        name: value
        for name, value in (replica.get("metadata", {}).get("annotations") or {}).items()
        if not name.startswith(_SCRAPING)
    }
    told = {_SERVICE_ANNOTATION: json.dumps(_service(engine.service, slo), sort_keys=True)}
    metadata = {**client["metadata"], "annotations": {**annotations, **told}}
    return {"metadata": metadata, "spec": _pod(client["spec"], replica["spec"], engine.tune)}


def _pod(client: Manifest, replica: Manifest, tune: Tune) -> Manifest:
    """The replica's place and identity, and what ends a Job."""
    sidecars = [_sidecar(each, tune) for each in replica["containers"]]
    return {
        **{name: value for name, value in replica.items() if name not in _NOT_OF_REPLICAS},
        **{name: client[name] for name in ("restartPolicy", "automountServiceAccountToken", "enableServiceLinks")},
        **_pull_secrets(client, replica),
        "initContainers": [*replica.get("initContainers", []), *sidecars],
        "containers": [_client(each, client["securityContext"]) for each in client["containers"]],
        "volumes": [*replica.get("volumes", []), *client.get("volumes", []), *_volumes()],
    }


def _pull_secrets(*pods: Manifest) -> Manifest:
    """Those of all of them, each once."""
    found = {secret["name"]: secret for pod in pods for secret in pod.get("imagePullSecrets", [])}
    return {"imagePullSecrets": list(found.values())} if found else {}


def _client(container: Manifest, security: Manifest) -> Manifest:
    """It keeps a user of its own, and reaches the engine's file."""
    user = {name: security[name] for name in ("runAsUser", "runAsGroup") if name in security}
    mounts = [*container.get("volumeMounts", []), _limits_mount(), _service_mount()]
    return {**container, "securityContext": {**container["securityContext"], **user}, "volumeMounts": mounts}


def _sidecar(container: Manifest, tune: Tune) -> Manifest:
    """A container of a replica, which ends with the client."""
    found = _engine(container, tune) if container["name"] == names.CONTAINER else container
    return {**found, "restartPolicy": "Always"}


def _engine(container: Manifest, tune: Tune) -> Manifest:
    """The engine with the largest limits that are looked for, which takes lower ones from the file."""
    largest = largest_limits(tune)
    kept = [each for each in container.get("args", []) if flag_name(each) not in _TLS_FLAGS | largest.keys()]
    environment = [each for each in container.get("env", []) if each["name"] != LIMITS_VARIABLE]
    return {
        **{name: _plain(value) for name, value in container.items() if name not in _NOT_OF_ITS_OWN},
        "args": [*kept, *(f"{flag}={value}" for flag, value in largest.items())],
        "env": [*environment, {"name": LIMITS_VARIABLE, "value": LIMITS_FILE}],
        "volumeMounts": [*container.get("volumeMounts", []), _limits_mount()],
    }


def _plain(part: Any) -> Any:
    """A probe without TLS: certificates name the service, and the client asks this engine by its loopback address."""
    if isinstance(part, Mapping) and "httpGet" in part:
        return {**part, "httpGet": {**part["httpGet"], "scheme": "HTTP"}}
    return part


def _volumes() -> list[Manifest]:
    field = f"metadata.annotations['{_SERVICE_ANNOTATION}']"
    item = {"path": SERVICE_FILE.rpartition("/")[2], "fieldRef": {"fieldPath": field}}
    return [{"name": _LIMITS, "emptyDir": {}}, {"name": _SERVICE, "downwardAPI": {"items": [item]}}]


def _limits_mount() -> Manifest:
    return {"name": _LIMITS, "mountPath": LIMITS_FILE.rpartition("/")[0]}


def _service_mount() -> Manifest:
    return {"name": _SERVICE, "mountPath": SERVICE_FILE.rpartition("/")[0], "readOnly": True}


def _service(service: LLMService, slo: Objectives | None) -> Manifest:
    """As much of the service as its engine model needs, with the objectives of the run."""
    of_model = {"uri", "quantization", "max_model_len"}
    of_accelerators = {"__all__": {"name", "node_selector", "resource", "count", "hardware"}}
    spec = service.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"model": of_model, "accelerators": of_accelerators}
    )
    bounds = slo or service.spec.slo
    wanted = bounds.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"ttft", "tpot", "e2e", "objective"}
    )
    metadata = {"name": service.metadata.name, "namespace": service.metadata.namespace}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {**spec, "slo": wanted}}
