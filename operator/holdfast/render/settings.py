"""What the operator's administrator decides for all rendered objects."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.api.llmservice import LLMServiceSpec
from holdfast.render.plugin import ARCHIVE
from holdfast.rendered.names import Manifest, short_hash


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Defaults suit most clusters.

    `pod_files` are the files mounted at /holdfast by name, `plugin` is the zip next to them (see `podfiles`), empty for
    none. A change of any setting reaches running pods with their own next rollout only.
    """

    pod_files: Mapping[str, str]
    plugin: bytes = field(default=b"", repr=False)
    scrape_interval: str = "15s"
    prestop_seconds: int = 15
    """Time for kube-proxies and gateways to take a leaving pod out; KServe's figure."""
    startup_seconds: int = 1800
    """Longest start before a container is given up: hundreds of gigabytes from a slow registry."""
    connection_close_share: float = 0.1
    platform_assigns_ids: bool = False
    """No pod asks for a user or group: those of OpenShift must be in the range of their namespace."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus selects its PodMonitors."""
    activator_image: str = ""
    """Image of this program; without it nothing holds requests, and no service goes without replicas."""
    _plain: Manifest = field(init=False, repr=False)
    _whole: Manifest = field(init=False, repr=False)
    _hashes: tuple[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plain = {"data": dict(self.pod_files)}
        # One text for all services: it is the largest thing that is rendered.
        whole = {**plain, "binaryData": {ARCHIVE: base64.b64encode(self.plugin).decode()}} if self.plugin else plain
        object.__setattr__(self, "_plain", plain)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_hashes", (_hash(plain), _hash(whole)))

    def ids(self, user: int, *fields: str) -> dict[str, int]:
        """`user` for each of these fields of a security context; empty where the platform assigns ids."""
        return {} if self.platform_assigns_ids else dict.fromkeys(fields, user)

    def startup_seconds_of(self, spec: LLMServiceSpec) -> float:
        """Longest start of this service's engines."""
        own = spec.engine.startup_timeout_seconds
        return self.startup_seconds if own is None else own

    def mounted_files(self, spec: LLMServiceSpec) -> Manifest:
        """The content of the ConfigMap that the pods of a service mount at /holdfast."""
        return self._plain if spec.engine.plugin == "Disabled" else self._whole

    def mounted_files_hash(self, spec: LLMServiceSpec) -> str:
        """Changes with any of these files."""
        return self._hashes[spec.engine.plugin != "Disabled"]


def _hash(content: Manifest) -> str:
    return short_hash(content if "binaryData" in content else content["data"])
