"""What kube-scheduler says about a pod for which it finds no node."""

from __future__ import annotations

import re

_REASONS = re.compile(r"0/([0-9]+) nodes are available: (.*?)(?:[.] |[.]?$)", re.DOTALL)
_REASON = re.compile(r"([0-9]+) (.*?)(?:, (?=[0-9])|$)", re.DOTALL)
_FIT = "Insufficient ", "Too many pods"
"""Beginnings of the reasons that may hold for one node together; any other reason is the only one of its node."""


def may_wait_for(resource: str, message: str) -> bool:
    """Return whether more of a resource could be all that the pod lacks, on some node.

    True if there is no message yet. A pod that lacks anything else everywhere (CPU, memory, a volume, a tolerated or a
    matching node) gets no node from what others give up.
    Source: FitError.Error in kube-scheduler's framework/types.go.
    """
    found = _REASONS.search(message)
    if found is None:
        return not message or resource in message
    reasons = {reason: int(count) for count, reason in _REASON.findall(found[2])}
    fit = {reason: count for reason, count in reasons.items() if reason.startswith(_FIT)}
    short = fit.pop(f"Insufficient {resource}", 0)
    apart = sum(reasons.values()) - short - sum(fit.values())
    others = max(fit.values(), default=0)
    return short > 0 and max(int(found[1]) - apart, short) > others
