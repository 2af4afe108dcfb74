"""Whose word it is how dear a pod is: Kubernetes removes those with the lowest deletion cost first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.rendered.live import SCALING
from holdfast.rendered.names import DELETION_COST

Object = Mapping[str, Any]


def deletion_cost_is_ours(pod: Object) -> bool:
    """Whether the pod bears a deletion cost that Holdfast wrote."""
    return DELETION_COST in (pod["metadata"].get("annotations") or {}) and any(
        f"f:{DELETION_COST}" in (((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {})
        for entry in pod["metadata"].get("managedFields") or ()
        if entry.get("manager") == SCALING
    )


def has_other_deletion_cost(pod: Object) -> bool:
    """Whether somebody else said how dear the pod is."""
    return DELETION_COST in (pod["metadata"].get("annotations") or {}) and not deletion_cost_is_ours(pod)
