"""Holdfast and its Prometheus, installed with the chart, and LLMServices of emulated engines to try them with."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from e2e.cluster import nodes
from e2e.cluster.toolset import PROMETHEUS
from e2e.kubectl import Kubectl, KubectlError
from e2e.patience import patient
from holdfast.api import crd

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CHART = REPOSITORY / "charts/holdfast"
LEASE_SECONDS = 20.0
"""A leader ends when it has had no CPU for two thirds of that; a host may take ten seconds away at a time."""
ALONE = "--lease-duration=60s"
"""Of an operator without a rival, which nobody starts again once it has lost its Lease."""

ANY_PORTS = ("--http-port=0", "--health-port=0")
"""Of an operator outside the cluster, next to others."""

NAMESPACE = "holdfast-system"
H100 = "NVIDIA-H100-80GB-HBM3"
L40S = "NVIDIA-L40S"
STATUS_PORT = 8090


def offer_gpus(count: int = 8, product: str = H100) -> None:
    """Make the node look like a GPU machine, labelled as NVIDIA's GPU feature discovery does."""
    nodes.label_node({nodes.GPU_PRODUCT_LABEL: product})
    nodes.set_node_capacity({nodes.GPU: count})


def install(chart: pathlib.Path = CHART, **values: Any) -> None:
    """Install or upgrade the release `holdfast` and wait until it is available; values as `helm --set` names them."""
    command = ["helm", "upgrade", "--install", "holdfast", str(chart), *_settings(chart, values)]
    # Tests of the API alone may have put the CRD there already.
    place = ["--namespace", NAMESPACE, "--create-namespace", "--take-ownership"]
    wait = ["--wait", f"--timeout={patient(240.0):.0f}s"]
    subprocess.run([*command, *place, *wait], check=True, stdout=subprocess.DEVNULL, env=os.environ)


def rendered(*arguments: str) -> str:
    """The manifests of the release as `install` makes it."""
    command = ["helm", "template", "holdfast", str(CHART), "--namespace", NAMESPACE, *_settings(CHART, {}), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ).stdout


def _settings(chart: pathlib.Path, values: dict[str, Any]) -> list[str]:
    given = {
        "image.repository": "holdfast.local/holdfast",
        "image.tag": "dev",
        "image.pullPolicy": "Never",
        "prometheus.enabled": "true",
        "prometheus.image.repository": "holdfast.local/prometheus",
        "prometheus.image.tag": PROMETHEUS.version,
        "prometheus.scrapeInterval": "2s",
        # An earlier chart knows no open page, and this operator serves no other one without a token.
        **({"settings.statusPort": STATUS_PORT, "settings.statusOpen": "true"} if chart == CHART else {}),
        **values,
    }
    return [argument for name, value in given.items() for argument in ("--set", f"{name}={value}")]


def uninstall() -> None:
    """Remove the release `holdfast`, if there is one, and wait until it is gone."""
    command = ["helm", "uninstall", "holdfast", "--namespace", NAMESPACE, "--ignore-not-found", "--wait"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)


def install_types() -> None:
    """Let the API server know LLMServices and LLMBenchmarks."""
    kubectl = Kubectl()
    for of in crd.DEFINITIONS:
        kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd.crd_yaml(of))
        kubectl.wait_established(of.name)
        kubectl.wait_until(lambda: _is_served(kubectl, of.name), 30, f"{of.name} to be served")  # noqa: B023


def _is_served(kubectl: Kubectl, name: str) -> bool:
    """Whether kubectl finds the type: the API server tells of it a moment after it is established."""
    try:
        kubectl.items(name)
    except KubectlError:
        return False
    return True


@contextmanager
def operators_restarted() -> Iterator[None]:
    """Replace both operators after the block, and wait until a new one leads.

    For a block at whose end an API goes that they watch: the API server ends the watch seconds later, and the leader
    ends with it. What the next test has seen decided by then, the page of the next leader may not know.
    """
    try:
        yield
    finally:
        old, system = _operators(), Kubectl(NAMESPACE)
        system.run("rollout", "restart", "deployment/holdfast")
        system.wait_available("holdfast", 120)
        system.wait_until(lambda: not _operators() & old and leader() in _operators(), 60, "a new operator that leads")


def _operators() -> set[str]:
    """The operators' pods, those that end included."""
    found = Kubectl(NAMESPACE).items("pods", "app.kubernetes.io/component=operator")
    return {pod["metadata"]["name"] for pod in found}


@contextmanager
def operator_outside(namespace: str, *flags: str) -> Iterator[None]:
    """Run an operator of its own for one namespace, outside the cluster, while none runs inside."""
    program = pathlib.Path(sys.executable).parent / "holdfast"
    command = [str(program), "run", "--prometheus-url=http://127.0.0.1:9", "--tick=2s", *ANY_PORTS, ALONE]
    place = [f"--kubeconfig={os.environ['KUBECONFIG']}", f"--namespace={namespace}", f"--lease-namespace={namespace}"]
    process = subprocess.Popen([*command, *place, *flags])
    try:
        yield
    finally:
        process.terminate()
        code = process.wait(patient(30.0))
    assert code == 0, f"the operator ended with {code} when it was asked to stop"


@contextmanager
def no_operator() -> Iterator[None]:
    """Run neither of the operators in the cluster for a while."""
    system = Kubectl(NAMESPACE)
    system.scale("deployment", "holdfast", 0)
    system.wait_until(lambda: not system.items("pods", "app.kubernetes.io/component=operator"), 60, "no operator")
    try:
        yield
    finally:
        system.scale("deployment", "holdfast", 2)
        system.wait_available("holdfast", 120)


def pod_monitor_api() -> AbstractContextManager[None]:
    """Let the API server know PodMonitors, as the Prometheus Operator's CRDs do."""
    return optional_api(
        "monitoring.coreos.com", "PodMonitor", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    )


@contextmanager
def optional_api(group: str, kind: str, schema: dict[str, Any]) -> Iterator[None]:
    """Let the API server know a kind of objects inside the block."""
    singular = kind.lower()
    kubectl, name = Kubectl(), f"{singular}s.{group}"
    names = {"plural": f"{singular}s", "singular": singular, "kind": kind}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    kubectl.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            # Names under k8s.io need it.
            "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"}},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
        }
    )
    try:
        kubectl.wait_established(name)
        yield
    finally:
        kubectl.delete("crd", name)


def ask(promql: str) -> list[dict[str, Any]]:
    """Return the rows that the release's Prometheus has for a query now."""
    found: list[dict[str, Any]] = prometheus(f"/api/v1/query?{urllib.parse.urlencode({'query': promql})}")["result"]
    return found


def prometheus(path: str, out_seconds: float = 20.0) -> dict[str, Any]:
    """Return the data at a path of the release's Prometheus.

    Asked again where nobody listens: on a crowded machine it may miss its probes and be out for a moment.
    """
    address = f"http://holdfast-prometheus.{NAMESPACE}.svc:9090{path}"
    deadline = time.monotonic() + patient(out_seconds)
    while True:
        try:
            with urllib.request.urlopen(address, timeout=patient(10.0)) as answer:
                told: dict[str, Any] = json.load(answer)["data"]
                return told
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def operator_logs() -> str:
    """Return what both operator pods have logged."""
    selector = ("--selector", "app.kubernetes.io/component=operator", "--tail=-1", "--prefix")
    return Kubectl(NAMESPACE).run("logs", *selector)


def service(name: str, *, cold_start_seconds: float = 5.0, **spec: Any) -> dict[str, Any]:
    """Return an LLMService whose engine is emulated; `spec` fields replace the defaults."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "Qwen/Qwen3-8B"},
            "slo": {"ttft": "1s", "tpot": "40ms", "objective": "99%", "window": "5m"},
            "accelerators": [{"name": "h100", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: H100}}],
            "scaling": {"min": 1, "max": 4},
            "engine": {
                "image": "holdfast.local/holdfast:dev",
                "args": [f"--cold-start={cold_start_seconds:g}"],
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
            },
            **spec,
        },
    }


def batch_of(size: int) -> dict[str, Any]:
    """Return batching limits so narrow that a replica is full with a load that tests can afford."""
    return {"mode": "Fixed", "maxNumSeqs": size, "maxNumBatchedTokens": 2048}


def small_service(name: str, **scaling: int) -> dict[str, Any]:
    """Return a service that is full with one request of the usual length (1155 in, 211 out) a second per replica.

    The engine model gives 0.98 req/s for eight sequences on an L40S within these objectives, and the emulator plays the
    same model; 211 tokens take five seconds, so that a stream is always under way when a replica goes.
    """
    return service(
        name,
        cold_start_seconds=3.0,
        slo={"ttft": "2s", "tpot": "200ms", "objective": "90%", "window": "5m"},
        accelerators=[{"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: L40S}}],
        batching=batch_of(8),
        scaling={"min": 1, "max": 4, **scaling},
    )


def deployment_of(name: str, accelerator: str = "l40s") -> str:
    """Return the name of the Deployment that serves a service on an accelerator."""
    return f"{name}-{accelerator}"


def leading() -> tuple[str, int]:
    """Return the pod that leads and its operator's process id, once both are there."""
    found: list[tuple[str, int]] = []

    def is_found() -> bool:
        try:
            found.append(((pod := leader()), operator_process(pod)))
        except LookupError:
            return False
        return True

    Kubectl(NAMESPACE).wait_until(is_found, 60, "an operator that leads")
    return found[0]


def leader() -> str:
    """Return the pod that holds the operators' Lease, an empty string when nobody does."""
    holder = Kubectl(NAMESPACE).get_json("lease", "holdfast")["spec"].get("holderIdentity") or ""
    return str(holder).rpartition("_")[0]


def operator_process(pod: str) -> int:
    """Return the process id, as this machine counts, of the operator in a pod; pods share the cluster's PID space."""
    for number, command in processes(pod).items():
        if b"/usr/local/bin/holdfast" in command and b"run" in command:
            return number
    raise LookupError(f"no operator process of {pod}")


def processes(pod: str) -> dict[int, list[bytes]]:
    """Return the words of the command of each process of a pod, by its id as this machine counts."""
    folders = (folder for folder in pathlib.Path("/proc").iterdir() if folder.name.isdigit())
    return {int(folder.name): words for folder in folders if (words := _command(folder, pod)) is not None}


def _command(folder: pathlib.Path, pod: str) -> list[bytes] | None:
    try:
        environment = (folder / "environ").read_bytes().split(b"\0")
        command = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None  # it ended meanwhile
    return command if f"HOSTNAME={pod}".encode() in environment else None


def written(namespace: str) -> list[dict[str, Any]]:
    """Return the write requests of both operators to a namespace that succeeded, oldest first, from the audit log."""
    user = f"system:serviceaccount:{NAMESPACE}:holdfast"
    lines = pathlib.Path(os.environ["HOLDFAST_AUDIT_LOG"]).read_text(encoding="utf-8").splitlines()
    # The last line may be half written.
    entries = [json.loads(line) for line in lines if line.endswith("}") and f'"{namespace}"' in line]
    return [
        entry
        for entry in entries
        if entry["user"]["username"] == user
        and entry.get("objectRef", {}).get("namespace") == namespace
        and entry.get("responseStatus", {}).get("code", 500) < 300
    ]


def received_at(entry: dict[str, Any]) -> float:
    """Return when a request came to the API server: it is logged once it is answered."""
    return datetime.datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()


def writer(entry: dict[str, Any]) -> str:
    """Return the pod that made a request: bound service account tokens name it."""
    return str(entry["user"]["extra"]["authentication.kubernetes.io/pod-name"][0])


def is_resize(entry: dict[str, Any]) -> bool:
    """Whether a request set the size of a Deployment."""
    target = entry["objectRef"]
    return bool(target["resource"] == "deployments" and target.get("subresource") == "scale")
