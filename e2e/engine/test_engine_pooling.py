"""An engine that generates no text: the middleware of our pods ends it, and its last line says why."""

from __future__ import annotations

import contextlib
import os
import urllib.error
from pathlib import Path

import pytest

from e2e.engine.server import Server, Settings
from e2e.patience import patient
from e2e.vllm.environment import REPOSITORY, Environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_POD_FILES = REPOSITORY / "operator" / "holdfast" / "render" / "pod"
_POOLING = ("--runner=pooling", "--convert=embed", "--middleware=holdfast_middleware.ReadyAndBalance")


def test_an_engine_for_embeddings_ends_with_a_sentence_within_a_minute(vllm: Environment, tmp_path: Path) -> None:
    path = os.pathsep.join([vllm.variables()["PYTHONPATH"], str(_POD_FILES)])
    variables = {"PYTHONPATH": path, "HOLDFAST_DRAIN_FILE": str(tmp_path / "draining")}
    with Server(Settings(vllm, tmp_path, arguments=_POOLING, variables=variables)) as server:

        def is_ended() -> bool:
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                server.get("/holdfast/ready")
            return "engine unsupported: /v1/completions answered 404" in server.log

        server.wait_for(is_ended, patient(20.0), "the end of the engine")
