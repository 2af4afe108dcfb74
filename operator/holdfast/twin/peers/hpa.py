"""Kubernetes' HorizontalPodAutoscaler on waiting requests per replica, its default behavior.

Source: autoscaling/v2, kube-controller-manager; the metric is vllm:num_requests_waiting, as in production-stack's chart
(helm/templates/scaledobject-vllm.yaml, threshold 5) with the query mended to sum over pods.
"""

from __future__ import annotations

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.behavior import average_value
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import Sight


class Hpa(Peer):
    """Every 15 s ceil(waiting / target), nothing within 10 % of the target, down to the largest of five minutes."""

    name = "hpa"

    def __init__(self, waiting: float = 5.0) -> None:
        super().__init__()
        self._target = positive(self.name, "waiting", waiting)

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        return average_value(seen.waiting, self._target, seen.size)
