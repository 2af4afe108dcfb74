"""The LeaderWorkerSet controller as its makers build it, as a process next to the control plane."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.certificates import Authority, KeyPair
from e2e.cluster.toolset import LWS
from e2e.kubectl import Kubectl
from e2e.ports import free_port

_ADDRESS = "127.0.0.1"
_SET_NAME = "leaderworkerset.sigs.k8s.io/name"


@contextmanager
def group_set_controller(folder: Path) -> Iterator[None]:
    """Let the API server know LeaderWorkerSets, and run their controller, inside the block; its log goes to `folder`.

    Raises FileNotFoundError where it is not built.
    """
    program, kubectl, port = LWS.built_program("cmd"), Kubectl(), free_port()
    authority = Authority(folder)
    pair = authority.server("tls", "lws-webhook", ["localhost"], [_ADDRESS])
    (folder / "lws.yaml").write_text(yaml.safe_dump(_settings(pair, folder, port)))
    types = [yaml.safe_load(path.read_text()) for path in sorted(LWS.program("bases").glob("*.yaml"))]
    for each in types:
        kubectl.run("apply", "--server-side", "--filename", "-", stdin=yaml.safe_dump(each))
    for each in types:
        kubectl.wait_established(each["metadata"]["name"])
    webhooks = list(_webhooks(authority.certificate, port))
    command = [program, f"--config={folder}/lws.yaml", f"--kubeconfig={os.environ['KUBECONFIG']}"]
    with (folder / "lws.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        kubectl.wait_until(lambda: _listens(port), 30, "the webhooks of the LeaderWorkerSet controller")
        kubectl.apply(webhooks)
        yield
    finally:
        for each in (*webhooks, *types):
            kubectl.delete(each["kind"], each["metadata"]["name"])
        process.terminate()
        process.wait()


def _settings(pair: KeyPair, folder: Path, port: int) -> dict[str, Any]:
    """One instance without a Service in the cluster, whose certificate is ours."""
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port, "certDir": str(_certificates(pair, folder))},
        "health": {"healthProbeBindAddress": f"{_ADDRESS}:{free_port()}"},
        "metrics": {"bindAddress": f"{_ADDRESS}:{free_port()}"},
    }


def _certificates(pair: KeyPair, folder: Path) -> Path:
    """The folder with the pair under the names that the controller looks for."""
    (target := folder / "webhook").mkdir()
    (target / "tls.crt").symlink_to(pair.certificate)
    (target / "tls.key").symlink_to(pair.key)
    return target


def _webhooks(authority: Path, port: int) -> Iterator[dict[str, Any]]:
    """The makers' webhooks, asked by address; of pods only those of a set, as in the makers' installation."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    text = (LWS.program("webhook") / "manifests.yaml").read_text()
    for document in yaml.safe_load_all(text):
        document["metadata"]["name"] = f"lws-{document['metadata']['name']}"
        for hook in document["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://{_ADDRESS}:{port}{path}", "caBundle": bundle}
            if any("pods" in rule["resources"] for rule in hook["rules"]):
                hook["objectSelector"] = {"matchExpressions": [{"key": _SET_NAME, "operator": "Exists"}]}
        yield document


def _listens(port: int) -> bool:
    try:
        socket.create_connection((_ADDRESS, port), timeout=2.0).close()
    except OSError:
        return False
    return True
