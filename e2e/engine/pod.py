"""A real vLLM with its Rust front end, started as a pod starts it: by the launcher, beside the files that it mounts."""

from __future__ import annotations

import sys

from e2e.engine.server import Server, Settings
from e2e.ports import free_port
from e2e.vllm.sources import rust_front_end
from holdfast.render.podfiles import load_plugin, load_pod_files

_OF_THE_POD = ("/metrics", "/holdfast/ready", "/health")


class RustPod(Server):
    """Its metrics and probes are answered on the port of the pod, requests by the front end."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._pod_port = free_port()
        self._mounted = settings.folder / "mounted"
        self.drain_file = settings.folder / "draining"

    def mount(self) -> None:
        """Write what the operator's ConfigMap holds."""
        self._mounted.mkdir(parents=True, exist_ok=True)
        for name, text in load_pod_files().items():
            (self._mounted / name).write_text(text)
        (self._mounted / "holdfast_engine.zip").write_bytes(load_plugin())

    def _port_of(self, path: str) -> int:
        return self._pod_port if path in _OF_THE_POD else self._port

    def _program(self) -> tuple[str, ...]:
        self.mount()
        return sys.executable, str(self._mounted / "launcher.py")

    def _variables(self) -> dict[str, str]:
        return {
            **super()._variables(),
            "VLLM_USE_RUST_FRONTEND": "1",
            "VLLM_RUST_FRONTEND_PATH": str(rust_front_end()),
            "HOLDFAST_POD_PORT": str(self._pod_port),
            "HOLDFAST_DRAIN_FILE": str(self.drain_file),
            "HOLDFAST_TERMINATION_LOG": str(self.folder / "termination-log"),
            **self._settings.variables,
        }
