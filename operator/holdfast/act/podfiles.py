"""Which of a service's pod files are still in use."""

from __future__ import annotations

import json
from collections.abc import Collection

from holdfast.act.api import ApiPort
from holdfast.domain.service import ServiceKey
from holdfast.rendered.names import SERVICE_LABEL

_USERS = ("/apis/apps/v1/namespaces/{}/replicasets", "/api/v1/namespaces/{}/pods")


async def named_config_maps(api: ApiPort, key: ServiceKey, names: Collection[str]) -> set[str]:
    """Return which of these ConfigMaps a ReplicaSet or pod of a service still uses; costs two lists.

    A ReplicaSet without pods counts, because undoing a rollout uses it again; so does a terminating pod.
    """
    found: set[str] = set()
    for path in _USERS:
        answer = await api.request(
            "GET", path.format(key.namespace), query={"labelSelector": f"{SERVICE_LABEL}={key.label}"}
        )
        text = json.dumps([item.get("spec") for item in answer.get("items") or ()])
        found.update(name for name in names if name in text)
    return found
