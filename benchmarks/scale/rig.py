"""The processes of the benchmark: exporter, Prometheus and operator, each a real one and watched through /proc."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.kubectl import Kubectl
from e2e.stack import NAMESPACE, REPOSITORY

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is, and how often it is looked at."""

    services: int
    replicas: int
    seed: int
    tick_seconds: float
    scrape_seconds: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Addresses of exporter and Prometheus, and where Prometheus logs every query."""

    exporter: str
    prometheus: str
    prometheus_pid: int
    query_log: Path


@dataclass(frozen=True, slots=True)
class Rig:
    """What runs beside the cluster, with the address of the operator and its process."""

    metrics: Metrics
    operator: str
    operator_pid: int


@contextlib.contextmanager
def scraping(size: Size, folder: Path) -> Iterator[Metrics]:
    """Start exporter and Prometheus; configuration, data and logs go to the folder."""
    exporter, prometheus = _free_address(), _free_address()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(_exporter_command(size, exporter), folder / "exporter.log"))
        wait_for(f"{exporter}/state")
        command = _prometheus_command(size, folder, exporter, prometheus)
        process = stack.enter_context(_process(command, folder / "prometheus.log"))
        wait_for(f"{prometheus}/-/ready")
        yield Metrics(exporter, prometheus, process.pid, folder / "queries.log")


@contextlib.contextmanager
def operating(size: Size, metrics: Metrics, kubeconfig: Path, log: Path) -> Iterator[Rig]:
    """Run the operator."""
    address = _free_address()
    with _process(_operator_command(size, kubeconfig, metrics.prometheus, address), log) as process:
        wait_for(f"{address}/metrics")
        yield Rig(metrics, address, process.pid)


def get(url: str) -> str:
    """The body at an address."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
    return body.decode()


def post(url: str) -> None:
    """Send an empty body."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30):
        return


def wait_for(url: str, seconds: float = 60.0) -> None:
    """Return once the address answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            get(url)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory now (VmRSS), or the most there has been (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024.0
    raise LookupError(field)


def operator_account(folder: Path) -> Path:
    """Make the account that the chart makes, and a kubeconfig for it: the audit log then tells its writes apart."""
    helm = ["helm", "template", "holdfast", str(REPOSITORY / "charts/holdfast"), "--namespace", NAMESPACE]
    shown = [f"--show-only=templates/{name}.yaml" for name in ("crd", "serviceaccount", "rbac")]
    settings = ["--set=settings.prometheusUrl=http://127.0.0.1,image.repository=holdfast.local/holdfast"]
    chart = subprocess.run([*helm, *shown, *settings], check=True, capture_output=True, text=True).stdout
    kubectl = Kubectl(NAMESPACE)
    namespace = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for manifest in (namespace, chart):  # both may be there already, from tests that ran before
        kubectl.run("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=manifest)
    kubectl.wait_established("llmservices.holdfast.dev")
    token = kubectl.run("create", "token", "holdfast", "--duration=6h").strip()
    document: dict[str, Any] = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def _exporter_command(size: Size, address: str) -> list[str]:
    values: Mapping[str, object] = {
        "services": size.services,
        "replicas": size.replicas,
        "seed": size.seed,
        "scrape": size.scrape_seconds,
        "port": _port(address),
    }
    return [sys.executable, "-m", "benchmarks.scale.exporter", *(f"--{name}={value}" for name, value in values.items())]


def _prometheus_command(size: Size, folder: Path, exporter: str, address: str) -> list[str]:
    """The chart's own flags and intervals; targets come from the exporter instead of the API server."""
    interval = f"{size.scrape_seconds:g}s"
    discovery = [{"url": f"{exporter}/targets", "refresh_interval": "30s"}]
    own = {"scrape_interval": interval, "scrape_timeout": interval, "query_log_file": str(folder / "queries.log")}
    jobs = [{"job_name": "pods", "honor_labels": True, "http_sd_configs": discovery}]
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump({"global": own, "scrape_configs": jobs}))
    program = shutil.which("prometheus")
    assert program is not None, "prometheus must be on PATH: run inside python -m e2e.cluster run"
    place = [f"--storage.tsdb.path={folder}/prometheus", f"--web.listen-address=127.0.0.1:{_port(address)}"]
    return [program, f"--config.file={path}", *place, "--storage.tsdb.retention.time=6h"]


def _operator_command(size: Size, kubeconfig: Path, prometheus: str, address: str) -> list[str]:
    flags: Mapping[str, object] = {
        "prometheus-url": prometheus,
        "kubeconfig": kubeconfig,
        "lease-namespace": NAMESPACE,
        "tick": f"{size.tick_seconds:g}s",
        "scrape-interval": f"{size.scrape_seconds:g}s",
        "http-port": _port(address),
        "health-port": 0,
    }
    program = Path(sys.executable).with_name("holdfast")
    return [str(program), "run", *(f"--{name}={value}" for name, value in flags.items())]


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=REPOSITORY)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
