"""Which routes of vLLM generate: one table, held against the releases that the plugin supports."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.vllm.environment import Environment
from e2e.vllm.sources import other_release
from holdfast_engine.apiserver.routes import GENERATING, WITH_KEY

pytestmark = pytest.mark.vllm

TOKENIZE = """
/tokenize /detokenize /v1/messages/count_tokens /abort_requests /inference/v1/abort_requests
/v1/chat/completions/render /v1/chat/completions/derender /v1/completions/render /v1/completions/derender
/v1/messages/render /v1/responses/render /cohere/v2/chat/render /v1/responses/{response_id}/cancel
"""
SCORE = "/pooling /classify /score /v1/score /rerank /v1/rerank /v2/rerank /v1/embeddings /v2/embed"
STEER = """
/v1/load_lora_adapter /v1/unload_lora_adapter /start_profile /stop_profile /scale_elastic_ep /is_scaling_elastic_ep
/fault_tolerance/apply /ping /sleep /wake_up /release_kv_cache_memory /collective_rpc /reset_prefix_cache /pause /resume
/reset_mm_cache /reset_encoder_cache /init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update
/start_draft_weight_update /update_weights /finish_weight_update /update_weight_version /weight_checker
"""
ELSEWISE = frozenset([*TOKENIZE.split(), *SCORE.split(), *STEER.split()])
"""POST routes that give the engine nothing to generate."""

_ROUTES = """
import json, sys
from types import SimpleNamespace
from fastapi import FastAPI
from vllm.entrypoints.launchers.api_server.routers import register_api_routers
app = FastAPI()
app.state.args = SimpleNamespace(tokens_only=False, enable_scale_out=True)
register_api_routers(app.state.args, app, ("generate", "render", "transcription"), None)
def found(routes):
    for route in routes:
        if "POST" in (getattr(route, "methods", None) or ()):
            yield route.path
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        yield from found(inner.routes if inner is not None else ())
print(json.dumps(sorted(set(found(app.routes)))))
"""


def posts(package: Path) -> Iterator[str]:
    """The POST routes that a release's files declare, whatever it was started for."""
    for file in sorted((package / "entrypoints").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                path, name = node.args[0], node.func.attr
                declares = name == "post" or (name == "add_api_route" and "'POST'" in ast.dump(node))
                if declares and isinstance(path, ast.Constant) and isinstance(path.value, str):
                    yield path.value


def test_every_post_route_of_the_supported_releases_is_known(vllm: Environment) -> None:
    installed, other = set(posts(vllm.packages / "vllm")), set(posts(other_release()))
    assert len(installed) > 40
    assert len(other) > 40
    assert (installed | other) - set(GENERATING) == ELSEWISE
    assert set(GENERATING) <= installed | other


def test_the_app_of_the_installed_release_has_no_other_routes(vllm: Environment) -> None:
    path = vllm.variables()["PYTHONPATH"]
    command = [sys.executable, "-c", _ROUTES]
    done = subprocess.run(
        command, env={**os.environ, **vllm.variables(), "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    routes = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"} <= routes
    assert routes - set(GENERATING) <= ELSEWISE


def test_the_paths_for_which_the_release_asks_for_its_key(vllm: Environment) -> None:
    file = vllm.packages / "vllm/entrypoints/serve/middleware/authenticate.py"
    assert f"GUARDED_PREFIX = {WITH_KEY!r}".replace("'", '"') in file.read_text()
