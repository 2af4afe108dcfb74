"""What the API server refuses of the operator's account, whatever RBAC allows it.

python -m e2e.cluster run -- python -m pytest e2e/test_admission_policy.py -m cluster
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl, KubectlError

pytestmark = pytest.mark.cluster

_OPERATOR = f"--as=system:serviceaccount:{stack.NAMESPACE}:holdfast"
_SYSTEM = "kube-system"
_OWNER = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "LLMService", "name": "chat", "uid": "0-0"}


def tried(place: Kubectl, *arguments: str, stdin: str | None = None) -> str:
    """What the operator's account is told; empty where it may. Nothing is written."""
    try:
        place.run(*arguments, "--dry-run=server", _OPERATOR, stdin=stdin)
    except KubectlError as error:
        return str(error)
    return ""


def created(place: Kubectl, manifest: Json) -> str:
    return tried(place, "create", "--filename", "-", stdin=json.dumps(manifest))


def applied(place: Kubectl, manifest: Json) -> str:
    return tried(place, "apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=json.dumps(manifest))


def deployment() -> Json:
    """As the operator writes it for the LLMService chat."""
    pod = {
        "serviceAccountName": "chat",
        "automountServiceAccountToken": False,
        "containers": [{"name": "vllm", "image": "vllm", "ports": [{"containerPort": 8000}]}],
        "volumes": [{"name": "shm", "emptyDir": {}}],
    }
    labels = {"of": "chat"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-l40s", "ownerReferences": [dict(_OWNER)]},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def changed(change: Callable[[Json], Any]) -> Json:
    manifest = deployment()
    change(manifest)
    return manifest


def _pod(**fields: Any) -> Json:
    return changed(lambda made: made["spec"]["template"]["spec"].update(fields))


def _engine(**fields: Any) -> Json:
    return changed(lambda made: made["spec"]["template"]["spec"]["containers"][0].update(fields))


def _account(**fields: Any) -> Json:
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": False, **fields}
    return {**made, "metadata": {"name": "chat", "ownerReferences": [_OWNER]}}


def _job(**fields: Any) -> Json:
    """As the operator writes it for an LLMBenchmark that tunes the service chat."""
    made = deployment()
    pod = {**made["spec"]["template"]["spec"], "restartPolicy": "Never", **fields}
    owner = {**_OWNER, "kind": "LLMBenchmark", "name": "limits"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "limits", "ownerReferences": [owner]},
        "spec": {"template": {"spec": pod}},
    }


def _group(leader: Json | None = None, follower: Json | None = None) -> Json:
    """As the operator writes it where a replica is a group of pods, with other fields of these pods."""
    made = deployment()
    pod, spec = made["spec"]["template"]["spec"], {"size": 2}
    templates = {"leaderTemplate": {"spec": pod | (leader or {})}, "workerTemplate": {"spec": pod | (follower or {})}}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {**kind, "metadata": made["metadata"], "spec": {"leaderWorkerTemplate": {**spec, **templates}}}


def _prefill() -> Json:
    """As the operator writes it for the prefill pool of the LLMService chat."""
    labels = {"holdfast.dev/service": "chat.prefill", "app.kubernetes.io/managed-by": "holdfast"}
    made = changed(lambda made: made["metadata"].update(name="chat.prefill-l40s", labels=labels))
    made["spec"]["replicas"] = 2
    return made


_HELPER = {"name": "helper", "image": "vllm"}
_SPEC: Json = {"spec": {"containers": [_HELPER]}}
_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
_PODS: dict[str, dict[str, str]] = {
    "pod": {"holdfast.dev/service": "chat"},
    "leader": {"holdfast.dev/service": "chat", _INDEX: "0"},
    "follower": {"holdfast.dev/service": "chat.followers", _INDEX: "1"},
    "their-leader": {_INDEX: "0"},
    "leader-of-no-service": {"holdfast.dev/service": "", _INDEX: "0"},
}
_NO_PODS = "writes no pods that use "
REFUSED = {
    "no owner": (changed(lambda made: made["metadata"].pop("ownerReferences")), "objects of LLMServices"),
    "another owner": (
        changed(lambda made: made["metadata"]["ownerReferences"][0].update(apiVersion="apps/v1")),
        "objects of LLMServices",
    ),
    "another account": (_pod(serviceAccountName="builder"), _NO_PODS + "serviceAccountName"),
    "a token": (_pod(automountServiceAccountToken=True), _NO_PODS + "serviceAccountName"),
    "a token by default": (
        changed(lambda made: made["spec"]["template"]["spec"].pop("automountServiceAccountToken")),
        _NO_PODS + "serviceAccountName",
    ),
    "a token in a volume": (
        _pod(volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        _NO_PODS + "serviceAccountName",
    ),
    "the node's network": (_pod(hostNetwork=True), _NO_PODS + "hostNetwork"),
    "a port of the node": (_engine(ports=[{"containerPort": 80, "hostPort": 80}]), _NO_PODS + "hostNetwork"),
    "the node's processes": (_pod(hostPID=True), _NO_PODS + "hostPID"),
    "the node's memory": (_pod(hostIPC=True), _NO_PODS + "hostIPC"),
    "the node's files": (_pod(volumes=[{"name": "all", "hostPath": {"path": "/"}}]), _NO_PODS + "hostPath"),
    "a privileged engine": (_engine(securityContext={"privileged": True}), _NO_PODS + "privileged"),
    "a privileged first container": (
        _pod(initContainers=[{**_HELPER, "securityContext": {"privileged": True}}]),
        _NO_PODS + "privileged",
    ),
    "a capability": (_engine(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), _NO_PODS + "privileged"),
    "a Job with a token": (_job(automountServiceAccountToken=True), _NO_PODS + "serviceAccountName"),
    "a Job on the node's network": (_job(hostNetwork=True), _NO_PODS + "hostNetwork"),
    "a leader with the node's files": (
        _group(leader={"volumes": [{"name": "all", "hostPath": {"path": "/"}}]}),
        _NO_PODS + "hostPath",
    ),
    "a follower on the node's network": (_group(follower={"hostNetwork": True}), _NO_PODS + "hostNetwork"),
    "a follower with a token": (
        _group(follower={"automountServiceAccountToken": True}),
        _NO_PODS + "serviceAccountName",
    ),
    "a privileged follower": (
        _group(follower={"containers": [{**_HELPER, "securityContext": {"privileged": True}}]}),
        _NO_PODS + "privileged",
    ),
    "an account with a token": (_account(automountServiceAccountToken=True), "ServiceAccounts without a token"),
}


@pytest.fixture(scope="module")
def others(operator: None, place: Kubectl) -> Iterator[Kubectl]:
    """Objects of somebody else, and a pod that Holdfast may mark, in a cluster that has LeaderWorkerSets."""
    place.create(
        [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"key": "value"}},
            changed(lambda made: made["metadata"].pop("ownerReferences")),
            *(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, **_SPEC}
                for name, labels in _PODS.items()
            ),
        ]
    )
    place.wait_until(lambda: _told_of(place, "configmap", "theirs") != "", 60, "the policy")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    with stack.operators_restarted(), stack.optional_api("leaderworkerset.x-k8s.io", "LeaderWorkerSet", schema):
        yield place


def _told_of(place: Kubectl, kind: str, name: str, change: Json | None = None, *more: str) -> str:
    patch = json.dumps(change or {"metadata": {"labels": {"of": "other"}}})
    return tried(place, "patch", kind, name, "--type", "merge", "--patch", patch, *more)


@pytest.mark.parametrize(
    "manifest",
    [deployment(), _prefill(), _group(), _job(), _account()],
    ids=["deployment", "prefill", "group", "job", "account"],
)
def test_what_belongs_to_holdfast_is_accepted(others: Kubectl, manifest: Json) -> None:
    other = {**manifest, "metadata": {**manifest["metadata"], "name": f"{manifest['metadata']['name']}-other"}}
    assert created(others, other) == ""


@pytest.mark.parametrize("attempt", REFUSED)
def test_the_account_of_the_operator_writes_nothing_else(others: Kubectl, attempt: str) -> None:
    manifest, told = REFUSED[attempt]
    other = {**manifest, "metadata": {**manifest["metadata"], "name": "chat-other"}}
    refusal = created(others, other)
    assert "ValidatingAdmissionPolicy 'holdfast'" in refusal, refusal
    assert told in refusal


def test_objects_of_others_are_neither_changed_nor_deleted(others: Kubectl) -> None:
    taken = {"metadata": {"ownerReferences": [_OWNER]}}
    for kind, name in (("configmap", "theirs"), ("deployment", "chat-l40s")):
        assert "writes objects of LLMServices" in _told_of(others, kind, name)
        assert "changes and deletes objects of LLMServices" in _told_of(others, kind, name, taken)
        assert "changes and deletes objects of LLMServices" in tried(others, "delete", kind, name)


def test_of_others_deployments_only_the_size_is_written(others: Kubectl) -> None:
    assert _told_of(others, "deployment", "chat-l40s", {"spec": {"replicas": 2}}, "--subresource=scale") == ""


def test_of_pods_only_labels_and_annotations_are_written(others: Kubectl) -> None:
    marked = {"metadata": {"name": "pod", "labels": {"of": "chat"}, "annotations": {"of": "chat"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", **marked}
    assert applied(others, pod) == ""
    assert "labels and annotations of pods only" in applied(others, {**pod, "spec": {"activeDeadlineSeconds": 9}})


def test_of_pods_only_a_leader_of_a_group_is_deleted_and_none_is_made_one(others: Kubectl) -> None:
    assert tried(others, "delete", "pod", "leader") == ""
    for name in _PODS.keys() - {"leader"}:
        assert "deletes leaders of its groups only" in tried(others, "delete", "pod", name)
        for label in (_INDEX, "holdfast.dev/service"):
            taken = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {label: "2"}}}
            assert "labels and annotations" in applied(others, taken)


def test_nothing_is_written_in_a_system_namespace(others: Kubectl) -> None:
    system = Kubectl(_SYSTEM)
    for manifest in (deployment(), _account()):
        assert "nothing in system namespaces" in created(system, manifest)
    (found, *_) = system.items("configmaps")
    assert "nothing in system namespaces" in tried(system, "delete", "configmap", found["metadata"]["name"])


def test_an_llmservice_in_a_system_namespace_says_where_it_may_be(others: Kubectl) -> None:
    system = Kubectl(_SYSTEM)
    system.apply(stack.small_service("misplaced"))
    try:
        told = system.wait_for("llms", "misplaced", _names_the_policy, 60, "a condition that names the policy")
        assert "move the LLMService, or name the namespace in watchNamespaces" in json.dumps(told["status"])
        assert not system.items("deployments", "holdfast.dev/service=misplaced")
    finally:
        system.delete("llms", "misplaced")


def test_any_other_account_is_asked_nothing(others: Kubectl) -> None:
    others.run("label", "configmap", "theirs", "of=other", "--dry-run=server")


def _names_the_policy(found: Json) -> bool:
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["reason"] == "ApplyFailed" and "system namespaces" in each["message"] for each in conditions)
