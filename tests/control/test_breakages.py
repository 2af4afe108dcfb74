"""Things that break at night: the worst condition names the cause, the object and what to do, and says it once.

Each is written as a kubelet, a scheduler or an API server writes it, and followed to the status of the service. A dead
API server, an expired token and missing rights of a person are told by the CLI (tests/cli/test_no_cluster.py), bad
values by the chart (tests/chart/test_chart_refusals.py).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.api import conditions
from holdfast.api.status import BatchingStatus
from holdfast.control.status.node_labels import NodeLabels
from holdfast.control.status.remedies import with_remedies
from holdfast.control.status.report import status_of
from holdfast.domain.cluster import ClusterProblem
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.observe.objects import mapping
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.observe.objects.ended import ended_from_pod, newest
from holdfast.observe.objects.spec import to_spec
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.render.refusals import refusal_told
from tests.builders import NOW, no_traffic, traffic
from tests.control.parts import llmservice

POD = "chat-h100-6d5f-x2x1"
LABELS = {"holdfast.dev/service": "chat", "holdfast.dev/accelerator": "h100", "pod-template-hash": "6d5f"}
Object = dict[str, Any]


def at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(NOW + seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cond(kind: str, value: str, reason: str = "", message: str = "", age: float = 590.0) -> Object:
    return {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": at(-age)}


PLACED = (cond("PodReadyToStartContainers", "True"), cond("Initialized", "True"), cond("PodScheduled", "True"))
UNREADY = (
    cond("Ready", "False", "ContainersNotReady", "containers with unready status: [vllm]"),
    cond("ContainersReady", "False", "ContainersNotReady", "containers with unready status: [vllm]"),
)
SERVES = (cond("Ready", "True"), cond("ContainersReady", "True"))


def pod(*conds: Object, name: str = POD, phase: str = "Pending", **status: Any) -> Object:
    owner = {"kind": "ReplicaSet", "name": "chat-h100-6d5f", "uid": "rs", "controller": True}
    meta = {"name": name, "namespace": "prod", "creationTimestamp": at(-600.0), "labels": LABELS}
    spec = {"nodeName": "gpu-1", "containers": [{"name": "vllm", "image": "example.com/vllm:1"}]}
    return {"metadata": meta | {"ownerReferences": [owner]}, "spec": spec,
            "status": {"phase": phase, "conditions": list(conds or (*PLACED, *UNREADY))} | status}  # fmt: skip


def waits(reason: str, message: str, last: Object | None = None, restarts: int = 0) -> Object:
    """A pod whose engine waits, as the kubelet says why."""
    state = {"waiting": {"reason": reason, "message": message}}
    each = {"name": "vllm", "ready": False, "started": False, "restartCount": restarts, "image": "example.com/vllm:1"}
    return pod(containerStatuses=[each | {"state": state, "lastState": {"terminated": last} if last else {}}])


BACK_OFF = f"back-off 5m0s restarting failed container=vllm pod={POD}_prod(0f6c)"


def crashes(message: str, code: int = 1, reason: str = "Error") -> Object:
    """A pod whose engine ended several times."""
    last = {"exitCode": code, "reason": reason, "message": message, "startedAt": at(-90.0), "finishedAt": at(-60.0)}
    return waits("CrashLoopBackOff", BACK_OFF, last, 5)


def unplaced(message: str) -> Object:
    return pod(cond("PodScheduled", "False", "Unschedulable", message))


def gone(reason: str, message: str, number: int) -> Object:
    return pod(name=f"{POD}{number}", phase="Failed", reason=reason, message=message)


def deployment(*conds: Object, size: int = 1) -> Object:
    meta = {"name": "chat-h100", "namespace": "prod", "generation": 1, "labels": LABELS}
    status = {"observedGeneration": 1, "conditions": list(conds), "replicas": size, "updatedReplicas": size}
    return {"metadata": meta, "spec": {"replicas": size, "template": {}}, "status": status}


def node(*taints: Object) -> Object:
    return {"metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [cond("Ready", "True")]}}  # fmt: skip


@dataclass
class Night:
    """What is there, the reason of the worst condition, and its words: cause, object and remedy."""

    reason: str
    words: tuple[str, ...]
    pods: tuple[Object, ...] = ()
    deployment: Object = field(default_factory=deployment)
    nodes: tuple[Object, ...] = (node(),)
    traffic: Traffic = field(default_factory=lambda: no_traffic(SignalState.ABSENT, "no replica is ready yet"))
    problems: tuple[ClusterProblem, ...] = ()
    lost_fields: tuple[str, ...] = ()
    seconds: float = 120.0

    def status(self) -> Object:
        """The status after so long."""
        service = llmservice(accelerators=[{"name": "h100"}], scaling={"min": 1, "max": 4})
        replicas = tuple(mapping.replica_from_pod(each) for each in self.pods if mapping.is_replica(each))
        ended = newest(filter(None, map(ended_from_pod, self.pods)))
        found = ObservedDeployment(
            mapping.placement_from_deployment(self.deployment), mapping.problems_from_deployment(self.deployment)
        )
        part = ServiceParts(service, to_spec(service), replicas, (found,), ended=ended)
        offers = tuple(filter(None, map(mapping.node_offer_from_node, self.nodes)))
        memory, told = Memory(), dict[str, Any]()
        for passed in range(0, int(self.seconds) + 1, 5):
            seen = ServiceSnapshot(
                part.spec, self.traffic, part.replicas, part.placements, (*part.problems, *self.problems),
                ended=part.ended, lost_fields=self.lost_fields,
            )  # fmt: skip
            (decision,), memory = decide(Snapshot(NOW + passed, (seen,), offers, Timing(5.0, 5.0)), memory)
            known = with_remedies(decision.conditions, part, decision.verdict.replicas, NodeLabels(offers))
            told = status_of(part, replace(decision, conditions=known), BatchingStatus(), told, NOW + passed)
        return told


SERVING = pod(*PLACED, *SERVES, phase="Running")
LOST = pod(*PLACED, cond("Ready", "False", age=60.0), cond("ContainersReady", "True"), phase="Running")
LOG = "INFO 11-29 03:00:01 [model_runner.py:1] Loading weights\n"
IMAGE = "example.com/vllm:1"
UNPACK = f'failed to pull and unpack image "{IMAGE}": '
DESCRIBE = f"kubectl describe pod -n prod {POD}"
MOVE = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."


def pulls(message: str) -> Object:
    return waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {message}')


def probed(kind: str, **container: Any) -> Object:
    """A pod whose engine runs and is not ready; the probe asks for a path that vLLM does not have."""
    found = pod(*PLACED, *UNREADY, phase="Running")
    found["spec"]["containers"][0][f"{kind}Probe"] = {"httpGet": {"path": "/healthz", "port": 8000}}
    engine = {"name": "vllm", "ready": False, "state": {"running": {"startedAt": at(-80.0)}}, "lastState": {}}
    found["status"]["containerStatuses"] = [engine | container]
    return found


def with_claim(found: Object) -> Object:
    found["spec"]["volumes"] = [{"name": "cache", "persistentVolumeClaim": {"claimName": "weights"}}]
    return found


def refused(message: str) -> Object:
    """A Deployment whose pods the API server refuses."""
    return deployment(cond("ReplicaFailure", "True", "FailedCreate", message))


STOPPED = {"terminated": {"exitCode": 143, "reason": "Error", "message": LOG, "startedAt": at(-190.0),
                          "finishedAt": at(-90.0)}}  # fmt: skip
FULL = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. Container vllm was "
    "using 90Gi, request is 0, has larger consumption of ephemeral-storage. "
)
NIGHTS = {
    "the image does not exist": Night(
        "ImagePullFailing", (f"{IMAGE}: not found", POD, "correct engine.image"),
        (pulls(f'{UNPACK}failed to resolve reference "{IMAGE}": {IMAGE}: not found'),)),
    "the node is lost": Night(
        "NodeLost", ("node gpu-1 does not respond", POD, "kubectl describe node gpu-1"), (LOST,)),
    "the Secret does not exist": Night(
        "SecretMissing", ('secret "hf" not found', POD, "create it in the namespace"),
        (waits("CreateContainerConfigError", 'secret "hf" not found'),)),
    "a probe is wrong and the kubelet kills the engine": Night(
        "EngineFailing", ("killed from outside", "probe failed", DESCRIBE), (crashes(LOG, 137),)),
    "a startup probe is wrong, between two kills": Night(
        "EngineFailing", ("killed from outside", "startup probe failed", DESCRIBE),
        (probed("startup", restartCount=4, started=False, lastState=STOPPED),)),
    "a readiness probe is wrong": Night(
        "NoReplicas", (POD, "readiness probe (GET /healthz on port 8000) has not passed", "see the log"),
        (probed("readiness", restartCount=0, started=True),)),
    "a quota is used up": Night(
        "QuotaExceeded", ("exceeded quota: gpus", "chat-h100", "raise the quota"),
        deployment=refused(
            'pods "chat-h100-6d5f-" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: '
            "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8")),
    "the nodes have a taint": Night(
        "NoMatchingNodes", ("{dedicated: batch}", "h100", "accelerators[].tolerations"),
        (unplaced("0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: batch}, 2 Insufficient "
                  f"nvidia.com/gpu.{MOVE}"),),
        nodes=(node({"key": "dedicated", "value": "batch", "effect": "NoSchedule"}),)),
    "the GPUs are used up, beside nodes of others": Night(
        "InsufficientGPUs", ("Insufficient nvidia.com/gpu", "free a GPU or add a node", "if the tainted nodes have"),
        (unplaced("0/8 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 7 Insufficient "
                  f"nvidia.com/gpu.{MOVE}"),)),
    "no GPU is left": Night(
        "InsufficientGPUs", ("Insufficient nvidia.com/gpu", "h100", "add a node"),
        (unplaced("0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
                  f"2 Insufficient nvidia.com/gpu.{MOVE}"),)),
    "a claim has no volume": Night(
        "VolumeMissing", ("unbound immediate PersistentVolumeClaims", "create a volume for weights", "describe pvc"),
        (with_claim(unplaced(f"0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.{MOVE}")),)),
    "a claim does not exist": Night(
        "VolumeMissing", ('persistentvolumeclaim "weights" not found', POD, "create it"),
        (with_claim(unplaced(f'0/3 nodes are available: persistentvolumeclaim "weights" not found.{MOVE}')),)),
    "a webhook refuses the pods": Night(
        "PodsForbidden", ("validate.kyverno.svc-fail", "label team is required", "change what the message names"),
        deployment=refused(
            'admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod/prod/chat-h100-6d5f- was '
            "blocked: require-labels: label team is required")),
    "a webhook does not answer": Night(
        "PodsForbidden", ("no endpoints available", "mutate.istio.io", "mend the webhook"),
        deployment=refused(
            'Internal error occurred: failed calling webhook "mutate.istio.io": failed to call webhook: Post '
            '"https://istiod.istio-system.svc:443/inject?timeout=10s": no endpoints available for service "istiod"')),
    "the image is of another architecture": Night(
        "ImageUnsupported", ("exec format error", POD, "for the architecture of the node"),
        (crashes("exec /opt/venv/bin/python3: exec format error", 255),)),
    "the image has no such architecture": Night(
        "ImagePullFailing", ("no match for platform", IMAGE, "for the architecture of the node"),
        (pulls(f"{UNPACK}no match for platform in manifest: not found"),)),
    "the token of the hub has expired": Night(
        "ModelForbidden", ("401 Client Error", "Qwen/Qwen3-8B", "model.tokenSecretRef"),
        (crashes("huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: "
                 "https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json\n\nInvalid username or password."),)),
    "the token of the registry has expired": Night(
        "ImagePullFailing", ("401 Unauthorized", IMAGE, "engine.imagePullSecrets"),
        (pulls(f'{UNPACK}failed to resolve reference "{IMAGE}": failed to authorize: failed to fetch oauth token: '
               "unexpected status from GET request to https://example.com/token: 401 Unauthorized"),)),
    "DNS does not find the hub": Night(
        "HubUnreachable", ("name resolution", "huggingface.co", "let pods reach the hub"),
        (crashes("requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool(host=\\'huggingface.co\\', "
                 "port=443): Max retries exceeded with url: /Qwen (Caused by NameResolutionError(\"Failed to resolve "
                 "\\'huggingface.co\\' ([Errno -3] Temporary failure in name resolution)\"))'))"),)),
    "DNS does not find the registry": Night(
        "ImagePullFailing", ("no such host", "example.com", "check its DNS"),
        (pulls(f'{UNPACK}failed to do request: Head "https://example.com/v2/vllm/manifests/1": dial tcp: lookup '
               "example.com on 10.0.0.10:53: no such host"),)),
    "the clock of a node is late": Night(
        "HubUnreachable", ("not yet valid", "huggingface.co", "set the clock of the node"),
        (crashes("requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
                 "exceeded with url: /Qwen (Caused by SSLError(SSLCertVerificationError(1, '[SSL: "
                 "CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid')))"),)),
    "the clock of a node is late for the registry": Night(
        "ImagePullFailing", ("not yet valid", "example.com", "set the clock of the node"),
        (pulls(f'{UNPACK}failed to do request: Head "https://example.com/v2/vllm/manifests/1": tls: failed to verify '
               "certificate: x509: certificate has expired or is not yet valid: current time 2020-01-01T00:00:00Z"),)),
    "the disk of the cache is full": Night(
        "DiskFull", ("No space left on device", POD, "larger volume for model.cache"),
        (crashes("OSError: [Errno 28] No space left on device: '/cache/hub/blobs/1.incomplete'"),)),
    "the disk of the node is full": Night(
        "PodEnded", ("low on resource: ephemeral-storage", "node gpu-1", "nodes with a larger disk"),
        (gone("Evicted", FULL, 1), gone("Evicted", FULL, 2))),
    "the disk of the node is full of images": Night(
        "DiskFull", ("no space left on device", IMAGE, "a node with a larger disk"),
        (pulls(f"{UNPACK}failed to extract layer sha256:1: write /var/lib/containerd/x.so: no space left on device"),)),
    "vLLM does not know an argument": Night(
        "EngineFailing", ("unrecognized arguments: --odd=1", POD, "remove it from engine.args"),
        (crashes("usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --odd=1", 2),)),
    "the emulator does not know an argument": Night(
        "EngineFailing", ("unrecognized arguments: --odd=1", POD, "remove it from engine.args"),
        (crashes("holdfast emulate: unrecognized arguments: --odd=1", 2),)),
    "the kernel kills the engine for its memory": Night(
        "EngineFailing", ("OOMKilled", POD, "request more memory in engine.resources"),
        (crashes(LOG, 137, "OOMKilled"),)),
    "the GPU has too little memory": Night(
        "EngineFailing", ("CUDA out of memory", POD, "lower --gpu-memory-utilization"),
        (crashes("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),)),
    "the operator lacks a right": Night(
        "ApplyFailed", ('cannot create resource "deployments"', 'namespace "prod"', "grant the operator this right"),
        problems=(ClusterProblem("ApplyFailed", refusal_told(
            'deployments.apps is forbidden: User "system:serviceaccount:holdfast-system:holdfast" cannot create '
            'resource "deployments" in API group "apps" in the namespace "prod"')),)),
    "the CRD is too old": Night(
        "CrdTooOld", ("CRD is older", "spec.slo.e2e", "Update the CRDs"), (SERVING,), traffic=traffic(1.0),
        lost_fields=("spec.slo.e2e",)),
}  # fmt: skip


@pytest.mark.parametrize("name", NIGHTS)
def test_the_worst_condition_names_cause_object_and_remedy(name: str) -> None:
    night = NIGHTS[name]
    told = night.status()
    worst = conditions.worst(conditions.conditions_of(told))
    assert worst is not None
    assert (told["reason"], worst.reason) == (night.reason, night.reason)
    for words in night.words:
        assert words in worst.message
    others = [each["message"] for each in told["conditions"] if each["type"] != worst.type]
    assert not [text for text in long_texts(worst.message) for other in others if text in other]


def long_texts(message: str) -> list[str]:
    """Every part of a message that is too long to be read twice."""
    return [message[start : start + 70] for start in range(max(0, len(message) - 69))]


UNREACHABLE = "Prometheus at http://prometheus:9090 cannot be reached (ConnectTimeout); check --prometheus-url"


@pytest.mark.parametrize(("state", "reason"), [(SignalState.UNREACHABLE, "PrometheusUnreachable"),
                                               (SignalState.SKEWED, "ClockSkew")])  # fmt: skip
def test_what_is_wrong_with_metrics_is_told_in_one_condition(state: SignalState, reason: str) -> None:
    told = Night(reason, (), (SERVING,), traffic=no_traffic(state, UNREACHABLE)).status()
    assert told["reason"] == reason
    (metrics,) = [each for each in told["conditions"] if UNREACHABLE in each["message"]]
    assert (metrics["type"], metrics["reason"]) == ("MetricsAvailable", reason)
    (held,) = [each for each in told["conditions"] if each["type"] == "ScalingActive"]
    assert held["message"].endswith("see MetricsAvailable")


def test_an_engine_that_loads_is_not_said_to_have_a_wrong_probe() -> None:
    loads = probed("readiness", restartCount=0, started=True)
    loads["metadata"]["creationTimestamp"] = at(-90.0)
    (ready,) = [each for each in Night("", (), (loads,)).status()["conditions"] if each["type"] == "Ready"]
    assert "probe" not in ready["message"]
