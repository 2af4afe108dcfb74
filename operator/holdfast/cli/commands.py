"""The commands: what `holdfast --help` lists without loading any of them."""

from __future__ import annotations

COMMANDS = {
    "run": "run the operator, in a cluster or with a kubeconfig",
    "activate": "hold requests of a service without replicas until one is ready",
    "route": "run vllm-router in front of the ready replicas of a service",
    "emulate": "an OpenAI-compatible server with vLLM's timing and metrics, without a GPU",
    "simulate": "simulate scenarios under policies (digital twin), without a GPU",
    "plan": "replicas, accelerator, batching and cost for a load, without a GPU",
    "catalog": "list known models and accelerators, or say what a name is taken for",
    "bench": "measure a live endpoint: TTFT, ITL, TPOT, E2E, goodput, cost",
    "tune": "find the batching limits with the highest rate within an SLO, on a live endpoint or simulated",
    "adopt": "print the LLMService that sizes an existing vLLM Deployment as it is",
    "explain": "the last or a past decision: what was measured, what was decided and why",
    "status": "list services with attainment, budget, replicas and the reason of the worst condition",
    "savings": "GPU-hours that a service used, and what Holdfast would have used for the same load",
    "rules": "print recording rules and alerts",
    "dashboards": "print the dashboards for Grafana",
    "crd": "print the CRDs generated from the types",
    "completion": "print a script that completes commands and options in a shell",
}
"""What each is for. Its parser is `holdfast.cli.parsers.NAME`, its work `holdfast.cli.NAME`."""

SIMULATING = ("simulate", "plan", "tune", "savings")
"""Commands that need numba: in plain Python, `plan` takes more than ten minutes for an answer of seconds."""
