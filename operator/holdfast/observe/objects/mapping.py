"""Kubernetes objects -> domain values. Pure; the only module that knows the fields of these objects."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from holdfast.api.engine_flags import flag_name
from holdfast.api.llmservice import NO_RESOURCE
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import (
    UNREADY,
    ClusterProblem,
    NodeOffer,
    Placement,
    QueueLimit,
    Replica,
    ReplicaPhase,
    Workload,
)
from holdfast.domain.service import BatchingLimits
from holdfast.domain.taints import CLOSING, Taint
from holdfast.observe.objects.failure_words import MOST_WORDS, Remedy, end_of, explained, told, unplaced
from holdfast.observe.objects.sizers import sized_by
from holdfast.rendered.batching import Tuned
from holdfast.rendered.context import whole
from holdfast.rendered.declared import ADMISSION_FLAG
from holdfast.rendered.names import (
    ACCELERATOR_LABEL,
    ADMISSION_ANNOTATION,
    ADMISSION_CHANGED_ANNOTATION,
    BATCHING_ANNOTATION,
    CONTAINER,
    FRONT_END_LABEL,
    METRIC_REVISION_LABEL,
    RUST,
    SCHEDULER_FLAG,
)

# An engine that ended twice, the last time this soon, crashes while starting: waiting does not make it ready.
# The same holds for an engine that ended once and reported what is missing.
_CRASHES = 2
_SHORT_RUN_SECONDS = 600.0

_HIGHEST_OWN_EXIT = 128  # a larger code means a signal

# Waiting reasons that do not resolve by themselves.
_HOPELESS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)

# Taints that repel all our pods: an autoscaler is about to remove the node, or Kubernetes itself closed it (pressure,
# network, shutdown). Of these, pods tolerate at most not-ready, and only to keep running.
_LEAVING = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
_ILL = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_TOLERATED = "node.kubernetes.io/memory-pressure"  # by all pods that request something

ANY_NUMBER = 10_000
"""Replicas without an accelerator for which a node has room, as far as is known: only the scheduler counts CPUs."""

WAITS_FOR_VOLUMES = "its volumes or network are not ready"
"""How the detail of a replica begins whose volumes or network are not there yet."""

# Messages of an engine that cannot write to its cache volume.
_NOT_WRITABLE = re.compile(r"(Permission denied|Read-only file system): '?/cache\b")

_BY_DEPLOYMENT = "change the policy of the cluster, or what the message names"
_ASSIGNED = Remedy(
    "where the platform assigns user and group ids, start the operator with --platform-assigns-ids", _BY_DEPLOYMENT
)
_REFUSED = Remedy("change what the message names in the spec, or the policy of the cluster", _BY_DEPLOYMENT)
_WEBHOOK_AWAY = Remedy("mend the webhook that it names, or set its failurePolicy to Ignore")
_QUOTA = Remedy("raise the quota, or lower scaling.max")
_NEWEST = Remedy(
    "undo the last change of the spec, or see kubectl describe pod of the newest pods",
    "see kubectl describe pod of the newest pods, or undo the last change",
)
_WRITABLE = Remedy("make model.cache writable for the user of the pod", "make /cache writable for the user of the pod")

# What an admission that has a range of ids quotes; PodSecurity only forbids user 0.
_IDS_REFUSED = re.compile(r"\A(?!.*violates PodSecurity).*\b(runAsUser|runAsGroup|fsGroup)\b", re.DOTALL)

Object = Mapping[str, Any]


def epoch(text: str | None) -> float | None:
    """Return a time of the API server in seconds since the epoch; None if there is none."""
    return None if not text else datetime.datetime.fromisoformat(text).timestamp()


def is_replica(pod: Object) -> bool:
    """Whether a pod is a replica. A ReplicaSet must own it, because anybody can write our labels.

    A pod that has ended does not count: it remains as a record while a new pod replaces it (`observe.objects.ended`).
    """
    return is_of_replica_set(pod) and not has_ended(pod)


def is_of_replica_set(pod: Object) -> bool:
    """Whether a ReplicaSet controls the pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("kind") == "ReplicaSet" for owner in owners)


def has_ended(pod: Object) -> bool:
    """Whether none of its containers will run again."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def replica_from_pod(pod: Object, target: str = "") -> Replica:
    """Return a pod as a replica; `target` names somebody else's Deployment that made it."""
    meta, status = pod["metadata"], pod.get("status", {})
    labels = meta.get("labels", {})
    conditions = {item["type"]: item for item in status.get("conditions", ())}
    spec = pod.get("spec", {})
    phase, reason, detail = _phase(meta, status, conditions, spec)
    if phase is ReplicaPhase.STARTING and conditions.get("PodReadyToStartContainers", {}).get("status") == "False":
        detail = f"{WAITS_FOR_VOLUMES}; {_remedy(pod, 'see kubectl describe pod')}"
    elif phase is ReplicaPhase.STARTING and (probe := _awaited_probe(spec, status, target)):
        reason, detail = UNREADY, probe
    elif phase is ReplicaPhase.FAILING and _NOT_WRITABLE.search(detail):
        remedy = _remedy(pod, _WRITABLE.of(target))
        detail = f"{end_of(detail)}; {remedy}"
    elif phase is ReplicaPhase.FAILING and reason != Reason.NODE_LOST:
        reason, detail = explained(reason, detail, meta, target)
    elif phase is ReplicaPhase.UNSCHEDULABLE:
        reason, detail = unplaced(reason, detail, meta.get("namespace", "default"), _claims(spec), target)
    return Replica(
        name=meta["name"],
        accelerator=labels.get(ACCELERATOR_LABEL, ""),
        phase=phase,
        created_at=epoch(meta.get("creationTimestamp")) or 0.0,
        scheduled_at=_since(conditions, "PodScheduled"),
        ready_at=_since(conditions, "Ready"),
        reason=reason,
        detail=detail,
        revision=labels.get("pod-template-hash", ""),
        node=spec.get("nodeName", ""),
        unready_at=_since(conditions, "Ready", "False"),
    )


def _remedy(pod: Object, otherwise: str) -> str:
    """What to do about a volume that cannot be mounted or written; a hostPath needs the most care."""
    spec = pod.get("spec", {})
    folders = [volume["hostPath"]["path"] for volume in spec.get("volumes", ()) if volume.get("hostPath")]
    if not folders:
        return otherwise
    folder = f"{', '.join(folders)} must be a directory on node {spec.get('nodeName', '')} that"
    engines = [each for each in spec.get("containers", ()) if each.get("name") == CONTAINER]
    users = [(part.get("securityContext") or {}).get("runAsUser") for part in (*engines, spec)]
    user = next((user for user in users if user is not None), None)
    if user is None:
        return f"{folder} the user of the image can write to; create it there (mkdir -p, chown)"
    return f"{folder} uid {user} can write to; create it there (mkdir -p, chown {user})"


def _claims(spec: Object) -> list[str]:
    """The names of the PersistentVolumeClaims of a pod."""
    claims = (volume.get("persistentVolumeClaim") or {} for volume in spec.get("volumes") or ())
    return [str(claim["claimName"]) for claim in claims if claim.get("claimName")]


def _awaited_probe(spec: Object, status: Object, target: str) -> str:
    """Which probe of a running container has not passed; empty without a running one, or where it has none.

    Only the probe of a target is somebody's to correct: large weights take long to load, too.
    """
    containers = {each.get("name"): each for each in spec.get("containers") or ()}
    for each in status.get("containerStatuses") or ():
        if each.get("ready") or not (each.get("state") or {}).get("running"):
            continue
        declared = containers.get(each.get("name"), {})
        kind = "startup" if declared.get("startupProbe") and not each.get("started") else "readiness"
        if (probe := declared.get(f"{kind}Probe")) is not None:
            asked = probe.get("httpGet") or {}
            what = f" (GET {asked.get('path', '/')} on port {asked.get('port')})" if asked else ""
            remedy = "correct the probe if the engine serves" if target else "see the log of the pod"
            return f"its {kind} probe{what} has not passed; {remedy}"
    return ""


def _phase(
    meta: Object, status: Object, conditions: Mapping[str, Object], spec: Object
) -> tuple[ReplicaPhase, str, str]:
    """Return phase, reason and message; pods with readiness gates wait for other controllers."""
    if meta.get("deletionTimestamp"):
        return ReplicaPhase.DRAINING, "", ""
    if is_true(conditions, "Ready"):
        return ReplicaPhase.READY, "", ""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        words = str(scheduled.get("message", ""))
        phase = ReplicaPhase.UNSCHEDULABLE if told(words) is None else ReplicaPhase.FAILING
        return phase, str(scheduled.get("reason", "")), words
    unready = conditions.get("Ready", {}).get("status") == "False" and not spec.get("readinessGates")
    if unready and is_true(conditions, "ContainersReady"):
        # Only the control plane sets this on a pod whose kubelet last reported the opposite.
        node = spec.get("nodeName", "")
        return (
            ReplicaPhase.FAILING,
            Reason.NODE_LOST.value,
            f"node {node} does not respond; see kubectl describe node {node}",
        )
    failure = next(filter(None, (_failure(container, conditions) for container in _containers(status))), None)
    if failure is None:
        return ReplicaPhase.STARTING, "", ""
    return ReplicaPhase.FAILING, *failure


def _containers(status: Object) -> Iterator[Object]:
    """All containers but the init containers that are done."""
    for each in status.get("initContainerStatuses", ()):
        if (each.get("state", {}).get("terminated") or {}).get("exitCode") != 0:
            yield each
    yield from status.get("containerStatuses", ())


def _failure(container: Object, conditions: Mapping[str, Object]) -> tuple[str, str] | None:
    """Return reason and last message of a container that will not start.

    Between two back-offs of a crash loop the container runs for a while: it is still the same crash loop. A single
    crash is tolerated, because the next start may succeed, unless its message says what is missing.
    """
    waiting = container.get("state", {}).get("waiting", {})
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    if waiting.get("reason") in _HOPELESS:
        return waiting["reason"], last_words(ended, waiting)
    crashed, is_engine = bool(ended.get("exitCode")), container.get("name") == CONTAINER
    in_vain = was_ready(conditions, ended) is False or (crashed and _was_short(ended))
    if not in_vain or not (crashed or is_engine):  # other containers may end as they like
        return None
    words = last_words(ended, waiting)
    return ("CrashLoopBackOff", words) if container.get("restartCount", 0) >= _CRASHES or told(words) else None


def was_ready(conditions: Mapping[str, Object], ended: Object) -> bool | None:
    """Whether the pod was ready after an ended run of a container began; None if its status does not say."""
    started, unready = epoch(ended.get("startedAt")), _since(conditions, "Ready", "False")
    return None if started is None or unready is None else unready > started


def _was_short(ended: Object) -> bool:
    started, finished = epoch(ended.get("startedAt")), epoch(ended.get("finishedAt"))
    return started is not None and finished is not None and finished - started < _SHORT_RUN_SECONDS


def last_words(ended: Object, waiting: Object) -> str:
    """Last message of the engine (terminationMessagePolicy), else that of Kubernetes.

    A killed engine, such as after OOM, does not report that: then the exit is added to the message.
    """
    said = str(ended.get("message") or waiting.get("message") or ended.get("reason") or "").strip()
    if "exitCode" not in ended or (ended.get("message") and ended["exitCode"] <= _HIGHEST_OWN_EXIT):
        return said
    return f"{said} (last exit: {ended.get('reason', 'Error')}, code {ended['exitCode']})".strip()


def is_true(conditions: Mapping[str, Object], name: str) -> bool:
    return bool(conditions.get(name, {}).get("status") == "True")


def _since(conditions: Mapping[str, Object], name: str, status: str = "True") -> float | None:
    condition = conditions.get(name, {})
    return epoch(condition.get("lastTransitionTime")) if condition.get("status") == status else None


def placement_from_deployment(deployment: Object) -> Placement:
    """Return a Deployment as a placement."""
    meta, spec, status = deployment["metadata"], deployment.get("spec", {}), deployment.get("status", {})
    wanted = int(spec.get("replicas", 1))
    observed = int(status.get("observedGeneration", 0)) >= int(meta.get("generation", 0))
    tuned = Tuned.from_json(meta.get("annotations", {}).get(BATCHING_ANNOTATION, ""))
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    updated, total = int(status.get("updatedReplicas", 0)), int(status.get("replicas", 0))
    return Placement(
        accelerator=meta.get("labels", {}).get(ACCELERATOR_LABEL, ""),
        replicas=wanted,
        observed=observed,
        rolling_out=observed and total > updated,
        paused=bool(spec.get("paused")),
        sized_by=sized_by(meta),
        workload=Workload(meta["name"], deployment.get("kind") or "Deployment"),
        revision=labels.get(METRIC_REVISION_LABEL, ""),
        batching=tuned.limits if tuned else BatchingLimits(),
        batching_before=tuned.before if tuned else None,
        queue_limit=_queue_limit(meta, spec.get("template") or {}),
    )


def _queue_limit(meta: Object, template: Object) -> QueueLimit | None:
    """Return the limit that was rendered; None where the plugin or somebody else's arguments bound the queue.

    The Rust front end knows no such limit.
    """
    pod = template.get("spec") or {}
    if ((template.get("metadata") or {}).get("labels") or {}).get(FRONT_END_LABEL) == RUST:
        return None
    args = next((each.get("args") for each in pod.get("containers") or () if each.get("name") == CONTAINER), None) or ()
    annotations = meta.get("annotations", {})
    tokens, changed_at = map(whole, map(annotations.get, (ADMISSION_ANNOTATION, ADMISSION_CHANGED_ANNOTATION)))
    rendered = [] if tokens is None else [f"{ADMISSION_FLAG}={tokens}"]
    bounds = [each for each in args if flag_name(each) in (ADMISSION_FLAG, SCHEDULER_FLAG)]
    return QueueLimit(tokens, changed_at) if args and bounds == rendered else None


def version_of(body: Object) -> int:
    """Return the resourceVersion of an object or an answer, a number that grows (KEP-5504); 0 without one."""
    version = str((body.get("metadata") or {}).get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0


def problems_from_deployment(deployment: Object, target: str = "") -> tuple[ClusterProblem, ...]:
    """Return why a Deployment cannot create its pods (quota, admission), or why its rollout is stuck.

    `target` is its name where it is somebody else's.
    """
    conditions = deployment.get("status", {}).get("conditions", ())
    found = ((_deployment_reason(condition), condition.get("message", "")) for condition in conditions)
    name = deployment["metadata"]["name"]
    return tuple(
        ClusterProblem(reason, f"{name}: {_remedied(reason, message, target)}") for reason, message in found if reason
    )


def away_since(deployment: Object) -> float | None:
    """Return since when pods are missing, if none is available; None while one is.

    Kubernetes says since when there are fewer than `maxUnavailable` allows: with several pods, since the first failed.
    """
    status = deployment.get("status", {})
    if int(status.get("availableReplicas", 0)):
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    created = epoch(deployment["metadata"].get("creationTimestamp")) or 0.0
    return _since(conditions, "Available", "False") or created


def _remedied(reason: Reason, words: str, target: str) -> str:
    """Kubernetes' words, cut so that the remedy stays readable: OpenShift lists the refusal of every constraint."""
    refused = _ASSIGNED if _IDS_REFUSED.search(words) else _REFUSED
    refused = _WEBHOOK_AWAY if "failed calling webhook" in words else refused
    remedies = {Reason.PODS_FORBIDDEN: refused, Reason.QUOTA_EXCEEDED: _QUOTA}
    cut = words if len(words) <= MOST_WORDS else words[: MOST_WORDS - 1] + "…"
    return f"{cut}; {remedies.get(reason, _NEWEST).of(target)}"


def _deployment_reason(condition: Object) -> Reason | None:
    """
    | condition             | says                    | reason                   |
    | ReplicaFailure, True  | exceeded quota          | QuotaExceeded            |
    | ReplicaFailure, True  | any other refusal       | PodsForbidden            |
    | Progressing, False    | deadline exceeded       | ProgressDeadlineExceeded |
    """
    kind, status = condition["type"], condition["status"]
    if (kind, status) == ("ReplicaFailure", "True"):
        return Reason.QUOTA_EXCEEDED if "exceeded quota" in condition.get("message", "") else Reason.PODS_FORBIDDEN
    if (kind, status, condition.get("reason")) == ("Progressing", "False", "ProgressDeadlineExceeded"):
        return Reason.PROGRESS_DEADLINE_EXCEEDED
    return None


def node_offer_from_node(node: Object) -> NodeOffer | None:
    """Return what a node offers; None for a node that takes no pods now."""
    if node.get("spec", {}).get("unschedulable") or not _node_ready(node) or any(map(_is_closed_by, _taints(node))):
        return None
    gpus = extended_resources(node.get("status", {}).get("allocatable", {}))
    allocatable = tuple(sorted({**gpus, NO_RESOURCE: ANY_NUMBER}.items()))
    labels = tuple(sorted(node["metadata"].get("labels", {}).items()))
    taints = tuple(
        Taint(str(taint.get("key", "")), str(taint.get("value", "")), taint["effect"])
        for taint in _taints(node)
        if taint.get("effect") in CLOSING and taint.get("key") != _TOLERATED
    )
    return NodeOffer(node["metadata"]["name"], labels, allocatable, taints=taints)


def is_closing(node: Object) -> bool:
    """Whether pods are about to leave the node: it is cordoned, or an autoscaler is about to remove it."""
    leaves = any(taint.get("key") in _LEAVING and taint.get("effect") != "PreferNoSchedule" for taint in _taints(node))
    return leaves or bool(node.get("spec", {}).get("unschedulable"))


def on_nodes(replicas: Iterable[Replica], closing: Set[str]) -> Iterator[Replica]:
    """Yield the replicas, those on `closing` nodes marked so."""
    for replica in replicas:
        yield replace(replica, closing=True) if not closing.isdisjoint(replica.nodes) else replica


def _taints(node: Object) -> Sequence[Object]:
    return node.get("spec", {}).get("taints") or ()


def _is_closed_by(taint: Object) -> bool:
    """Whether a taint means that the node is unhealthy or about to be removed; other taints depend on tolerations."""
    key = str(taint.get("key", ""))
    closes = key in _LEAVING or (key.startswith(_ILL) and key != _TOLERATED)
    return closes and taint.get("effect") != "PreferNoSchedule"


def _node_ready(node: Object) -> bool:
    return is_true({item["type"]: item for item in node.get("status", {}).get("conditions", ())}, "Ready")


def requested_gpus(pod: Object) -> tuple[tuple[str, int], ...]:
    """Return the extended resources a pod of ours holds on its node."""
    totals: Counter[str] = Counter()
    for container in pod.get("spec", {}).get("containers", ()):
        totals.update(extended_resources(container.get("resources", {}).get("limits", {})))
    return tuple(sorted(totals.items()))


def extended_resources(amounts: Object) -> dict[str, int]:
    """Return the extended resources among amounts, which are whole numbers; their names have a domain."""
    return {name: int(amount) for name, amount in amounts.items() if "/" in name and str(amount).isdecimal()}


def with_usage(nodes: Iterable[NodeOffer], used: Mapping[str, Mapping[str, int]]) -> tuple[NodeOffer, ...]:
    """Return the nodes with the GPUs that our own pods use.

    GPUs of other pods are not counted: that would need a watch of every pod in the cluster. If they matter, the
    scheduler reports it (Unschedulable).
    """
    return tuple(replace(node, used=tuple(sorted(used.get(node.name, {}).items()))) for node in nodes)
