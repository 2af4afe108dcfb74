"""Which optional APIs the cluster has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.api import group_set, inference_pool, llmbenchmark
from holdfast.api.llmservice import GROUP, PLURAL, VERSION

_LOG = logging.getLogger(__name__)
_POD_MONITORS = "/apis/monitoring.coreos.com/v1"
_DEVICES = "/apis/resource.k8s.io/v1"
_OURS = f"/apis/{GROUP}/{VERSION}"


async def has_pod_monitors(api: ApiPort) -> bool:
    """Return whether the PodMonitor API exists; raises ApiUnreachable without an answer."""
    return await _serves(api, _POD_MONITORS, "podmonitors")


async def has_inference_pools(api: ApiPort) -> bool:
    """Return whether the InferencePool API exists; raises ApiUnreachable without an answer."""
    return await _serves(api, f"/apis/{inference_pool.GATEWAY_API}", inference_pool.PLURAL)


async def has_group_sets(api: ApiPort) -> bool:
    """Return whether the LeaderWorkerSet API exists; raises ApiUnreachable without an answer."""
    return await _serves(api, f"/apis/{group_set.API_VERSION}", group_set.PLURAL)


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


async def may_read_devices(api: ApiPort) -> bool:
    """Return whether the cluster has ResourceSlices and DeviceClasses, and both may be listed."""
    for plural in ("resourceslices", "deviceclasses"):
        if error := await _refusal(api, f"{_DEVICES}/{plural}"):
            if error.status != 404:
                _LOG.warning(
                    "%s cannot be read (%s), so GPUs of DRA drivers are not counted; grant list and watch on it (the "
                    "chart does) and restart",
                    plural,
                    error,
                )
            return False
    return True


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


async def may_read_quotas(api: ApiPort, namespaces: Iterable[str]) -> bool:
    """Return whether ResourceQuotas may be listed, in all of these namespaces or, without any, in the cluster."""
    folders = [f"namespaces/{namespace}/resourcequotas" for namespace in namespaces] or ["resourcequotas"]
    for folder in folders:
        if error := await _refusal(api, f"/api/v1/{folder}"):
            _LOG.warning(
                "ResourceQuotas cannot be read (%s), so they bound no size in advance; grant get, list and watch on "
                "resourcequotas (the chart does) and restart",
                error,
            )
            return False
    return True


async def missing(api: ApiPort, namespaces: Iterable[str], every_seconds: float = 5.0) -> tuple[str, ...]:
    """Return the namespaces that do not exist, as soon as the API server answers."""
    return tuple([namespace for namespace in namespaces if await _is_missing(api, namespace, every_seconds)])


async def _is_missing(api: ApiPort, namespace: str, every_seconds: float) -> bool:
    while True:
        try:
            await api.request("GET", f"/api/v1/namespaces/{namespace}")
        except ApiError as error:
            if error.status == 404:
                return True
            _LOG.warning("namespace %s is not known to exist (%s); grant get on this namespace", namespace, error)
        except ApiUnreachable:
            await asyncio.sleep(every_seconds)
            continue
        return False


async def _may_list(api: ApiPort, namespace: str) -> bool:
    try:
        error = await _refusal(api, f"{_OURS}/namespaces/{namespace}/{PLURAL}")
    except ApiUnreachable:
        return True  # unknown: assume it is readable
    return error is None or error.status != 403


async def _refusal(api: ApiPort, collection: str) -> ApiError | None:
    """Return why a collection cannot be listed; None where it can."""
    try:
        await api.request("GET", collection, query={"limit": "1"})
    except ApiError as error:
        return error
    return None


async def _answers(api: ApiPort) -> bool:
    try:
        return await _serves(api, _OURS, PLURAL)
    except ApiUnreachable:
        return False


async def _serves(api: ApiPort, group: str, resource: str) -> bool:
    try:
        found = await api.request("GET", group)
    except ApiError as error:
        if error.status == 429 or error.status >= 500:
            raise ApiUnreachable(str(error)) from error
        return False
    return any(item.get("name") == resource for item in found.get("resources", ()))
