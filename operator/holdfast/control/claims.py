"""Says when a replica cannot start because its claim is for one node, or one pod, and other replicas use it.

Kubernetes reports it in Events only (Multi-Attach, FailedAttachVolume). A claim is read, at most once a minute, where a
replica waits for its volumes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.resources import claim_path
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ClusterProblem, Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.observe.cluster import ServiceParts
from holdfast.observe.mapping import WAITS_FOR_VOLUMES

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 20.0  # most volumes are there by then
_AGAIN_SECONDS = 60.0
_ONE_POD, _ONE_NODE = "ReadWriteOncePod", "ReadWriteOnce"


class _Read(NamedTuple):
    """Access modes of a claim, empty where they are unknown, and when they were read."""

    modes: tuple[str, ...]
    at: float


class Claims:
    """Reads the claims of waiting replicas, and keeps what is wrong with them until the next tick."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._read: dict[tuple[str, str], _Read] = {}
        self._problems: dict[ServiceKey, ClusterProblem] = {}

    def problems(self, part: ServiceParts) -> tuple[ClusterProblem, ...]:
        """Return what the last look found about a service."""
        found = self._problems.get(part.spec.key)
        return () if found is None else (found,)

    async def look(self, parts: Sequence[ServiceParts], now: float) -> None:
        """Look at the claims of all services with a waiting replica. Raises ApiUnreachable and NotLeading."""
        self._read = {claim: read for claim, read in self._read.items() if abs(now - read.at) < _AGAIN_SECONDS}
        found = {}
        for part in parts:
            waiting = next((replica for replica in part.replicas if _waits(replica, now)), None)
            if waiting is not None and (problem := await self._problem(part, waiting, now)):
                found[part.spec.key] = problem
        self._problems = found

    async def _problem(self, part: ServiceParts, waiting: Replica, now: float) -> ClusterProblem | None:
        nodes = {replica.node for replica in part.replicas if replica.node}
        for claim in sorted(set(_claims(part, waiting.accelerator))):
            modes = await self._modes(part.spec.key.namespace, claim, now)
            mode = next((each for each in (_ONE_POD, _ONE_NODE) if modes == (each,)), "")
            if mode and (len(nodes) > 1 or mode == _ONE_POD):
                where = f"{len(part.replicas)} replicas on {len(nodes)} nodes" if nodes else "several replicas"
                message = (
                    f"claim {claim} is {mode}, but {where} use it, so {waiting.name} cannot start; "
                    "use a ReadWriteMany claim, or emptyDir for model.cache"
                )
                return ClusterProblem(Reason.VOLUME_NOT_SHARED, message)
        return None

    async def _modes(self, namespace: str, claim: str, now: float) -> tuple[str, ...]:
        """Access modes of a claim; unknown where it cannot be read, or is not there, which the scheduler says."""
        known = self._read.get((namespace, claim))
        if known is not None:
            return known.modes
        modes: tuple[str, ...] = ()
        try:
            body = await self._api.request("GET", claim_path(namespace, claim))
            modes = tuple((body.get("spec") or {}).get("accessModes") or ())
        except ApiError as error:
            _LOG.debug("%s/%s: reading the claim failed: %s", namespace, claim, error)
        self._read[namespace, claim] = _Read(modes, now)
        return modes


def _waits(replica: Replica, now: float) -> bool:
    """Whether a replica waits for its volumes for longer than usual, or for a claim that another pod has."""
    if replica.phase is ReplicaPhase.UNSCHEDULABLE:
        return _ONE_POD in replica.detail
    since = replica.created_at if replica.scheduled_at is None else replica.scheduled_at
    waits = replica.phase is ReplicaPhase.STARTING and replica.detail.startswith(WAITS_FOR_VOLUMES)
    return waits and now - since >= _PATIENCE_SECONDS


def _claims(part: ServiceParts, accelerator: str) -> Iterator[str]:
    """Return the names of all claims that pods on an accelerator mount, including claims from templates."""
    for item in part.deployed:
        if item.placement.accelerator == accelerator and item.rendered is not None:
            for volume in json.loads(item.rendered.template_json)["spec"].get("volumes") or ():
                if source := volume.get("persistentVolumeClaim"):
                    yield str(source.get("claimName", ""))
