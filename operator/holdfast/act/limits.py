"""Limits for running engines: the annotation of a pod, which its engine reads as a file within a second."""

from __future__ import annotations

from holdfast.act.api import APPLY, ApiError, ApiPort, Body
from holdfast.act.resources import pod_path
from holdfast.render.names import LIMITS_ANNOTATION

LIMITS = "holdfast-limits"


async def tell_engine(api: ApiPort, namespace: str, pod: str, uid: str, text: str) -> None:
    """Apply the limits of one pod; a pod that is gone or was replaced needs none."""
    meta = {"name": pod, "namespace": namespace, "uid": uid, "annotations": {LIMITS_ANNOTATION: text}}
    body: Body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    query = {"fieldManager": LIMITS, "force": "true"}
    try:
        await api.request("PATCH", pod_path(namespace, pod), query=query, body=body, content_type=APPLY)
    except ApiError as error:
        # 409: no pod with this uid.
        if error.status not in (404, 409):
            raise
