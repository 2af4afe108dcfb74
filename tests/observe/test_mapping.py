"""What the API server says of pods, Deployments and nodes, as capacity sees it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import NodeOffer, QueueLimit, ReplicaPhase
from holdfast.domain.taints import Taint
from holdfast.observe.objects import mapping

CREATED, SCHEDULED, READY = "2026-11-21T04:00:00Z", "2026-11-21T04:00:05Z", "2026-11-21T04:02:00Z"
CREATED_AT = 1795233600.0


def pod(**status: Any) -> dict[str, Any]:
    """A placed pod that is starting, unless its status says otherwise."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": SCHEDULED}]
    return {
        "metadata": {
            "name": "chat-h100-6d5f-x2x1",
            "namespace": "prod",
            "creationTimestamp": CREATED,
            "labels": {
                "holdfast.dev/service": "chat",
                "holdfast.dev/accelerator": "h100",
                "pod-template-hash": "6d5f",
            },
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-h100-6d5f", "uid": "rs", "controller": True}],
        },
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {"phase": "Pending", "conditions": conditions} | status,
    }


def condition(kind: str, status: str, reason: str = "", message: str = "", at: str = READY) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "vllm", "state": {"waiting": {"reason": reason, "message": message}}} | more


def ended(exit_code: int, message: str = "", finished: str = "2026-11-21T04:01:00Z", reason: str = "Error") -> Any:
    said = {"message": message} if message else {}
    return {
        "terminated": {"exitCode": exit_code, "reason": reason, "startedAt": CREATED, "finishedAt": finished} | said
    }


def test_a_placed_pod_is_starting() -> None:
    replica = mapping.replica_from_pod(pod())
    assert replica.phase is ReplicaPhase.STARTING
    assert (replica.name, replica.accelerator, replica.revision, replica.node) == (
        "chat-h100-6d5f-x2x1",
        "h100",
        "6d5f",
        "gpu-1",
    )
    assert (replica.created_at, replica.scheduled_at, replica.ready_at) == (CREATED_AT, CREATED_AT + 5.0, None)


def test_a_pod_is_ready_since_the_condition_says_so() -> None:
    replica = mapping.replica_from_pod(pod(conditions=[condition("Ready", "True")]))
    assert (replica.phase, replica.ready_at) == (ReplicaPhase.READY, CREATED_AT + 120.0)


def test_a_pod_whose_node_fell_silent_is_no_capacity_to_come() -> None:
    marked = [condition("PodScheduled", "True"), condition("ContainersReady", "True"), condition("Ready", "False")]
    lost = mapping.replica_from_pod(pod(conditions=marked))
    assert (lost.phase, lost.reason) == (ReplicaPhase.FAILING, "NodeLost")
    unready = [condition("PodScheduled", "True"), condition("ContainersReady", "False"), condition("Ready", "False")]
    assert mapping.replica_from_pod(pod(conditions=unready)).phase is ReplicaPhase.STARTING
    gated = pod(conditions=marked)
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/in-load-balancer"}]
    assert mapping.replica_from_pod(gated).phase is ReplicaPhase.STARTING


def test_a_pod_that_is_not_ready_any_more_has_no_ready_time_but_one_since_when_it_is_not() -> None:
    replica = mapping.replica_from_pod(pod(conditions=[condition("Ready", "False")]))
    assert (replica.ready_at, replica.unready_at) == (None, CREATED_AT + 120.0)
    assert mapping.replica_from_pod(pod(conditions=[condition("Ready", "True")])).unready_at is None


def test_a_pod_that_is_being_deleted_is_draining_though_it_is_ready() -> None:
    going = pod(conditions=[condition("Ready", "True")])
    going["metadata"]["deletionTimestamp"] = READY
    assert mapping.replica_from_pod(going).phase is ReplicaPhase.DRAINING


ADD_NODE = "; free a GPU, add a node, or list another accelerator"


def test_an_unschedulable_pod_carries_the_schedulers_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    replica = mapping.replica_from_pod(pod(conditions=[condition("PodScheduled", "False", "Unschedulable", words)]))
    assert (replica.phase, replica.reason) == (ReplicaPhase.UNSCHEDULABLE, "Unschedulable")
    assert replica.detail == f"{words[:-1]}{ADD_NODE}"


def test_of_a_long_message_of_the_scheduler_the_beginning_is_kept() -> None:
    words = f"0/9 nodes are available: 9 Insufficient nvidia.com/gpu. {'preemption ' * 100}"
    replica = mapping.replica_from_pod(pod(conditions=[condition("PodScheduled", "False", "Unschedulable", words)]))
    assert replica.detail == f"{words[:600]}…{ADD_NODE}"
    assert replica.scheduled_at is None


@pytest.mark.parametrize("words", ["", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."])
def test_what_the_scheduler_says_without_a_known_remedy_stays_as_it_is(words: str) -> None:
    replica = mapping.replica_from_pod(pod(conditions=[condition("PodScheduled", "False", "Unschedulable", words)]))
    assert replica.detail == words


@pytest.mark.parametrize(
    "reason",
    ["CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError", "InvalidImageName"],
)
@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_what_no_waiting_will_mend_is_failing(reason: str, kind: str) -> None:
    replica = mapping.replica_from_pod(pod(**{kind: [waiting(reason, "no such image")]}))
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, reason)
    assert "no such image" in replica.detail


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_ordinary_waiting_is_starting(reason: str) -> None:
    assert mapping.replica_from_pod(pod(containerStatuses=[waiting(reason)])).phase is ReplicaPhase.STARTING


MEMORY = "; request more memory in engine.resources, or use nodes with more memory"
SEE_LOG = "; change what it names in the spec, or see kubectl logs -n prod chat-h100-6d5f-x2x1 --previous"


def test_a_crash_carries_the_engines_last_words() -> None:
    status = waiting("CrashLoopBackOff", "back-off 5m0s", lastState=ended(1, "ValueError: unknown model\n"))
    assert mapping.replica_from_pod(pod(containerStatuses=[status])).detail == f"ValueError: unknown model{SEE_LOG}"


def test_a_crash_without_words_carries_its_exit() -> None:
    status = waiting("CrashLoopBackOff", "back-off 5m0s", lastState=ended(137, reason="OOMKilled"))
    assert mapping.replica_from_pod(pod(containerStatuses=[status])).detail == (
        f"back-off 5m0s (last exit: OOMKilled, code 137){MEMORY}"
    )


def test_who_is_killed_for_want_of_memory_does_not_say_so_himself() -> None:
    died = ended(137, "INFO: loading weights\n", reason="OOMKilled")
    status = waiting("CrashLoopBackOff", "back-off 5m0s", lastState=died)
    told = mapping.replica_from_pod(pod(containerStatuses=[status])).detail
    assert told == f"INFO: loading weights (last exit: OOMKilled, code 137){MEMORY}"


def test_a_crash_loop_is_failing_also_while_the_container_runs_again() -> None:
    status = {"state": {"running": {}}, "restartCount": 3, "lastState": ended(1, "boom")}
    replica = mapping.replica_from_pod(pod(containerStatuses=[status]))
    assert (replica.phase, replica.detail) == (ReplicaPhase.FAILING, f"boom{SEE_LOG}")


@pytest.mark.parametrize(
    "status",
    [
        {"state": {"running": {}}, "restartCount": 1, "lastState": ended(1)},
        {"state": {"running": {}}, "restartCount": 9, "lastState": ended(1, finished="2026-11-21T09:00:00Z")},
        {"state": {"running": {}}, "restartCount": 9, "lastState": ended(0)},
        {"state": {"running": {}}, "restartCount": 9},
    ],
    ids=["first restart", "ran for hours before", "ended well", "no record"],
)
def test_a_restart_that_may_well_succeed_is_starting(status: dict[str, Any]) -> None:
    assert mapping.replica_from_pod(pod(containerStatuses=[status])).phase is ReplicaPhase.STARTING


def on_hostpath(**status: Any) -> dict[str, Any]:
    found = pod(**status)
    found["spec"]["volumes"] = [{"name": "cache", "hostPath": {"path": "/var/cache/models", "type": "Directory"}}]
    found["spec"]["securityContext"] = {"runAsUser": 2000}
    return found


REMEDY = (
    "/var/cache/models must be a directory on node gpu-1 that uid 2000 can write to; "
    "create it there (mkdir -p, chown 2000)"
)  # fmt: skip


@pytest.mark.parametrize(
    ("pod_user", "engine_user", "said"),
    [
        (2000, None, "uid 2000 can write to; create it there (mkdir -p, chown 2000)"),
        (None, 1000660000, "uid 1000660000 can write to; create it there (mkdir -p, chown 1000660000)"),
        (2000, 7, "uid 7 can write to; create it there (mkdir -p, chown 7)"),
        (None, None, "the user of the image can write to; create it there (mkdir -p, chown)"),
    ],
)
def test_the_user_who_writes_the_cache_is_the_one_the_pod_runs_as(
    pod_user: int | None, engine_user: int | None, said: str
) -> None:
    found = on_hostpath(conditions=[condition("PodReadyToStartContainers", "False")])
    found["spec"]["securityContext"] = {} if pod_user is None else {"runAsUser": pod_user}
    engine = {} if engine_user is None else {"securityContext": {"runAsUser": engine_user}}
    found["spec"]["containers"] = [{"name": "other", "securityContext": {"runAsUser": 1}}, {"name": "vllm", **engine}]
    assert mapping.replica_from_pod(found).detail.endswith(said)


def test_a_pod_that_waits_for_its_volumes_names_the_remedy() -> None:
    not_yet = {"conditions": [condition("PodReadyToStartContainers", "False")]}
    replica = mapping.replica_from_pod(on_hostpath(**not_yet))
    assert (replica.phase, replica.detail) == (
        ReplicaPhase.STARTING,
        f"its volumes or network are not ready; {REMEDY}",
    )
    assert mapping.replica_from_pod(pod(**not_yet)).detail.endswith("see kubectl describe pod")
    pulling = on_hostpath(conditions=[condition("PodReadyToStartContainers", "True")])
    assert mapping.replica_from_pod(pulling).detail == ""


@pytest.mark.parametrize(
    "words",
    [
        "PermissionError: [Errno 13] Permission denied: '/cache/home'",
        "OSError: [Errno 30] Read-only file system: '/cache/vllm'",
    ],
)
def test_a_cache_that_cannot_be_written_names_the_remedy(words: str) -> None:
    crashed = {"containerStatuses": [waiting("CrashLoopBackOff", lastState=ended(1, words))]}
    assert mapping.replica_from_pod(on_hostpath(**crashed)).detail == f"{words}; {REMEDY}"
    assert mapping.replica_from_pod(pod(**crashed)).detail == (
        f"{words}; make model.cache writable for the user of the pod"
    )


def test_other_files_that_cannot_be_written_are_not_the_cache() -> None:
    words = "PermissionError: [Errno 13] Permission denied: '/models/x'"
    crashed = {"containerStatuses": [waiting("CrashLoopBackOff", lastState=ended(1, words))]}
    assert mapping.replica_from_pod(on_hostpath(**crashed)).detail == f"{words}{SEE_LOG}"


@pytest.mark.parametrize(("phase", "active"), [("Failed", False), ("Succeeded", False), ("Running", True)])
def test_an_evicted_pod_is_a_record_not_a_replica(phase: str, active: bool) -> None:
    assert mapping.is_replica(pod(phase=phase)) is active


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        [{"kind": "ReplicaSet", "name": "chat-h100-6d5f", "uid": "rs"}],
        [{"kind": "Job", "name": "sweep", "uid": "job", "controller": True}],
    ],
)
def test_a_pod_with_our_labels_that_no_replica_set_controls_is_no_replica(owners: Any) -> None:
    stranger = pod(phase="Running")
    stranger["metadata"]["ownerReferences"] = owners
    assert not mapping.is_replica(stranger)


def test_a_pod_as_just_created_has_next_to_nothing() -> None:
    bare = {"metadata": {"name": "p", "namespace": "prod", "labels": {}}}
    assert mapping.replica_from_pod(bare).phase is ReplicaPhase.STARTING
    assert mapping.requested_gpus(bare) == ()


def deployment(*conditions: dict[str, str], generation: int = 3, observed: int = 3, **counts: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "chat-h100",
            "namespace": "prod",
            "generation": generation,
            "labels": {"holdfast.dev/service": "chat", "holdfast.dev/accelerator": "h100"},
            "ownerReferences": [{"kind": "LLMService", "name": "chat", "uid": "uid-chat"}],
        },
        "spec": {"replicas": 3},
        "status": {"observedGeneration": observed, "conditions": list(conditions)} | counts,
    }


def test_a_settled_deployment_is_its_size() -> None:
    placement = mapping.placement_from_deployment(deployment(replicas=3, updatedReplicas=3))
    assert (placement.accelerator, placement.replicas, placement.workload.name) == ("h100", 3, "chat-h100")
    assert placement.observed
    assert not placement.rolling_out


def test_replicas_of_an_older_revision_mean_a_rollout() -> None:
    assert mapping.placement_from_deployment(deployment(replicas=4, updatedReplicas=1)).rolling_out


def test_a_deployment_that_a_person_paused_is_seen_to_be() -> None:
    paused = deployment(replicas=1, updatedReplicas=0)
    paused["spec"]["paused"] = True
    assert mapping.placement_from_deployment(paused).paused
    assert not mapping.placement_from_deployment(deployment()).paused


def test_who_sized_a_deployment_is_known_where_it_was_not_holdfast() -> None:
    def sized(*managers: str) -> str:
        found = deployment()
        found["metadata"]["managedFields"] = [
            {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
            {"manager": "x"},
        ] + [{"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}} for manager in managers]
        return mapping.placement_from_deployment(found).sized_by

    assert sized("kube-controller-manager") == "kube-controller-manager"
    assert sized("holdfast-scaling") == sized("other", "holdfast-scaling") == sized() == ""


TOKENS, CHANGED = "holdfast.dev/admission-tokens", "holdfast.dev/admission-changed"


@pytest.mark.parametrize(
    ("args", "annotations", "expected"),
    [
        (["serve", "--max-num-queued-tokens=5600"], {TOKENS: "5600"}, QueueLimit(5600)),
        (
            ["serve", "--max-num-queued-tokens=5600"],
            {TOKENS: "5600", CHANGED: "1800000000"},
            QueueLimit(5600, 1800000000),
        ),
        (["serve", "--max-num-seqs=8"], {}, QueueLimit(None)),
        (["serve", "--scheduler-cls=holdfast_engine.scheduler.HoldfastScheduler"], {TOKENS: "5600"}, None),
        (["serve", "--max_num_queued_tokens=77"], {TOKENS: "5600"}, None),
        (["serve", "--max-num-queued-tokens", "77"], {}, None),
        (["serve"], {TOKENS: "5600"}, None),
        (["serve", "--max-num-queued-tokens=5600"], {TOKENS: "many"}, None),
        ([], {}, None),
    ],
    ids=["prior", "measured", "none", "plugin", "user", "user, apart", "edited", "no number", "no arguments"],
)
def test_the_queue_limit_is_known_only_where_the_operator_rendered_it(
    args: list[str], annotations: dict[str, str], expected: QueueLimit | None
) -> None:
    found = deployment()
    found["metadata"]["annotations"] = annotations
    found["spec"]["template"] = {"spec": {"containers": [{"name": "log"}, {"name": "vllm", "args": args}]}}
    assert mapping.placement_from_deployment(found).queue_limit == expected
    for front_end, limit in (("python", expected), ("rust", None)):  # the latter knows no such limit
        found["spec"]["template"]["metadata"] = {"labels": {"holdfast.dev/front-end": front_end}}
        assert mapping.placement_from_deployment(found).queue_limit == limit


def test_scaling_up_is_no_rollout() -> None:
    assert not mapping.placement_from_deployment(deployment(replicas=1, updatedReplicas=1)).rolling_out


def test_a_generation_not_seen_yet_is_not_observed() -> None:
    assert not mapping.placement_from_deployment(deployment(observed=2)).observed


def test_a_deployment_as_just_created_is_not_observed() -> None:
    bare = {"metadata": {"name": "chat-h100", "generation": 1}, "spec": {"replicas": 0}}
    placement = mapping.placement_from_deployment(bare)
    assert (placement.replicas, placement.observed) == (0, False)
    assert mapping.problems_from_deployment(bare) == ()


FORBIDDEN = "change what the message names in the spec, or the policy of the cluster"


@pytest.mark.parametrize(
    ("kind", "reason", "message", "expected", "remedy"),
    [
        (
            "ReplicaFailure",
            "FailedCreate",
            "pods is forbidden: exceeded quota: gpus",
            Reason.QUOTA_EXCEEDED,
            "raise the quota, or lower scaling.max",
        ),
        ("ReplicaFailure", "FailedCreate", "violates PodSecurity restricted", Reason.PODS_FORBIDDEN, FORBIDDEN),
        (
            "Progressing",
            "ProgressDeadlineExceeded",
            "timed out",
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            "undo the last change of the spec, or see kubectl describe pod of the newest pods",
        ),
    ],
)
def test_trouble_of_a_deployment_has_a_reason_its_words_and_a_remedy(
    kind: str, reason: str, message: str, expected: Reason, remedy: str
) -> None:
    status = "True" if kind == "ReplicaFailure" else "False"
    (problem,) = mapping.problems_from_deployment(deployment(condition(kind, status, reason, message)))
    assert (problem.reason, problem.message) == (expected, f"chat-h100: {message}; {remedy}")


def test_a_deployment_that_does_well_has_no_problems() -> None:
    well = deployment(
        condition("Progressing", "True", "NewReplicaSetAvailable"),
        condition("Available", "True"),
        condition("ReplicaFailure", "False"),
    )
    assert mapping.problems_from_deployment(well) == ()


NODE = {
    "metadata": {"name": "gpu-1", "labels": {"zone": "a", "gpu": "H100"}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8", "example.com/odd": "1k"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def test_a_node_offers_its_extended_resources_and_labels_and_room_for_emulated_engines() -> None:
    offer = mapping.node_offer_from_node(NODE)
    offered = ("None", mapping.ANY_NUMBER), ("nvidia.com/gpu", 8)
    assert offer == NodeOffer("gpu-1", (("gpu", "H100"), ("zone", "a")), offered)


def test_a_cordoned_or_failed_node_offers_nothing() -> None:
    cordoned, failed = copy.deepcopy(NODE), copy.deepcopy(NODE)
    cordoned["spec"]["unschedulable"] = True  # type: ignore[index]
    failed["status"]["conditions"][0]["status"] = "Unknown"  # type: ignore[index]
    assert mapping.node_offer_from_node(cordoned) is None
    assert mapping.node_offer_from_node(failed) is None
    assert mapping.node_offer_from_node({"metadata": {"name": "bare"}}) is None


@pytest.mark.parametrize(
    ("key", "effect", "closed"),
    [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", True),
        ("karpenter.sh/disrupted", "NoSchedule", True),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", True),
        ("node.kubernetes.io/out-of-service", "NoExecute", True),
        ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule", True),
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", False),
        ("karpenter.sh/disrupted", "PreferNoSchedule", False),
        ("node.kubernetes.io/memory-pressure", "NoSchedule", False),
        ("nvidia.com/gpu", "NoSchedule", False),
        ("spot", "NoSchedule", False),
    ],
)
def test_a_node_that_is_ill_or_about_to_go_offers_nothing_and_one_with_a_taint_of_its_own_does(
    key: str, effect: str, closed: bool
) -> None:
    tainted = copy.deepcopy(NODE)
    tainted["spec"]["taints"] = [{"key": "other", "effect": "NoSchedule"}, {"key": key, "effect": effect}]  # type: ignore[index]
    assert (mapping.node_offer_from_node(tainted) is None) is closed


def test_a_node_tells_the_taints_that_keep_pods_away_and_keeps_them_beside_what_is_used() -> None:
    tainted = copy.deepcopy(NODE)
    tainted["spec"]["taints"] = [  # type: ignore[index]
        {"key": "dedicated", "value": "batch", "effect": "NoSchedule"},
        {"key": "dear", "effect": "NoExecute"},
        {"key": "full", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"},
        {"key": "odd"},
    ]
    offer = mapping.node_offer_from_node(tainted)
    assert offer is not None
    assert offer.taints == (Taint("dedicated", "batch", "NoSchedule"), Taint("dear", "", "NoExecute"))
    (used,) = mapping.with_usage([offer], {"gpu-1": {"nvidia.com/gpu": 2}})
    assert used == replace(offer, used=(("nvidia.com/gpu", 2),))


def test_our_pods_hold_what_their_containers_are_limited_to() -> None:
    assert mapping.requested_gpus(pod()) == (("nvidia.com/gpu", 2),)
    (node,) = mapping.with_usage([NodeOffer("gpu-1", (), (("nvidia.com/gpu", 8),))], {"gpu-1": {"nvidia.com/gpu": 2}})
    assert node.used == (("nvidia.com/gpu", 2),)


def test_times_with_and_without_fractions_are_read() -> None:
    assert mapping.epoch("2026-11-21T04:00:00Z") == CREATED_AT
    assert mapping.epoch("2026-11-21T04:00:00.250000Z") == CREATED_AT + 0.25
    assert mapping.epoch(None) is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param('secret "hf" not found', "SecretMissing", id="a secret that is missing"),
        pytest.param("couldn't find key token in Secret prod/hf", "SecretMissing", id="a key that is missing"),
        pytest.param("holdfast launcher: image unsupported: no vLLM", "ImageUnsupported", id="an image without vLLM"),
        pytest.param("holdfast: engine unsupported: 404", "EngineUnsupported", id="an engine that generates no text"),
        pytest.param("OSError: /models/x is not a local folder", "ModelNotFound", id="a model that is not there"),
        pytest.param(
            "OSError: org/none is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token",
            "ModelNotFound",
            id="a repository that is not there",
        ),
        pytest.param(
            "OSError: v9 is not a valid git identifier (branch name, tag name or commit id) that exists for this model "
            "name. Check the model page at 'https://huggingface.co/org/chat' for available revisions.",
            "ModelNotFound",
            id="a revision that is not there",
        ),
        pytest.param(
            "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x/y'. Use `repo_type` "
            "argument if needed.",
            "ModelNotFound",
            id="a folder that is not there",
        ),
        pytest.param(
            "OSError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or "
            "'.' and the maximum length is 96: '/models'.",
            "ModelNotFound",
            id="a folder below the root that is not there",
        ),
        pytest.param("OSError: Cannot have -- or .. in repo_id: 'org/a--b'.", "ModelNotFound", id="an id nobody has"),
        pytest.param(
            "RuntimeError: Cannot find any model weights with `/models/x`", "ModelNotFound", id="a folder, no weights"
        ),
        pytest.param(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in "
            "the cached files.",
            "HubUnreachable",
            id="a network that may come back",
        ),
        pytest.param(
            "holdfast launcher: adapter sql cannot be loaded: [Errno 2] No such file or directory: "
            "'/adapters/adapters/sql/adapter_config.json'",
            "AdapterNotFound",
            id="an adapter that is not there",
        ),
        pytest.param(
            "holdfast launcher: adapter sql cannot be loaded: its rank is 64, and --max-lora-rank is 16",
            "AdapterNotFound",
            id="an adapter of a higher rank",
        ),
        pytest.param(
            "holdfast launcher: adapter sql cannot be loaded: RepositoryNotFoundError: 401 Client Error. (Request ID: "
            "Root=1-6) Repository Not Found for url: https://huggingface.co/api/models/org/sql/revision/0.",
            "AdapterNotFound",
            id="an adapter that the hub does not have",
        ),
        pytest.param(
            "holdfast launcher: adapter sql cannot be loaded: LocalEntryNotFoundError: Cannot find an appropriate "
            "cached snapshot folder for the specified revision on the local disk",
            "HubUnreachable",
            id="an adapter of a hub that cannot be reached",
        ),
        pytest.param(
            "ValueError: Loading lora sql failed: No adapter found for /adapters/adapters/sql",
            "AdapterNotFound",
            id="an adapter that vLLM does not find",
        ),
        pytest.param("CUDA out of memory", "CrashLoopBackOff", id="anything else keeps Kubernetes' own word"),
    ],
)
def test_what_a_failing_engine_says_becomes_its_reason(words: str, reason: str) -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {"containerStatuses": [{"state": waiting, "lastState": {"terminated": {"message": words}}}]}
    replica = mapping.replica_from_pod({"metadata": {"name": "p"}, "status": status})
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, reason)


# vLLM 0.32 of a folder that is empty, and of one that has weights and no config.json.
NO_CONFIG = """\
  File "/usr/local/lib/python3.12/dist-packages/vllm/engine/arg_utils.py", line 2231, in create_engine_config
    model_config = self.create_model_config()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/models/empty'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
2. Specify a local directory that contains a recognized configuration file.
   - For Hugging Face models: ensure the presence of a 'config.json'.
   - For Mistral models: ensure the presence of a 'params.json'.
 [type=value_error, input_value=ArgsKwargs((), {'model': '/models/empty'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize(
    "state",
    [
        ended(1, NO_CONFIG),
        {"running": {}},
        {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    ],
    ids=["just crashed", "running again", "waiting to run again"],
)
def test_a_folder_without_a_model_is_told_with_its_name_from_the_first_crash_on(state: dict[str, Any]) -> None:
    restarts = 0 if "terminated" in state else 1
    crashed = {"name": "vllm", "state": state, "restartCount": restarts, "lastState": ended(1, NO_CONFIG)}
    replica = mapping.replica_from_pod(pod(containerStatuses=[crashed]))
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, "ModelNotFound")
    assert replica.detail.startswith(
        "Value error, Invalid repository ID or local directory specified: '/models/empty'."
    )


GATED = """OSError: You are trying to access a gated repo.
Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct.
401 Client Error. (Request ID: Root=1-x)
Access to model meta-llama/Llama-3.1-8B-Instruct is restricted. You must have access to it. Please log in."""
AIR_GAP = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them."
NO_NAME = "requests.exceptions.ConnectionError: [Errno -3] Temporary failure in name resolution"
NO_CACHE = "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"
FULL = "RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)"
UNKNOWN = """huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.
Repository Not Found for url: https://huggingface.co/api/models/none. Please make sure you specified the correct id.
If you are trying to access a private or gated repo, make sure you are authenticated."""
NO_RIGHT = "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://hub.example.com/m"


@pytest.mark.parametrize(
    ("words", "reason", "remedy"),
    [
        (GATED, "ModelForbidden", "model.tokenSecretRef"),
        (NO_RIGHT, "ModelForbidden", "model.tokenSecretRef"),
        (UNKNOWN, "ModelNotFound", "correct id"),
        (AIR_GAP, "HubUnreachable", "HF_ENDPOINT"),
        (NO_NAME, "HubUnreachable", "HF_ENDPOINT"),
        (NO_CACHE, "HubUnreachable", "HF_ENDPOINT"),
        (FULL, "DiskFull", "a larger volume for model.cache"),
        ("  File x\n" * 200 + FULL + " " + "x" * 900, "DiskFull", "a larger disk"),
    ],
)
def test_what_keeps_a_model_away_is_told_with_the_remedy_from_the_first_crash_on(
    words: str, reason: str, remedy: str
) -> None:
    crashed = {"name": "vllm", "state": ended(1, words), "restartCount": 0, "lastState": {}}
    replica = mapping.replica_from_pod(pod(containerStatuses=[crashed]))
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, reason)
    assert remedy in replica.detail
    assert len(replica.detail) <= 700


def test_words_of_an_engine_that_served_for_hours_are_no_reason_not_to_wait() -> None:
    lived = {"state": {"running": {}}, "restartCount": 1, "lastState": ended(1, NO_CONFIG, "2026-11-21T09:00:00Z")}
    assert mapping.replica_from_pod(pod(containerStatuses=[lived])).phase is ReplicaPhase.STARTING


def test_of_a_chain_of_errors_the_last_that_tells_is_shown() -> None:
    words = "HFValidationError: Repo id must be a string\n" + "  File x\n" * 90 + "OSError: Repo id must be in the form"
    crashed = waiting("CrashLoopBackOff", lastState=ended(1, words))
    assert mapping.replica_from_pod(pod(containerStatuses=[crashed])).detail == (
        "OSError: Repo id must be in the form; correct model.uri and model.revision"
    )


def test_of_long_last_words_the_end_is_kept() -> None:
    words = "Traceback\n" + "  File x\n" * 300 + "ModuleNotFoundError: No module named 'tokenizers'"
    crashed = {
        "name": "vllm",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended(1, words),
    }
    detail = mapping.replica_from_pod(pod(containerStatuses=[crashed])).detail
    assert detail.startswith("…")
    assert detail.endswith(f"No module named 'tokenizers'{SEE_LOG}")
    assert len(detail) < 700


LONG_RUN = {"startedAt": "2026-11-21T04:00:10Z", "finishedAt": "2026-11-21T04:25:00Z", "exitCode": 1, "reason": "Error"}


@pytest.mark.parametrize("exit_code", [0, 1, 137])
def test_an_engine_that_ends_after_any_time_again_and_again_fails(exit_code: int) -> None:
    ends = LONG_RUN | {"exitCode": exit_code}
    again = [{"name": "vllm", "state": {"running": {}}, "lastState": {"terminated": ends}, "restartCount": 2}]
    never = [condition("PodScheduled", "True"), condition("Ready", "False", at=CREATED)]
    replica = mapping.replica_from_pod(pod(conditions=never, containerStatuses=again))
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, "CrashLoopBackOff")
    once = [again[0] | {"restartCount": 1}]
    assert mapping.replica_from_pod(pod(conditions=never, containerStatuses=once)).phase is ReplicaPhase.STARTING
    served = [condition("PodScheduled", "True"), condition("Ready", "False", at="2026-11-21T04:25:00Z")]
    assert mapping.replica_from_pod(pod(conditions=served, containerStatuses=again)).phase is ReplicaPhase.STARTING


def test_another_container_may_end_without_an_error_as_often_as_it_likes() -> None:
    ends = LONG_RUN | {"exitCode": 0}
    shipper = {"name": "logs", "state": {"running": {}}, "lastState": {"terminated": ends}, "restartCount": 9}
    never = [condition("PodScheduled", "True"), condition("Ready", "False", at=CREATED)]
    replica = mapping.replica_from_pod(pod(conditions=never, containerStatuses=[shipper]))
    assert replica.phase is ReplicaPhase.STARTING


def test_an_init_container_that_is_done_does_not_fail_however_often_it_was_restarted() -> None:
    done = {"name": "init", "state": {"terminated": LONG_RUN | {"exitCode": 0}}, "restartCount": 3}
    never = [condition("PodScheduled", "True"), condition("Ready", "False", at=CREATED)]
    replica = mapping.replica_from_pod(pod(conditions=never, initContainerStatuses=[done]))
    assert replica.phase is ReplicaPhase.STARTING


SCC = (
    'pods "chat-h100-7c6f-" is forbidden: unable to validate against any security context constraint: '
    '[provider "anyuid": Forbidden: not usable by user or serviceaccount, provider restricted-v2: '
    ".spec.securityContext.fsGroup: Invalid value: []int64{2000}: 2000 is not an allowed group, "
    "provider restricted-v2: .containers[0].runAsUser: Invalid value: 2000: "
    "must be in the ranges: [1000660000, 1000669999]"
)


@pytest.mark.parametrize("words", [SCC, SCC + ", provider other: Forbidden" * 200, "denied request: runAsUser: no"])
def test_pods_that_are_refused_for_their_ids_name_the_remedy_in_full(words: str) -> None:
    (problem,) = mapping.problems_from_deployment(
        deployment(condition("ReplicaFailure", "True", "FailedCreate", words))
    )
    assert problem.reason == Reason.PODS_FORBIDDEN
    assert problem.message.startswith(f"chat-h100: {words[:400]}")
    assert problem.message.endswith("; where the platform assigns user and group ids, start the operator with "
                                    "--platform-assigns-ids")  # fmt: skip
    assert len(problem.message) < 1000


def test_pods_that_are_refused_for_another_reason_get_no_wrong_remedy() -> None:
    root = 'violates PodSecurity "baseline:latest": runAsUser=0 (pod must not set runAsUser=0)'
    for words in (root, "denied: runAsNonRoot must be true", "exceeded quota: gpus, runAsUser"):
        (problem,) = mapping.problems_from_deployment(
            deployment(condition("ReplicaFailure", "True", "FailedCreate", words))
        )
        assert problem.message.startswith(f"chat-h100: {words}; ")
        assert "platform-assigns-ids" not in problem.message


@pytest.mark.parametrize("cause", ["image will run as root", "image has non-numeric user (app), cannot verify user"])
def test_an_image_without_a_numeric_user_names_both_remedies(cause: str) -> None:
    words = f'container has runAsNonRoot and {cause} (pod: "chat-0_prod", container: vllm)'
    refused = waiting("CreateContainerConfigError", message=words)
    replica = mapping.replica_from_pod(pod(containerStatuses=[refused]))
    assert (replica.phase, replica.reason) == (ReplicaPhase.FAILING, Reason.ENGINE_FAILING)
    assert replica.detail == (
        f"{words}; name one in template.spec.securityContext.runAsUser, or start the operator without "
        "--platform-assigns-ids"
    )
