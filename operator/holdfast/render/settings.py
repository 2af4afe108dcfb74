"""What the operator's administrator decides for all rendered objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.render.names import short_hash


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Defaults suit most clusters.

    `pod_files` are the files mounted at /holdfast by name (see `podfiles.load_pod_files`). A change of any setting
    reaches running pods with their own next rollout only.
    """

    pod_files: Mapping[str, str]
    scrape_interval: str = "15s"
    prestop_seconds: int = 15
    """Time for kube-proxies and gateways to take a leaving pod out; KServe's figure."""
    startup_seconds: int = 1800
    """Longest start before a container is given up: hundreds of gigabytes from a slow registry."""
    connection_close_share: float = 0.1
    user_id: int = 2000
    """User and group of the engine; any but 0, images need not know it."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus selects its PodMonitors."""
    pod_files_hash: str = field(init=False)
    """Changes with any of the mounted files."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pod_files_hash", short_hash(dict(self.pod_files)))
