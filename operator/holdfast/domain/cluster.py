"""State of one service, and of the nodes, in the API server."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import NamedTuple

from holdfast.api.reasons import Reason
from holdfast.domain.service import BatchingLimits
from holdfast.domain.taints import Taint
from holdfast.domain.value import value

SCHEDULING_GATED = "SchedulingGated"
"""Reason of a pod that a scheduling gate holds, such as that of a queue: it is not scheduled yet."""

UNREADY = "ContainersNotReady"
"""Kubernetes' reason of a replica whose container runs and whose probe has not passed."""

IMAGE_WORDS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
"""Reasons of a container that waits for its image."""


class ReplicaPhase(enum.Enum):
    """The life of one replica, as capacity sees it."""

    UNSCHEDULABLE = "unschedulable"  # the scheduler found no node
    STARTING = "starting"  # placed, not ready: capacity to come
    READY = "ready"
    FAILING = "failing"  # crash loop, image or config error: will not become capacity by waiting
    DRAINING = "draining"  # terminating: no capacity


@value
class Replica:
    """The pod that answers the clients; times are seconds since the epoch.

    `followers` are the nodes of the other pods of a replica that is a group, empty for a pod without one. `number` is
    that of a group: when there are to be fewer, the highest goes.
    """

    name: str
    accelerator: str
    phase: ReplicaPhase
    created_at: float
    scheduled_at: float | None = None
    ready_at: float | None = None
    reason: str = ""  # reason given by Kubernetes, such as ImagePullBackOff
    detail: str = ""
    revision: str = ""  # pod-template-hash
    node: str = ""
    unready_at: float | None = None  # since when it is not Ready, as reported by its node; of an ended pod: its end
    closing: bool = False  # a node of it is cordoned, or an autoscaler is about to remove that
    followers: tuple[str, ...] = ()
    number: int = 0

    @property
    def can_be_chosen(self) -> bool:
        """Whether it can be the one that goes when the size falls; of groups the one with the highest number goes."""
        return not self.followers

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each of its pods that has one."""
        return tuple(filter(None, (self.node, *self.followers)))

    @property
    def words(self) -> str:
        """Reason and detail as one text."""
        return ": ".join(filter(None, (self.reason, self.detail)))

    @property
    def failure(self) -> Reason:
        """Our reason for what Kubernetes says of a replica that fails."""
        if self.reason in IMAGE_WORDS:
            return Reason.IMAGE_PULL_FAILING
        return next((reason for reason in Reason if reason.value == self.reason), Reason.ENGINE_FAILING)

    @property
    def placed_at(self) -> float:
        """When it got a node."""
        return self.created_at if self.scheduled_at is None else self.scheduled_at

    @property
    def ended_at(self) -> float:
        """When an ended pod ended."""
        return self.unready_at or 0.0


MOST_ENDED = 10
"""Most ended pods of one accelerator in a snapshot, the newest ones; more than these may not end within 10 minutes."""


@value
class QueueLimit:
    """Prompt tokens that may be queued in an engine, None for any number; when a measurement changed it (epoch)."""

    tokens: int | None
    changed_at: int | None = None


class Workload(NamedTuple):
    """The object that Kubernetes makes the pods of a placement from, in the namespace of the service."""

    name: str = ""
    kind: str = "Deployment"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@value
class Placement:
    """One workload of a service: one accelerator."""

    accelerator: str
    replicas: int  # spec.replicas
    observed: bool = True  # status.observedGeneration has caught up
    rolling_out: bool = False  # replicas of more than one revision, or fewer updated than wanted
    workload: Workload = Workload()
    revision: str = ""  # of the engine configuration; a label of the pods' series
    batching: BatchingLimits = field(default_factory=BatchingLimits)  # override those of the spec
    batching_before: BatchingLimits | None = None  # what these replace, while they are on trial
    queue_limit: QueueLimit | None = None  # None where the plugin or the user's arguments bound the queue
    paused: bool = False  # by a person: a rollout waits until it is resumed
    sized_by: str = ""  # the field manager that set `replicas`, if not Holdfast


@value
class Adoption:
    """A workload of somebody else that a service sizes as it is.

    `selector` finds its pods. `autoscaler` names what else sizes it, empty without any; `is_owned`: that made it.
    `priced` are the pods whose deletion cost somebody else wrote.
    """

    workload: Workload
    selector: str
    autoscaler: str = ""
    priced: frozenset[str] = frozenset()
    is_owned: bool = False


def rollout_surge(replicas: int, free_replicas: int) -> int:
    """Return how many further replicas may run during a rollout: a quarter, as Kubernetes does, if GPUs are free."""
    return max(0, min(-(-replicas // 4), free_replicas))


def grown_surge(surge: int, replicas: int, free_replicas: int) -> int:
    """Return the surge of a rollout under way: it grows with the size, but not from 0, where GPUs were short."""
    return max(surge, rollout_surge(replicas, surge + free_replicas)) if surge else 0


@value
class NodeOffer:
    """GPUs of each resource that a node offers to new replicas, its labels and its taints."""

    name: str
    labels: tuple[tuple[str, str], ...]
    allocatable: tuple[tuple[str, int], ...]
    used: tuple[tuple[str, int], ...] = ()
    taints: tuple[Taint, ...] = ()


@value
class GpuCap:
    """At most `gpus` of a resource for one namespace, by the ResourceQuota or share that `name` names.

    `used` are held there already, as a ResourceQuota counts them; None where only services count.
    """

    namespace: str
    resource: str
    gpus: int
    name: str
    used: int | None = None

    @property
    def left(self) -> int:
        """GPUs that are not in use."""
        return self.gpus - (self.used or 0)


@value
class ClusterProblem:
    """A problem that only the operator can see (secret missing, name taken, ...): a Reason and a message."""

    reason: str
    message: str
