"""What users may give to the tools, and the error if it cannot be used.

Apart from the modules that implement it, so that the help of a command does not load the twin.
"""

from __future__ import annotations

TRACE_FORMATS = ("azure", "csv", "mooncake")
"""Formats of recorded requests; `twin.scenarios.traces` reads them in this order."""

PEER_NAMES = (
    "hpa",
    "keda-queue",
    "keda-token",
    "keda-slo",
    "aibrix-apa",
    "wva",
    "dynamo-sla",
    "dynamo-latency",
    "sageserve",
    "knative",
)
"""Policies of other autoscalers."""

POLICY_NAMES = (
    "holdfast",
    "holdfast-slow",
    "holdfast-apart",
    "static",
    *PEER_NAMES,
    "dynamo-load",
    "forecast-hourly",
    "static-peak",
    "oracle",
)
"""What `holdfast simulate --policy` takes: policies, further names of them, and what many runs find."""

ALL_POLICIES = "all"
"""Every policy that needs no argument."""

EXTRA = "install the extra simulate: pip install -c constraints.txt '.[simulate]' in the checkout"
"""The remedy where numba or matplotlib is missing."""


class BadInput(ValueError):
    """A scenario, a trace or an option that cannot be used; the message says where, what, and the remedy."""
