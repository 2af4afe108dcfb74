"""A real vLLM behind each of its front ends, started as a pod starts it: by the launcher, beside its files."""

from __future__ import annotations

import enum
import sys
import urllib.error
from dataclasses import replace

from e2e.engine.server import Server, Settings
from e2e.ports import free_port
from e2e.vllm.sources import rust_front_end
from holdfast.render.podfiles import load_plugin, load_pod_files

READY = "/holdfast/ready"
_OF_THE_POD = ("/metrics", READY, "/health")
_MIDDLEWARE = "--middleware=holdfast_middleware.ReadyAndBalance"


class FrontEnd(enum.Enum):
    """What serves requests; the value is what the engine says of it."""

    PYTHON = "Python"
    SEVERAL = "Python, 2 processes"
    RUST = "Rust"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of vLLM, as the operator renders them."""
        several = ("--api-server-count=2",) if self is FrontEnd.SEVERAL else ()
        return () if self is FrontEnd.RUST else (_MIDDLEWARE, *several)


class Pod(Server):
    """Where other processes serve requests, metrics and probes are answered on the port of the pod."""

    def __init__(self, settings: Settings, front_end: FrontEnd) -> None:
        super().__init__(replace(settings, arguments=(*settings.arguments, *front_end.arguments)))
        self.front_end = front_end
        self._pod_port = self._port if front_end is FrontEnd.PYTHON else free_port()
        self._mounted = settings.folder / "mounted"
        self.drain_file = settings.folder / "draining"

    def status_of(self, path: str) -> tuple[int, str]:
        """The status of the answer, and its text."""
        try:
            return 200, self.get(path)
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode()

    def is_ready(self) -> bool:
        """Whether its readiness probe succeeds."""
        return self.status_of(READY)[0] == 200

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
        rust = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(rust_front_end())}
        return {
            **super()._variables(),
            **(rust if self.front_end is FrontEnd.RUST else {}),
            **({} if self.front_end is FrontEnd.PYTHON else {"HOLDFAST_POD_PORT": str(self._pod_port)}),
            "HOLDFAST_DRAIN_FILE": str(self.drain_file),
            "HOLDFAST_TERMINATION_LOG": str(self.folder / "termination-log"),
            **self._settings.variables,
        }
