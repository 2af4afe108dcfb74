"""Writes sizes, remembers the last one of each Deployment, and tells which of them somebody else changed since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.act import scale
from holdfast.act.api import ApiError, ApiPort, ApiUnreachable
from holdfast.domain.cluster import Workload
from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.observe.objects.mapping import version_of

_LOST = 500  # and more: an answer that says nothing of the write


class _Written(NamedTuple):
    size: int
    version: int  # the resourceVersion that the write made


class SizeWrites:
    """Sizes by service and Deployment; a write that was refused is none."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._written: dict[ServiceKey, dict[Workload, _Written]] = {}

    async def write(
        self, key: ServiceKey, workload: Workload, target: PlacementTarget, remove_first: Sequence[str]
    ) -> None:
        """Set a size as `scale` does, and raise what it raises."""
        known = self._written.setdefault(key, {})
        try:
            answer = await scale.scale(
                self._api,
                key.namespace,
                workload,
                observed=target.observed_replicas,
                wanted=target.replicas,
                remove_first=remove_first,
            )
        except (ApiError, ApiUnreachable) as error:
            if isinstance(error, ApiUnreachable) or error.status >= _LOST:
                known.pop(workload, None)  # nobody knows whether it was written: the size to come may be ours
            raise
        if answer is not None:
            known[workload] = _Written(target.replicas, version_of(answer))

    def set_back(self, part: ServiceParts) -> tuple[str, ...]:
        """Return the accelerators whose size somebody else changed since it was written; each once a write.

        A Deployment that is gone may come back with any size.
        """
        shown = {item.placement.workload: item for item in part.deployed}
        known = self._written.pop(part.spec.key, {})
        kept = {each: write for each, write in known.items() if each in shown and not _is_changed(shown[each], write)}
        if kept:
            self._written[part.spec.key] = kept
        return tuple(shown[each].placement.accelerator for each in known if each in shown and each not in kept)

    def forget(self, keys: Iterable[ServiceKey]) -> None:
        """Drop deleted services."""
        for key in keys:
            self._written.pop(key, None)


def _is_changed(shown: ObservedDeployment, written: _Written) -> bool:
    """Whether this is the Deployment as it was after the write, and has another size."""
    return bool(written.version) and shown.version >= written.version and shown.placement.replicas != written.size
