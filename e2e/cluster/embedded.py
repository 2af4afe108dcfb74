"""The cluster made of the real parts, all of them processes of this machine in private namespaces."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import binaries, cgroups, components, machine, packages, settings
from e2e.cluster.apiclient import ApiClient
from e2e.cluster.images import PAUSE_IMAGE, fast_images, slow_images
from e2e.cluster.layout import CONTAINERD_SOCKET, NODE_NAME, Layout
from e2e.cluster.processes import Processes, StartError
from e2e.cluster.seed import import_archive, make_seed, plant
from e2e.cluster.toolset import CONTAINERD, EMBEDDED_TOOLS, HELM, KUBERNETES, PROMETHEUS

_START_SECONDS = 120.0
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


class EmbeddedProvider:
    """Etcd, the control plane, containerd and one kubelet; `start` expects to be inside the namespaces."""

    name = "embedded"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._processes = Processes(
            layout.logs, {**os.environ, "PATH": f"{CONTAINERD.folder}:{packages.system_path()}"}
        )

    def build(self) -> None:
        """Build programs and images that are missing and install the distribution's packages."""
        packages.install_packages()
        binaries.build(EMBEDDED_TOOLS)
        make_seed(slow_images())
        fast_images()

    def start(self) -> Path:
        """Start all parts, import the images and return once the node is Ready."""
        layout, processes = self._layout, self._processes
        machine.prepare(layout)
        identities = components.make_identities(layout)
        self._write_settings(identities)
        cgroups.create(layout.control_group)
        processes.start("etcd", components.etcd(layout))
        plant(slow_images(), layout.work / "containerd")
        processes.start("containerd", components.containerd(layout))
        processes.start("api-server", components.api_server(layout, identities))
        processes.wait_until("containerd", Path(CONTAINERD_SOCKET).exists, _START_SECONDS)
        importing = _Importer([image.archive for image in fast_images()])
        importing.start()
        api = ApiClient(layout.kubeconfig)
        processes.wait_until("the API server", api.is_ready, _START_SECONDS)
        processes.start("controller-manager", components.controller_manager(layout, identities))
        processes.start("scheduler", components.scheduler(layout, identities))
        processes.start("kubelet", components.kubelet(layout, identities))
        processes.start("proxy", components.proxy(layout, identities))
        processes.start("dns", components.dns(layout))
        _wait_for_node(processes, api)
        importing.finish()
        return layout.kubeconfig

    def load_image(self, archive: Path) -> None:
        """Import one more image archive into the running node."""
        import_archive(archive)

    def stop(self) -> None:
        """Nothing to do: the end of the PID namespace ends every part."""

    def environment(self) -> dict[str, str]:
        """KUBECONFIG and the programs' folders; no proxies, for nothing outside can be reached."""
        folders = [str(tool.folder) for tool in (KUBERNETES, HELM, PROMETHEUS, CONTAINERD)]
        return {
            **without_proxies(os.environ),
            "KUBECONFIG": str(self._layout.kubeconfig),
            "PATH": ":".join([*folders, packages.system_path()]),
            "HOLDFAST_CLUSTER": self.name,
            "HOLDFAST_CLUSTER_NAME": self._layout.name,
            "HOLDFAST_AUDIT_LOG": str(self._layout.audit_log),
        }

    def _write_settings(self, identities: components.Identities) -> None:
        folder = self._layout.configuration
        cni = packages.cni_folder()
        if cni is None:
            raise StartError("the network plugins are missing: run python -m e2e.cluster build")
        files = {
            "containerd.toml": settings.containerd_settings(self._layout, PAUSE_IMAGE, cni),
            "cni/10-holdfast.conflist": settings.network_settings(self._layout),
            "kubelet.json": settings.kubelet_settings(self._layout, identities.authority, identities.kubelet),
            "Corefile": settings.dns_settings(self._layout),
            "audit-policy.json": settings.audit_policy(),
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)


class _Importer(threading.Thread):
    """Imports archives while the control plane comes up; `finish` brings its error to the caller."""

    def __init__(self, archives: list[Path]) -> None:
        super().__init__(daemon=True)
        self._archives = archives
        self._error: StartError | None = None

    def run(self) -> None:
        try:
            for archive in self._archives:
                import_archive(archive)
        except StartError as error:
            self._error = error

    def finish(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without HTTP proxies: they are outside, and everything to be reached is inside."""
    return {name: value for name, value in environment.items() if name.lower() not in _PROXY_VARIABLES}


def _wait_for_node(processes: Processes, api: ApiClient) -> None:
    """Wait for what a pod needs: a node, its service account and names that resolve."""

    def node_is_ready() -> bool:
        nodes = api.get(f"/api/v1/nodes?fieldSelector=metadata.name={NODE_NAME}")["items"]
        conditions = [condition for node in nodes for condition in node["status"].get("conditions", [])]
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def account_exists() -> bool:
        accounts = api.get("/api/v1/namespaces/default/serviceaccounts")["items"]
        return any(account["metadata"]["name"] == "default" for account in accounts)

    processes.wait_until("the node", node_is_ready, _START_SECONDS)
    processes.wait_until("the default service account", account_exists, _START_SECONDS)
    processes.wait_until("the name service", _names_resolve, _START_SECONDS)


def _names_resolve() -> bool:
    try:
        socket.getaddrinfo("kubernetes.default.svc", 443)
    except OSError:
        return False
    return True
