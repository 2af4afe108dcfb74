"""The vLLM container."""

from __future__ import annotations

import math

from holdfast.api.engine_environment import RUST_FRONTEND
from holdfast.api.llmservice import NO_RESOURCE, Accelerator, LLMServiceSpec, SecretKeyReference
from holdfast.api.router import API_KEY
from holdfast.render import plugin, restricted, volumes
from holdfast.render.arguments import EngineFlags
from holdfast.render.settings import RenderSettings
from holdfast.rendered import names
from holdfast.rendered.declared import engine_image, own_front_end, pod_port
from holdfast.rendered.merge import strategic_merge
from holdfast.rendered.names import Manifest
from holdfast.rendered.pools import SIDE_CHANNEL_PORT

LAUNCHER = f"{volumes.POD_FILES_FOLDER}/launcher.py"
PRESTOP = f"{volumes.POD_FILES_FOLDER}/prestop.py"

STARTUP_PERIOD_SECONDS = 2
# After its requests are drained the engine frees the GPU and ends its worker processes.
TEARDOWN_SECONDS = 30
# Longer than the clients of common libraries keep an idle connection (5 to 60 s): the server must not close it
# first, or a request that is just being sent is lost.
KEEP_ALIVE_SECONDS = 75

# Where other pods reach this one: vLLM would guess among the addresses of the pod.
_ADDRESS: Manifest = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
_OF_GROUP: list[Manifest] = [{"name": "VLLM_HOST_IP", **_ADDRESS}]
_OF_POOLS: list[Manifest] = [
    {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", **_ADDRESS},
    {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(SIDE_CHANNEL_PORT)},
]


def engine_container(
    spec: LLMServiceSpec, accelerator: Accelerator, flags: EngineFlags, settings: RenderSettings
) -> Manifest:
    """The container that runs vLLM through the launcher."""
    return {
        "name": names.CONTAINER,
        "image": engine_image(spec, accelerator),
        "command": ["python3", LAUNCHER],
        "args": list(flags.arguments),
        "env": environment(spec, accelerator, flags, settings),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in dict([(names.PORT_NAME, names.PORT), pod_port(spec, accelerator)]).items()
        ],
        "resources": resources(spec, accelerator),
        "volumeMounts": [*volumes.mounts(spec), *(plugin.mounts() if flags.with_plugin else [])],
        **probes(spec, pod_port(spec, accelerator)[0], settings),
        "lifecycle": {
            "preStop": {"exec": {"command": ["python3", PRESTOP, str(settings.prestop_seconds), str(names.PORT)]}}
        },
        "securityContext": restricted.container_security(),
        # The last lines of a crashed engine become the message that `kubectl describe` and our conditions show.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(
    spec: LLMServiceSpec, accelerator: Accelerator, flags: EngineFlags, settings: RenderSettings
) -> list[Manifest]:
    """Our variables, engine.env over them, the accelerator's over both."""
    values = {
        **volumes.cache_environment(spec, engine_image(spec, accelerator)),
        # Torch asks for the user's name, and the image need not know the uid.
        "USER": "holdfast",
        "LOGNAME": "holdfast",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
        "HOLDFAST_CONNECTION_CLOSE_SHARE": f"{settings.connection_close_share:g}",
        "HOLDFAST_ACCELERATOR": accelerator.name,
        **({plugin.PLAIN_FLAGS_VARIABLE: " ".join(flags.without_plugin)} if flags.without_plugin else {}),
        **({RUST_FRONTEND: "1"} if spec.engine.has_rust_front_end else {}),
        **({"HOLDFAST_POD_PORT": str(names.POD_PORT)} if own_front_end(spec, accelerator) else {}),
    }
    secrets = {"HF_TOKEN": spec.model.token_secret_ref, API_KEY: spec.engine.api_key_secret_ref}
    ours = [
        *({"name": name, "value": value} for name, value in values.items()),
        *(_from_secret(name, reference) for name, reference in secrets.items() if reference is not None),
    ]
    of_group, of_pools = _OF_GROUP if accelerator.nodes > 1 else [], _OF_POOLS if spec.prefill else []
    every = (*ours, *of_group, *of_pools, *spec.engine.env, *accelerator.env)
    return list({variable["name"]: dict(variable) for variable in every}.values())  # later ones replace earlier ones


def resources(spec: LLMServiceSpec, accelerator: Accelerator) -> Manifest:
    """engine.resources with the accelerator's own resource; extended resources need equal requests and limits."""
    if accelerator.resource == NO_RESOURCE:
        return dict(spec.engine.resources)
    gpus = {accelerator.resource: accelerator.gpus_per_pod}
    return strategic_merge(spec.engine.resources, {"requests": gpus, "limits": gpus})


def probes(spec: LLMServiceSpec, port: str, settings: RenderSettings) -> Manifest:
    """Startup and readiness ask for a token really served; liveness only catches a server that is stuck.

    An overloaded engine answers probes late. Taking it out or restarting it would hand its load to the others, so
    both wait far longer than any healthy stall; a dead engine ends its own process.
    """
    scheme = "HTTPS" if spec.engine.tls_secret_ref else "HTTP"

    def probe(path: str, period: int, timeout: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": port, "scheme": scheme},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": failures,
        }

    # A stuck engine drains nothing: no reason to give it the pod's whole grace period.
    soon = {"terminationGracePeriodSeconds": settings.prestop_seconds + TEARDOWN_SECONDS}
    tries = math.ceil(settings.startup_seconds_of(spec) / STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": {**probe(names.READY_PATH, STARTUP_PERIOD_SECONDS, 5, tries), **soon},
        "readinessProbe": probe(names.READY_PATH, 5, 5, 6),
        "livenessProbe": {**probe(names.HEALTH_PATH, 10, 10, 12), **soon},
    }


def _from_secret(name: str, reference: SecretKeyReference) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}
