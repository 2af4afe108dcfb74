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
    """Return whether PodMonitors can be made; raises ApiUnreachable when nobody answers."""
    return await _serves(api, _POD_MONITORS, "podmonitors")


async def has_benchmarks(api: ApiPort) -> bool:
    """Return whether the API server knows LLMBenchmarks: an operator may be newer than the CRDs beside it."""
    found = await _serves(api, _OURS, llmbenchmark.PLURAL)
    if not found:
        _LOG.warning(
            "the cluster has no CRD %s.%s: benchmarks are not looked at; apply it (holdfast crd) and restart",
            llmbenchmark.PLURAL,
            GROUP,
        )
    return found


async def our_own_api(api: ApiPort, every_seconds: float = 5.0) -> None:
    """Return once the API server knows LLMServices: a watch of what it does not know would stay empty for ever."""
    told = False
    while not await _answers(api):
        if not told:
            _LOG.warning("the cluster has no CRD %s.%s: waiting until it is applied (holdfast crd)", PLURAL, GROUP)
            told = True
        await asyncio.sleep(every_seconds)


async def readable(api: ApiPort, namespaces: Iterable[str]) -> tuple[str, ...]:
    """Return in which of these namespaces LLMServices may be listed: one that is deleted takes its Role along."""
    return tuple([namespace for namespace in namespaces if await _may_list(api, namespace)])


async def _may_list(api: ApiPort, namespace: str) -> bool:
    try:
        await api.request("GET", f"{_OURS}/namespaces/{namespace}/{PLURAL}", query={"limit": "1"})
    except ApiError as error:
        return error.status != 403
    except ApiUnreachable:
        return True  # nothing is known
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
