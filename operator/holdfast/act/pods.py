"""Labels and annotations of a running pod, each owned by a field manager of its own."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.act.api import APPLY, ApiError, ApiPort, Body
from holdfast.act.resources import pod_path


async def apply_metadata(
    api: ApiPort, namespace: str, pod: str, uid: str, manager: str, metadata: Mapping[str, Mapping[str, str]]
) -> None:
    """Give one pod exactly these labels and annotations of a manager; a pod that is gone or was replaced needs none.

    Raises ApiError for other refusals.
    """
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "namespace": namespace, "uid": uid, **metadata},
    }
    query = {"fieldManager": manager, "force": "true"}
    try:
        await api.request("PATCH", pod_path(namespace, pod), query=query, body=body, content_type=APPLY)
    except ApiError as error:
        # 409: no pod with this uid.
        if error.status not in (404, 409):
            raise
