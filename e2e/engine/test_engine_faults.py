"""A fault in the plugin itself: the engine serves on as stock vLLM and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.engine.server import Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LIMITS, mode
from e2e.vllm.environment import Environment

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("fault", ["order.take", "loop.updated"])
def test_an_engine_whose_plugin_fails_serves_on_as_stock(
    fault: str,
    vllm: Environment,
    plugin: Path,
    prompts: list[Prompt],
    stock_answers: list[list[int] | None],
    tmp_path: Path,
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    settings = Settings(vllm, tmp_path, plugin, "broken.Broken", variables={"HOLDFAST_TEST_FAULT": fault})
    with Server(settings) as server:
        answers = server.complete_all(prompts)
        again = server.complete_all(prompts[:10])
        assert mode(server) == "off"
        assert server.samples("holdfast:requests_arrived_total")[()] > 0
        assert "holdfast: off, the engine goes on as stock vLLM: RuntimeError: a fault in" in server.log
    expected = [*stock_answers, *stock_answers[:10]]
    assert all(ours == stock for ours, stock in zip([*answers, *again], expected, strict=True) if stock is not None)


def test_without_limits_the_engine_is_stock_and_waits_for_them(
    vllm: Environment, plugin: Path, prompts: list[Prompt], tmp_path: Path
) -> None:
    with Server(Settings(vllm, tmp_path, plugin)) as server:
        server.complete_all(prompts[:10])
        assert mode(server) == "waiting"
        assert server.samples("holdfast:requests_arrived_total")[()] == 0
        server.limits.write_text(LIMITS.to_json())
        server.wait_for(lambda: mode(server) == "active", 3.0, "active plugin")
