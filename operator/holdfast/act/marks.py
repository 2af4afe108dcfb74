"""Labels and annotations on a running pod that say for how long it may not be moved."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.act.api import APPLY, ApiError, ApiPort, Body
from holdfast.act.resources import pod_path

MARKS = "holdfast-loading"


async def mark_pod(
    api: ApiPort, namespace: str, pod: str, uid: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> None:
    """Give one pod exactly these marks; earlier ones that are not named come off. A pod that is gone needs none."""
    meta = {"name": pod, "namespace": namespace, "uid": uid, "labels": labels, "annotations": annotations}
    body: Body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    query = {"fieldManager": MARKS, "force": "true"}
    try:
        await api.request("PATCH", pod_path(namespace, pod), query=query, body=body, content_type=APPLY)
    except ApiError as error:
        # 409: no pod with this uid.
        if error.status not in (404, 409):
            raise
