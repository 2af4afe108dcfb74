"""The cluster itself: what a Kubernetes user may rely on, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.images import HOLDFAST_IMAGE
from e2e.cluster.layout import NODE_NAME, Layout
from e2e.cluster.nodes import GPU, add_fake_nodes, remove_nodes, set_node_capacity, start_kwok, wait_for_nodes
from e2e.kubectl import Json, Kubectl, KubectlError, condition
from e2e.patience import patient

_REPOSITORY = Path(__file__).resolve().parents[1]
_SERVER = ["python3", "-m", "http.server", "8000", "--directory", "/etc"]
_SLOW_TO_END = """
import signal, sys, time
def end(number, frame):
    print("SIGTERM", flush=True)
    time.sleep(1)
    print("finished", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("started", flush=True)
while True:
    signal.pause()
"""


def _deployment(name: str, replicas: int, container: Json, **pod: object) -> Json:
    labels = {"app": name}
    security = {
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    full = {"name": "main", "image": HOLDFAST_IMAGE, "securityContext": security, **container}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [full], **pod}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _web(name: str, replicas: int) -> list[Json]:
    probe = {"httpGet": {"path": "/passwd", "port": 8000}, "periodSeconds": 1}
    container = {"command": _SERVER, "readinessProbe": probe}
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    return [_deployment(name, replicas, container), service]


def _fetching(url: str) -> str:
    return f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=30).status)"


def _waiting_for(namespace: Kubectl, resource: str) -> list[bool]:
    """Of each pod that waits, whether it is for want of this."""
    waiting = [pod for pod in namespace.items("pod") if pod["status"]["phase"] == "Pending"]
    return [f"Insufficient {resource}" in condition(pod, "PodScheduled").get("message", "") for pod in waiting]


def _answers(namespace: Kubectl, url: str) -> bool:
    try:
        return namespace.execute("deployment/web", "python3", "-c", _fetching(url)).strip() == "200"
    except KubectlError:
        return False


@pytest.mark.cluster
def test_the_node_is_ready(kubectl: Kubectl) -> None:
    assert condition(kubectl.get_json("node", NODE_NAME), "Ready")["status"] == "True"


@pytest.mark.cluster
def test_pods_of_the_projects_image_serve_each_other_and_the_node_by_name(namespace: Kubectl) -> None:
    namespace.apply(_web("web", 2))
    namespace.wait_available("web", 60)
    full_name = f"http://web.{namespace.namespace}.svc.cluster.local/passwd"
    address = namespace.get_json("service", "web")["spec"]["clusterIP"]
    # Until the node's proxy has both pods, which is soon after they are available, it refuses.
    namespace.wait_until(lambda: _answers(namespace, full_name), 20, "the service answers")
    for url in ("http://web/passwd", full_name, f"http://{address}/passwd"):
        # Through the service a pod may reach itself, so ask more often than there are pods.
        for _ in range(4):
            assert namespace.execute("deployment/web", "python3", "-c", _fetching(url)).strip() == "200"
    on_the_node = subprocess.run([sys.executable, "-c", _fetching(full_name)], capture_output=True, text=True)
    assert on_the_node.stdout.strip() == "200", on_the_node.stderr


@pytest.mark.cluster
def test_a_pod_that_goes_sees_its_pre_stop_hook_and_then_the_signal(namespace: Kubectl) -> None:
    hook = {
        "preStop": {"exec": {"command": ["sh", "-c", "echo hook > /proc/1/fd/1; sleep 1; echo hooked > /proc/1/fd/1"]}}
    }
    container = {"command": ["python3", "-c", _SLOW_TO_END], "lifecycle": hook}
    namespace.apply(_deployment("slow", 1, container, terminationGracePeriodSeconds=60))
    namespace.wait_available("slow", 60)
    pod = namespace.items("pod")[0]["metadata"]["name"]
    command = ["kubectl", "--namespace", namespace.namespace, "logs", "--follow", pod]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        # A pod that is gone before kubectl asks has no log.
        assert following.stdout.readline() == "started\n"
        namespace.scale("deployment", "slow", 0)
        output, _ = following.communicate(timeout=patient(30.0))
    finally:
        following.kill()
    assert output.split() == ["hook", "hooked", "SIGTERM", "finished"]


@pytest.mark.cluster
def test_the_ninth_pod_that_wants_a_gpu_of_an_eight_gpu_node_stays_pending(namespace: Kubectl) -> None:
    # Not those GPUs that the operator's services share in the tests of other files.
    gpu = "example.com/gpu"
    set_node_capacity({gpu: 8})
    try:
        container = {"command": ["sleep", "300"], "resources": {"limits": {gpu: "1"}}}
        namespace.apply(_deployment("gpu", 9, container, terminationGracePeriodSeconds=0))
        namespace.wait_for("deployment", "gpu", lambda found: found["status"].get("readyReplicas") == 8, 60, "8 pods")
        namespace.wait_until(
            lambda: _waiting_for(namespace, gpu) == [True], 30, "a ninth pod that is told why it waits"
        )
    finally:
        set_node_capacity({gpu: None})


@pytest.mark.cluster
def test_fake_nodes_take_only_pods_that_ask_for_gpus_and_leave_the_real_node_alone(
    namespace: Kubectl, tmp_path: Path
) -> None:
    product = {"nvidia.com/gpu.product": "fake"}
    with start_kwok(tmp_path):
        names = add_fake_nodes("fake", 3, product, {GPU: 8})
        try:
            wait_for_nodes(names)
            container = {"resources": {"limits": {GPU: "2"}}}
            namespace.apply([_deployment("fake", 12, container, nodeSelector=product), *_web("real", 1)])
            namespace.wait_available("fake", 60)
            namespace.wait_available("real", 60)
            assert {pod["spec"]["nodeName"] for pod in namespace.items("pod", "app=fake")} == set(names)
            assert {pod["spec"]["nodeName"] for pod in namespace.items("pod", "app=real")} == {NODE_NAME}
        finally:
            remove_nodes(names)


@pytest.mark.cluster
def test_the_audit_log_names_who_wrote_what(namespace: Kubectl) -> None:
    namespace.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}})
    path = Path(os.environ["HOLDFAST_AUDIT_LOG"])

    def is_logged() -> bool:
        # The last line may be half written.
        events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return any(event["objectRef"].get("name") == "audited" and event["verb"] == "create" for event in events)

    namespace.wait_until(is_logged, 10, "the audit log")


@contextmanager
def _started_cluster(command: str) -> Iterator[tuple[Layout, subprocess.Popen[str]]]:
    layout = Layout(f"test-{secrets.token_hex(4)}")
    arguments = ["run", "--provider", "embedded", "--name", layout.name, "--", "sh", "-c", command]
    process = subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster", *arguments],
        cwd=_REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield layout, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _leftovers(layout: Layout) -> list[str]:
    """Processes, mounts, control groups and files that carry the cluster's name."""
    processes = []
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command_line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if layout.name in text:
            processes.append(text)
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if layout.name in line]
    # os.walk, unlike glob, does not mind folders that the kernel takes away meanwhile.
    groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if layout.name in folder]
    files = [str(path) for path in (layout.work, layout.lock) if path.exists()]
    return processes + mounts + groups + files


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_when_a_run_with_pods_is_ended_by_a_signal(number: signal.Signals) -> None:
    settings = [Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/panic")]
    before = [path.read_text() for path in settings]
    pod = "kubectl run web --image holdfast.local/holdfast:dev --command -- sleep 300"
    ready = f"kubectl wait --for=condition=Ready --timeout={patient(60.0):.0f}s pod/web"
    with _started_cluster(f"{pod} && {ready} && echo running && exec sleep 300") as (layout, process):
        assert process.stdout is not None
        seen: list[str] = []
        while not seen or seen[-1] != "running\n":
            seen.append(process.stdout.readline())
            assert seen[-1], seen
        assert any(layout.name in text for text in _leftovers(layout))
        process.send_signal(number)
        process.wait(patient(60.0))
        deadline = time.monotonic() + patient(30.0)
        while (left := _leftovers(layout)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []
    assert [path.read_text() for path in settings] == before


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_two_clusters_at_once_do_not_see_each_other_and_pass_on_exit_codes() -> None:
    command = "kubectl create namespace {0} && sleep 3 && test $(kubectl get ns -o name | grep -c own-) = 1 && exit {1}"
    with (
        _started_cluster(command.format("own-a", 3)) as (_, first),
        _started_cluster(command.format("own-b", 4)) as (
            _,
            second,
        ),
    ):
        outputs = [process.communicate(timeout=patient(120.0))[0] for process in (first, second)]
        assert [first.returncode, second.returncode] == [3, 4], outputs
