"""Protects pods while they load: a load that is cut short begins again elsewhere, and costs minutes of a GPU.

The marks are written to the pod, not to its template, so that no rollout follows. A pod is marked once, and the mark is
taken off once: when it serves, when it fails, or when its startup timeout has passed. So a pod that never comes up
does not keep its node for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.apply import WATCH_LAG_SECONDS
from holdfast.act.pods import apply_metadata
from holdfast.api.llmservice import LLMServiceSpec
from holdfast.control.bounded_work import do_each
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.loading import LoadingPod
from holdfast.rendered.names import LOADING_LABEL, PROTECTIONS

_LOG = logging.getLogger(__name__)
MARKS = "holdfast-loading"
"""Field manager of the marks."""
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
        """Write every pod whose marks are wrong, at most `MOST_IN_A_TICK` of them.

        Raises NotLeading and ApiUnreachable, and both end the writing. A refused write is logged and retried.
        """
        self._written = {uid: last for uid, last in self._written.items() if now - last.at < _REMEMBERED_SECONDS}
        due = [(part.spec.key.namespace, *pod_marks) for part in parts for pod_marks in self._due(part, now)]
        await do_each(due, lambda each: self._write(*each, now))

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

    async def _write(self, namespace: str, pod: LoadingPod, marks: bool, now: float) -> None:
        annotations = {name: value for name, value in PROTECTIONS.items() if name not in pod.others}
        given = {"labels": {LOADING_LABEL: "true"}, "annotations": annotations}
        metadata = given if marks else {"labels": {}, "annotations": {}}
        try:
            await apply_metadata(self._api, namespace, pod.pod, pod.uid, MARKS, metadata)
            self._written[pod.uid] = _Written(marks, now, refused=False)
        except ApiError as error:
            if not error.namespace_ends:
                _LOG.warning("%s/%s: protecting it while it loads failed: %s", namespace, pod.pod, error)
            self._written[pod.uid] = _Written(marks, now, refused=True)
