"""Says when a replica cannot start because its claim is for one node, or one pod, and other replicas use it.

Kubernetes reports it in Events only (Multi-Attach, FailedAttachVolume). A claim is read, at most once a minute, where a
replica waits for its volumes: some at a time, and as many as a tick has time for. A claim that was not read is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.act.api import ApiError, ApiPort
from holdfast.act.resources import claim_path
from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.control.bounded_work import do_each
from holdfast.domain.cluster import ClusterProblem, Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.mapping import WAITS_FOR_VOLUMES

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 20.0  # most volumes are there by then
_AGAIN_SECONDS = 60.0
_MOST_SECONDS = 2.0  # of one tick; the next ticks read the rest
_ONE_POD, _ONE_NODE = "ReadWriteOncePod", "ReadWriteOnce"


class _Read(NamedTuple):
    """Access modes of a claim, empty where they are unknown, and when they were read."""

    modes: tuple[str, ...] = ()
    at: float = -math.inf


_Claim = tuple[str, str]  # namespace and name
_UNREAD = _Read()


class Claims:
    """Reads the claims of waiting replicas, and keeps what is wrong with them until the next tick."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._read: dict[_Claim, _Read] = {}
        self._problems: dict[ServiceKey, ClusterProblem] = {}

    def problems(self, part: ServiceParts) -> tuple[ClusterProblem, ...]:
        """Return what the last look found about a service."""
        found = self._problems.get(part.spec.key)
        return () if found is None else (found,)

    async def look(self, parts: Sequence[ServiceParts], now: float) -> None:
        """Look at the claims of all services with a waiting replica. Raises ApiUnreachable and NotLeading."""
        waiting = [each for part in parts if (each := _waiting(part, now))]
        wanted = {(part.spec.key.namespace, claim) for part, _, claims in waiting for claim in claims}
        self._read = {claim: self._read.get(claim, _UNREAD) for claim in sorted(wanted)}
        due = [claim for claim, read in self._read.items() if abs(now - read.at) >= _AGAIN_SECONDS]
        due.sort(key=lambda claim: self._read[claim].at)
        with contextlib.suppress(TimeoutError):  # what is not read again keeps its modes: they cannot be edited
            async with asyncio.timeout(_MOST_SECONDS):
                await do_each(due, lambda claim: self._read_one(claim, now))
        problems = ((part.spec.key, self._problem(part, replica, claims)) for part, replica, claims in waiting)
        self._problems = {key: problem for key, problem in problems if problem}

    async def _read_one(self, claim: _Claim, now: float) -> None:
        """Read a claim; its modes are unknown where it may not be read, or is not there, which the scheduler says."""
        modes: tuple[str, ...] = ()
        try:
            body = await self._api.request("GET", claim_path(*claim))
            modes = tuple((body.get("spec") or {}).get("accessModes") or ())
        except ApiError as error:
            _LOG.debug("%s/%s: reading the claim failed: %s", *claim, error)
        self._read[claim] = _Read(modes, now)

    def _problem(self, part: ServiceParts, waiting: Replica, claims: Sequence[str]) -> ClusterProblem | None:
        nodes = {node for replica in part.replicas for node in replica.nodes}
        for claim in claims:
            read = self._read.get((part.spec.key.namespace, claim), _UNREAD)
            mode = next((each for each in (_ONE_POD, _ONE_NODE) if read.modes == (each,)), "")
            if mode and (len(nodes) > 1 or mode == _ONE_POD):
                spread = f"{counted(len(part.replicas), 'replica')} on {counted(len(nodes), 'node')}"
                where = spread if nodes else "several replicas"
                message = (
                    f"claim {claim} is {mode}, but {where} use it, so {waiting.name} cannot start; "
                    "use a ReadWriteMany claim, or emptyDir for model.cache"
                )
                return ClusterProblem(Reason.VOLUME_NOT_SHARED, message)
        return None


def _waiting(part: ServiceParts, now: float) -> tuple[ServiceParts, Replica, list[str]] | None:
    """Return a service with its first replica that waits for volumes, and the claims of that replica."""
    replica = next((replica for replica in part.replicas if _waits(replica, now)), None)
    return None if replica is None else (part, replica, _claims(part, replica.accelerator))


def _waits(replica: Replica, now: float) -> bool:
    """Whether a replica waits for its volumes for longer than usual, or for a claim that another pod has."""
    if replica.phase is ReplicaPhase.UNSCHEDULABLE:
        return _ONE_POD in replica.detail
    since = replica.created_at if replica.scheduled_at is None else replica.scheduled_at
    waits = replica.phase is ReplicaPhase.STARTING and replica.detail.startswith(WAITS_FOR_VOLUMES)
    return waits and now - since >= _PATIENCE_SECONDS


def _claims(part: ServiceParts, accelerator: str) -> list[str]:
    """Return the names of all claims that pods on an accelerator mount, including claims from templates."""
    templates = (
        item.rendered.template_json
        for item in part.deployed
        if item.placement.accelerator == accelerator and item.rendered is not None
    )
    volumes = [volume for text in templates for volume in json.loads(text)["spec"].get("volumes") or ()]
    sources = [source for volume in volumes if (source := volume.get("persistentVolumeClaim"))]
    return sorted({str(source.get("claimName", "")) for source in sources})
