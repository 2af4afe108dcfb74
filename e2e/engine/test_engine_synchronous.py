"""The plugin in an engine of two processes, each with half of the layers.

vLLM schedules synchronously on every CPU, whatever it is told: all tests of this folder have such engines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.engine.conftest import Crowd, stock_crowd
from e2e.engine.server import Server, Settings
from e2e.engine.test_engine_plugin import LIMITS, counts, mode
from e2e.ports import free_port
from e2e.vllm.environment import Environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

# With --enforce-eager, a CPU rank behind the first one has no buffer for what the first one sends.
_COMPILED = '--compilation-config={"mode":2,"backend":"eager","cudagraph_mode":"NONE"}'
_TWO_RANKS = ("--pipeline-parallel-size=2", "--nnodes=2", "--distributed-executor-backend=mp", "--no-enforce-eager")
_ON_ONE_HOST = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


@contextlib.contextmanager
def pipeline(settings: Settings) -> Iterator[Server]:
    """An engine of two processes, each with half of the layers."""
    settings.folder.mkdir()
    (settings.folder / "engine-limits").write_text(LIMITS.to_json())
    shared = (*_TWO_RANKS, _COMPILED, "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    first = replace(settings, arguments=(*shared, "--node-rank=0"), variables=_ON_ONE_HOST)
    second = replace(first, folder=settings.folder / "second", arguments=(*shared, "--node-rank=1", "--headless"))
    with Server(second), Server(first) as server:
        yield server


def test_an_engine_with_pipeline_parallelism_answers_as_stock(
    vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    with pipeline(Settings(vllm, tmp_path / "stock")) as server:
        stock = stock_crowd(server, crowd.prompts[:12])
    with pipeline(Settings(vllm, tmp_path / "ours", plugin)) as server:
        stock.assert_same(server.complete_all(stock.prompts))
        assert mode(server) == "active"
        assert counts(server)["good"] == len(stock.prompts)
