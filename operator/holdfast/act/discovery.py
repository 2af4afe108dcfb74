"""Which optional APIs the cluster has."""

from __future__ import annotations

from holdfast.act.api import ApiError, ApiPort

_POD_MONITORS = "/apis/monitoring.coreos.com/v1"


async def has_pod_monitors(api: ApiPort) -> bool:
    """Return whether PodMonitors can be made; raises ApiUnreachable when nobody answers."""
    try:
        found = await api.request("GET", _POD_MONITORS)
    except ApiError:
        return False
    return any(item.get("name") == "podmonitors" for item in found.get("resources", ()))
