"""Which optional APIs the cluster has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.api import llmbenchmark
from holdfast.api.llmservice import GROUP, PLURAL, VERSION

_LOG = logging.getLogger(__name__)
_POD_MONITORS = "/apis/monitoring.coreos.com/v1"
_OURS = f"/apis/{GROUP}/{VERSION}"


async def has_pod_monitors(api: ApiPort) -> bool:
    """Return whether the PodMonitor API exists; raises ApiUnreachable without an answer."""
    return await _serves(api, _POD_MONITORS, "podmonitors")


async def has_benchmarks(api: ApiPort) -> bool:
    """Return whether the LLMBenchmark API exists: an operator may be newer than the installed CRDs."""
    found = await _serves(api, _OURS, llmbenchmark.PLURAL)
    if not found:
        _LOG.warning(
            "the cluster has no CRD %s.%s, so benchmarks are ignored; apply it (holdfast crd) and restart",
            llmbenchmark.PLURAL,
            GROUP,
        )
    return found


async def our_own_api(api: ApiPort, every_seconds: float = 5.0) -> None:
    """Return once the LLMService API exists: a watch of an unknown kind would stay empty forever."""
    told = False
    while not await _answers(api):
        if not told:
            _LOG.warning(
                ("the cluster has no CRD %s.%s; apply it (holdfast crd), the operator waits for it"), PLURAL, GROUP
            )
            told = True
        await asyncio.sleep(every_seconds)


async def readable(api: ApiPort, namespaces: Iterable[str]) -> tuple[str, ...]:
    """Return the namespaces in which LLMServices may be listed: a deleted namespace loses its Role."""
    return tuple([namespace for namespace in namespaces if await _may_list(api, namespace)])


async def _may_list(api: ApiPort, namespace: str) -> bool:
    try:
        await api.request("GET", f"{_OURS}/namespaces/{namespace}/{PLURAL}", query={"limit": "1"})
    except ApiError as error:
        return error.status != 403
    except ApiUnreachable:
        return True  # unknown: assume it is readable
    return True


async def _answers(api: ApiPort) -> bool:
    try:
        return await _serves(api, _OURS, PLURAL)
    except ApiUnreachable:
        return False


async def _serves(api: ApiPort, group: str, resource: str) -> bool:
    try:
        found = await api.request("GET", group)
    except ApiError:
        return False
    return any(item.get("name") == resource for item in found.get("resources", ()))
