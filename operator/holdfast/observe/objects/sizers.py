"""Who else may size a Deployment: one table, read before Holdfast writes a size. Pure.

| who | known by |
|---|---|
| an autoscaler of `AUTOSCALERS` | its scaleTargetRef |
| the object that made the Deployment, such as a KServe InferenceService | an owner reference with `controller: true` |
| anybody else | the field manager of `replicas`, once a size of ours was set back (`sized_by`) |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.rendered.live import SCALING

Object = Mapping[str, Any]

AUTOSCALERS = {
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "ScaledObject": "keda.sh/v1alpha1",
    "PodAutoscaler": "autoscaling.aibrix.ai/v1alpha1",
}
"""Kinds with their API; of several that name one Deployment the last counts: it makes the ones before it."""

_GROUPS = frozenset({"apps", "extensions"})
_CLASS, _LEFT_TO_OTHERS = "serving.kserve.io/autoscalerClass", frozenset({"external", "none"})


def autoscalers_path(kind: str, namespace: str) -> str:
    """Return where the API server has the autoscalers of one kind in a namespace."""
    return f"/apis/{AUTOSCALERS[kind]}/namespaces/{namespace}/{kind.lower()}s"


def aim_of(autoscaler: Object) -> str:
    """Return the name of the Deployment that an autoscaler sizes; empty where that is something else."""
    aim = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = str(aim.get("apiVersion") or "apps/v1").rpartition("/")[0]
    is_deployment = (aim.get("kind") or "Deployment") == "Deployment" and group in _GROUPS
    return str(aim.get("name") or "") if is_deployment else ""


def owner_of(deployment: Object) -> str:
    """Return the object that made a Deployment and may write its size again; empty without one.

    KServe leaves the size alone where an annotation says so, which it copies to the Deployment.
    """
    meta = deployment["metadata"]
    if (meta.get("annotations") or {}).get(_CLASS) in _LEFT_TO_OTHERS:
        return ""
    owners = meta.get("ownerReferences") or ()
    return next((f"{each.get('kind', '')} {each.get('name', '')}" for each in owners if each.get("controller")), "")


def sized_by(meta: Object) -> str:
    """Return the field manager that owns `replicas` in managedFields; empty if that is ours."""
    owners = [
        str(entry.get("manager", ""))
        for entry in meta.get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return "" if SCALING in owners else next(iter(owners), "")
