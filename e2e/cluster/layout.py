"""Names, addresses and paths of one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cache import cache_folder

BRIDGE = "hfk0"
NODE_NAME = "holdfast-1"
NODE_ADDRESS = "10.244.0.1"
POD_NETWORK = "10.244.0.0/24"
FIRST_POD_ADDRESS = "10.244.0.10"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
API_SERVER = f"https://{NODE_ADDRESS}:6443"
CLUSTER_DOMAIN = "cluster.local"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of the cluster of this name lie while it runs."""

    name: str

    @property
    def work(self) -> Path:
        return cache_folder() / "runs" / self.name

    @property
    def lock(self) -> Path:
        return cache_folder() / "runs" / f"{self.name}.lock"

    @property
    def state(self) -> Path:
        return self.work / "state.json"

    @property
    def ready(self) -> Path:
        """Exists once the cluster is ready for its command."""
        return self.work / "ready"

    @property
    def logs(self) -> Path:
        return self.work / "logs"

    @property
    def pod_logs(self) -> Path:
        return self.work / "pod-logs"

    @property
    def audit_log(self) -> Path:
        """One JSON line per write request that reached the API server."""
        return self.logs / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        return self.work / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.work / "certificates"

    @property
    def configuration(self) -> Path:
        return self.work / "configuration"

    @property
    def control_group(self) -> str:
        """The parent of all pods' control groups, an own one so that clusters do not share any."""
        return f"/holdfast-{self.name}"
