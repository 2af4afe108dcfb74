"""Sizes: written through /scale only, and only if the object still has the observed size."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from holdfast.act.api import MERGE, ApiError, ApiPort, Body
from holdfast.act.resources import live_path, pod_path
from holdfast.domain.cluster import Workload
from holdfast.rendered.live import SCALING
from holdfast.rendered.names import DELETION_COST

_CONFLICT_RETRIES = 3


class StaleDecision(Exception):
    """The size changed between observation and writing; the next tick decides on the new state."""


async def scale(
    api: ApiPort,
    namespace: str,
    workload: Workload,
    *,
    observed: int | None,
    wanted: int,
    remove_first: Sequence[str] = (),
) -> Body | None:
    """Set the size of a workload if it still has the observed one; raises StaleDecision otherwise.

    Returns the answer to the write; None where the size was there already.

    Just before, as many pods of `remove_first` are marked as are to go; none where all pods go. A LeaderWorkerSet knows
    no marks: it removes the groups with the highest numbers.
    """
    path = f"{live_path(namespace, workload.kind, workload.name)}/scale"
    for attempt in range(_CONFLICT_RETRIES):
        current = await api.request("GET", path)
        size = int(current.get("spec", {}).get("replicas", 0))
        if size == wanted:
            return None
        if observed is not None and size != observed:
            raise StaleDecision(f"{namespace}/{workload.name}: {size} replicas, decided on {observed}")
        if attempt == 0 and wanted and workload.kind == "Deployment":
            await prefer_removal(api, namespace, remove_first[: max(0, size - wanted)])
        body = {"metadata": {"resourceVersion": current["metadata"]["resourceVersion"]}, "spec": {"replicas": wanted}}
        try:
            return await api.request("PATCH", path, query={"fieldManager": SCALING}, body=body, content_type=MERGE)
        except ApiError as error:
            # A status update of the Deployment changes resourceVersion too: read again and compare the size.
            if error.status != 409 or attempt == _CONFLICT_RETRIES - 1:
                raise
    return None


def removal_order(
    remove_first: Sequence[str], running: Mapping[str, float], lost: Collection[str] = ()
) -> tuple[str, ...]:
    """Order replicas by the work their removal would disturb: fewest running requests first, ties as given.

    Requests of `lost` replicas do not count: they are lost in any case.
    """
    return tuple(sorted(remove_first, key=lambda pod: 0.0 if pod in lost else running.get(pod, 0.0)))


async def prefer_removal(api: ApiPort, namespace: str, pods: Sequence[str]) -> None:
    """Mark the pods that Kubernetes should remove first; a pod that is gone already is no error.

    Costs fall with time, so that a pod that kept an earlier mark does not go before these.
    """
    base = -int(time.time()) - len(pods)
    for rank, pod in enumerate(pods):
        await _set_deletion_cost(api, namespace, pod, str(base + rank))


async def unmark(api: ApiPort, namespace: str, pod: str) -> None:
    """Take our deletion cost off a pod; a pod that is gone needs none. Raises ApiError."""
    await _set_deletion_cost(api, namespace, pod, None)


async def _set_deletion_cost(api: ApiPort, namespace: str, pod: str, cost: str | None) -> None:
    body = {"metadata": {"annotations": {DELETION_COST: cost}}}
    query = {"fieldManager": SCALING}
    try:
        await api.request("PATCH", pod_path(namespace, pod), query=query, body=body, content_type=MERGE)
    except ApiError as error:
        if error.status != 404:
            raise
