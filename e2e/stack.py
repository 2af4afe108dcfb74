"""Holdfast and its Prometheus, installed with the chart, and LLMServices of emulated engines to try them with."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

from e2e.cluster import images, nodes
from e2e.kubectl import Kubectl

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
NAMESPACE = "holdfast-system"
H100 = "NVIDIA-H100-80GB-HBM3"
L40S = "NVIDIA-L40S"


def offer_gpus(count: int = 8, product: str = H100) -> None:
    """Make the node look like a GPU machine, labelled as NVIDIA's GPU feature discovery does."""
    nodes.label_node({nodes.GPU_PRODUCT_LABEL: product})
    nodes.set_node_capacity({nodes.GPU: count})


def install(**values: Any) -> None:
    """Install or upgrade the release `holdfast` and wait until it is available; values as `helm --set` names them."""
    given = {
        "image.repository": "holdfast.local/holdfast",
        "image.tag": "dev",
        "image.pullPolicy": "Never",
        "prometheus.enabled": "true",
        "prometheus.image.repository": "holdfast.local/prometheus",
        "prometheus.image.tag": images.PROMETHEUS.version,
        "prometheus.scrapeInterval": "2s",
        **values,
    }
    settings = [argument for name, value in given.items() for argument in ("--set", f"{name}={value}")]
    command = ["helm", "upgrade", "--install", "holdfast", str(REPOSITORY / "charts/holdfast"), *settings]
    place = ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"]
    subprocess.run([*command, *place], check=True, stdout=subprocess.DEVNULL, env=os.environ)


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
