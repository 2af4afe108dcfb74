"""When a router that takes no requests is a problem."""

from __future__ import annotations

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ClusterProblem, ReplicaPhase
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.rendered.names import ROUTER_LABEL

READY_SECONDS = 60.0
"""A router needs less once a replica is ready: some seconds to find the replica, or to pull the operator's image."""


def no_image(part: ServiceParts, *, has_router: bool) -> tuple[ClusterProblem, ...]:
    """The problem of a router that is declared and cannot run."""
    if part.service.spec.router is None or has_router:
        return ()
    told = "router is set, and the operator does not know its own image, which runs it; set --activator-image"
    return (ClusterProblem(Reason.ROUTER_UNAVAILABLE, told),)


def router_problem(part: ServiceParts, now: float) -> tuple[ClusterProblem, ...]:
    """The problem, if replicas have been ready and pods of the router missing for a minute, and none of these is ready.

    Clients are led to the replicas meanwhile.
    """
    if part.service.spec.router is None:
        return ()
    ready = [replica.ready_at for replica in part.replicas if replica.phase is ReplicaPhase.READY]
    away = part.router.away_since if part.router else None
    since = max(min((at for at in ready if at is not None), default=now), now if away is None else away)
    if now - since < READY_SECONDS:
        return ()
    key = part.spec.key
    told = (
        "no pod of the router is ready, so clients reach the replicas without it, and by connection; see "
        f"kubectl -n {key.namespace} describe pods -l {ROUTER_LABEL}={key.name}"
    )
    return (ClusterProblem(Reason.ROUTER_UNAVAILABLE, told),)
