"""Set the demo up on the cluster that KUBECONFIG names: GPUs, operator, Prometheus, and the service under load."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pathlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from e2e.cluster import images, nodes
from e2e.demo import watch
from e2e.demo.scenario import Scenario
from e2e.kubectl import Kubectl, KubectlError, Timeout, condition
from e2e.load.verdict import Objectives
from holdfast.api import quantities

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
VALUES = pathlib.Path(__file__).with_name("values.yaml")
OPERATOR_NAMESPACE = "holdfast-system"
ENGINE_IMAGE = "holdfast.local/holdfast:dev"
LLMS = "llmservices.holdfast.dev"

Manifest = dict[str, Any]


class SetUpError(Exception):
    """The demo could not be set up; the message says what was seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """The service under load, as the API server stored it and as its first replica started."""

    namespace: str
    name: str
    url: str
    served_model: str
    model: str
    accelerators: tuple[str, ...]
    objectives: Objectives
    cold_start_seconds: float


def manifest(path: pathlib.Path, scenario: Scenario) -> Manifest:
    """Return the LLMService of a file with an emulated engine; nothing else of it is changed."""
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(written, dict) or written.get("kind") != "LLMService":
        raise SetUpError(f"{path} holds no LLMService")
    emulated = copy.deepcopy(written)
    emulated["spec"]["engine"] = emulated["spec"].get("engine", {}) | {
        "image": ENGINE_IMAGE,
        "args": [f"--cold-start={scenario.cold_start_seconds:g}"],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }
    return emulated


def without_fast_loop(service: Manifest) -> Manifest:
    """Return the same service under another name, its engines with stock scheduling."""
    other = copy.deepcopy(service)
    other["metadata"]["name"] += "-stock"
    other["spec"]["engine"]["plugin"] = "Disabled"
    return other


def set_up(services: Sequence[Manifest], namespace: str, scenario: Scenario) -> list[Service]:
    """Take every step, each with a line that says how long it took; the services are of the same shape."""
    kubectl = Kubectl(namespace)
    names = [service["metadata"]["name"] for service in services]
    try:
        with _step("GPUs on the node"):
            offer_gpus(services[0], len(services))
        with _step("operator and Prometheus, from the Helm chart"):
            helm_install(scenario)
        with _step(f"LLMService {' and '.join(names)} in {namespace}, and their first replicas"):
            for service in services:
                kubectl.apply(service)
            return [read_service(_when_ready(kubectl, name, scenario), kubectl) for name in names]
    except (KubectlError, Timeout, subprocess.SubprocessError, OSError) as error:
        raise SetUpError(f"{error}\n{diagnosis(kubectl, names[0])}") from error


def _when_ready(kubectl: Kubectl, name: str, scenario: Scenario) -> Manifest:
    return kubectl.wait_for(LLMS, name, _is_ready, seconds=180 + scenario.cold_start_seconds, what="Ready")


def offer_gpus(service: Manifest, services: int) -> None:
    """Make the node look like the machines of the first accelerator, with enough GPUs for scaling.max of each."""
    accelerator = service["spec"]["accelerators"][0]
    replicas = services * service["spec"].get("scaling", {}).get("max", 10)
    nodes.label_node(accelerator.get("nodeSelector", {}))
    nodes.set_node_capacity({accelerator.get("resource", nodes.GPU): replicas * accelerator.get("count", 1)})


def helm_install(scenario: Scenario) -> None:
    """Install the release `holdfast` and wait until operator and Prometheus are available."""
    command = ["helm", "upgrade", "--install", "holdfast", str(REPOSITORY / "charts/holdfast")]
    command += ["--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait", "--timeout=180s"]
    command += [f"--values={VALUES}", f"--set=prometheus.image.tag={images.PROMETHEUS_IMAGE.partition(':')[2]}"]
    command += [f"--set=prometheus.scrapeInterval={scenario.scrape_seconds:g}s"]
    command += [f"--set=settings.tick={scenario.tick_seconds:g}s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetUpError(f"helm: {done.stderr.strip()}\n{diagnosis(Kubectl(OPERATOR_NAMESPACE), '')}")


def read_service(stored: Manifest, kubectl: Kubectl) -> Service:
    """Read what the load needs to know out of the stored object and its first replica."""
    spec, name = stored["spec"], stored["metadata"]["name"]
    slo, model = spec["slo"], spec["model"]
    end_to_end = {"e2e_seconds": quantities.parse_duration_seconds(slo["e2e"])} if "e2e" in slo else {}
    return Service(
        namespace=kubectl.namespace,
        name=name,
        url=stored.get("status", {}).get("url") or f"http://{name}.{kubectl.namespace}.svc:8000",
        served_model=model.get("servedName") or model["uri"],
        model=model["uri"],
        accelerators=tuple(accelerator["name"] for accelerator in spec["accelerators"]),
        objectives=Objectives(
            ttft_seconds=quantities.parse_duration_seconds(slo["ttft"]),
            tpot_seconds=quantities.parse_duration_seconds(slo["tpot"]),
            share=quantities.parse_percent(slo["objective"]),
            **end_to_end,
        ),
        cold_start_seconds=first_cold_start(kubectl.items("pods", selector=f"holdfast_service={name}")),
    )


def first_cold_start(pods: list[dict[str, Any]]) -> float:
    """Return how long the first replica took from its creation to Ready, by Kubernetes' own clock."""
    seen = (watch.pod_sample(pod) for pod in pods)
    took = [pod.cold_start_seconds for pod in seen if pod is not None and pod.cold_start_seconds is not None]
    if not took:
        raise SetUpError("the service is Ready, but none of its pods is; does the pod label holdfast_service exist?")
    return min(took)


def diagnosis(kubectl: Kubectl, name: str) -> str:
    """Return what a person would look at first."""
    looks = (
        (kubectl, ("get", "pods", "--all-namespaces", "--output", "wide")),
        (kubectl, ("describe", LLMS, name)),
        (kubectl, ("get", "events", "--sort-by=.lastTimestamp")),
        (Kubectl(OPERATOR_NAMESPACE), ("logs", "deployment/holdfast", "--tail=40")),
    )
    parts = []
    for client, arguments in looks:
        try:
            text = client.run(*arguments, seconds=20)
        except (KubectlError, subprocess.SubprocessError, OSError) as error:
            text = str(error)
        parts.append(f"--- kubectl {' '.join(arguments)}\n{text.strip()[-4000:]}")
    return "\n".join(parts)


def _is_ready(found: Manifest) -> bool:
    return condition(found, "Ready").get("status") == "True"


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"  {what} ...", end="", flush=True)
    try:
        yield
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f" {time.monotonic() - started:.0f} s", flush=True)
