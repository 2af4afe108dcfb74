"""Protects pods while they load: a load that is cut short begins again elsewhere, and costs minutes of a GPU.

The marks are written to the pod, not to its template, so that no rollout follows. A pod is marked once, and the mark is
taken off once: when it serves, when it fails, or when its startup timeout has passed. So a pod that never comes up
does not keep its node for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.apply import WATCH_LAG_SECONDS
from holdfast.act.marks import mark_pod
from holdfast.api.llmservice import LLMServiceSpec
from holdfast.observe.cluster import ServiceParts
from holdfast.observe.loading import PROTECTIONS, LoadingPod
from holdfast.render.names import LOADING_LABEL

_LOG = logging.getLogger(__name__)
MOST_WRITES = 200
"""Maximum pods written in one tick; later ticks write the rest."""
_CONCURRENCY = 8
_REMEMBERED_SECONDS = 24 * 3600.0  # no startup timeout is longer


class _Written(NamedTuple):
    """The last write to a pod, when it was made (seconds since the epoch), and whether it was refused."""

    marks: bool
    at: float
    refused: bool


class LoadingPods:
    """Marks pods that load, and takes the marks off. Its state may be lost: then a pod may be marked once more."""

    def __init__(self, api: ApiPort, startup_seconds: Callable[[LLMServiceSpec], float]) -> None:
        self._api = api
        self._startup_seconds = startup_seconds
        self._written: dict[str, _Written] = {}  # by uid of the pod

    async def write(self, parts: Sequence[ServiceParts], now: float) -> None:
        """Write every pod whose marks are wrong, at most `MOST_WRITES` of them.

        Raises NotLeading and ApiUnreachable, both of which end the writing. A refused write is logged and retried.
        """
        self._written = {uid: last for uid, last in self._written.items() if now - last.at < _REMEMBERED_SECONDS}
        due = [(part, pod, marks) for part in parts for pod, marks in self._due(part, now)]
        slots = asyncio.Semaphore(_CONCURRENCY)
        writing = [
            asyncio.create_task(self._write(slots, part.spec.key.namespace, pod, marks, now))
            for part, pod, marks in due[:MOST_WRITES]
        ]
        try:
            await asyncio.gather(*writing)
        finally:
            for task in writing:
                task.cancel()

    def _due(self, part: ServiceParts, now: float) -> Iterator[tuple[LoadingPod, bool]]:
        """Pods to write now, and whether they are to be marked.

        An accepted mark is followed by taking it off and by nothing else, whatever somebody else does to the label.
        """
        for pod in part.loading:
            loads = pod.since is not None and now - pod.since < self._startup_seconds(part.service.spec)
            last = self._written.get(pod.uid)
            if last is None:
                due = loads != pod.marked
            elif last.refused:
                due = loads != pod.marked and abs(now - last.at) >= WATCH_LAG_SECONDS
            else:
                due = last.marks and not loads
            if due:
                yield pod, loads

    async def _write(self, slots: asyncio.Semaphore, namespace: str, pod: LoadingPod, marks: bool, now: float) -> None:
        annotations = {name: value for name, value in PROTECTIONS.items() if name not in pod.others}
        labels = {LOADING_LABEL: "true"}
        given = (labels, annotations) if marks else ({}, {})
        async with slots:
            try:
                await mark_pod(self._api, namespace, pod.pod, pod.uid, *given)
                self._written[pod.uid] = _Written(marks, now, refused=False)
            except ApiError as error:
                if not error.namespace_ends:
                    _LOG.warning("%s/%s: protecting it while it loads failed: %s", namespace, pod.pod, error)
                self._written[pod.uid] = _Written(marks, now, refused=True)
