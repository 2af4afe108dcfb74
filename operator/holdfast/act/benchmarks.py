"""Writes for benchmarks: Jobs are created once and never changed, status is applied as a whole."""

from __future__ import annotations

from typing import Any

from holdfast.act.api import ApiError, ApiPort, Body
from holdfast.act.apply import delete
from holdfast.act.events import event_body, post_event
from holdfast.act.resources import benchmark_path, collection_path, job_path, live_path, pods_path
from holdfast.act.status import apply_status
from holdfast.api.benchmark_status import LLMBenchmarkStatus
from holdfast.api.llmbenchmark import KIND
from holdfast.api.llmservice import API_VERSION
from holdfast.domain.benchmark import JobState
from holdfast.domain.service import ServiceKey
from holdfast.render.benchmark import RUN_LABEL


async def create_job(api: ApiPort, manifest: Body) -> JobState:
    """Create a Job: ACTIVE once it exists, else LEAVING or FOREIGN by the existing Job of its name. Raises ApiError."""
    meta = manifest["metadata"]
    try:
        await api.request("POST", collection_path("batch/v1", "Job", meta["namespace"]), body=manifest)
    except ApiError as error:
        if error.status != 409 or error.namespace_ends:
            raise
        return _standing(await api.request("GET", job_path(meta["namespace"], meta["name"])), *meta["ownerReferences"])
    return JobState.ACTIVE


def _standing(found: Body, owner: Body) -> JobState:
    """State of an existing Job by its owner; the Job of a deleted benchmark of this name is garbage collected soon."""
    if found["metadata"].get("deletionTimestamp"):
        return JobState.LEAVING
    if owner["uid"] in _owners(found):
        return JobState.ACTIVE
    references = found["metadata"].get("ownerReferences") or ()
    namesake = any((each.get("kind"), each.get("name")) == (owner["kind"], owner["name"]) for each in references)
    return JobState.LEAVING if namesake else JobState.FOREIGN


async def read_job(api: ApiPort, namespace: str, name: str, run: str) -> tuple[Body, list[Body]] | None:
    """Return a Job and, if they are of interest, its own pods; None if the Job is gone.

    Pods are filtered by owner: another benchmark with the same spec has the same run label.
    """
    try:
        found = await api.request("GET", job_path(namespace, name))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    status = found.get("status") or {}
    if status.get("ready") and not status.get("conditions"):
        return found, []  # running
    pods = await api.request("GET", pods_path(namespace), query={"labelSelector": f"{RUN_LABEL}={run}"})
    uid = str(found["metadata"].get("uid", ""))
    return found, [pod for pod in pods.get("items") or () if uid in _owners(pod)]


async def remove_job(api: ApiPort, namespace: str, name: str, owner: str) -> None:
    """End a run: delete the Job with its pod, unless it has another owner."""
    if not name:
        return
    try:
        found = await api.request("GET", job_path(namespace, name))
    except ApiError as error:
        if error.status == 404:
            return
        raise
    if owner in _owners(found):
        await delete(api, job_path(namespace, name), str(found["metadata"].get("uid", "")))


async def missing_key(api: ApiPort, namespace: str, name: str, key: str) -> str:
    """What is missing of a ConfigMap, with the remedy; empty if it has the key."""
    try:
        found = await api.request("GET", live_path(namespace, "ConfigMap", name))
    except ApiError as error:
        if error.status == 404:
            return f"ConfigMap {name} does not exist in this namespace; create it"
        raise
    if key in (found.get("data") or {}) or key in (found.get("binaryData") or {}):
        return ""
    return f"ConfigMap {name} has no key {key}; add it or correct the key"


async def write_status(api: ApiPort, key: ServiceKey, uid: str, status: dict[str, Any]) -> bool:
    """Apply a status; False if the object is gone or another one has its name. Raises ApiError."""
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
        "status": status,
    }
    return await apply_status(api, benchmark_path(key), body, LLMBenchmarkStatus)


async def post(
    api: ApiPort, key: ServiceKey, uid: str, reason: str, message: str, *, warning: bool, now: float, turn: str
) -> None:
    """Post an Event on the benchmark, once per phase change."""
    await _post_once(
        api, event_body(key, uid, reason=reason, message=message, warning=warning, now=now, kind=KIND, turn=turn)
    )


async def post_on_service(
    api: ApiPort, key: ServiceKey, uid: str, reason: str, message: str, *, now: float, turn: str
) -> None:
    """Post an Event on the measured service, once per phase change."""
    await _post_once(api, event_body(key, uid, reason=reason, message=message, warning=False, now=now, turn=turn))


async def _post_once(api: ApiPort, event: Body) -> None:
    """Post an Event unless it exists; a refusal by rights or a quota is ignored, because status says the same."""
    try:
        await post_event(api, event)
    except ApiError as error:
        if error.status == 429 or error.status >= 500:
            raise


def _owners(found: Body) -> list[str]:
    return [str(reference.get("uid")) for reference in found["metadata"].get("ownerReferences") or ()]
