"""A fault in the plugin itself: the engine serves on as stock vLLM and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.engine.conftest import Crowd
from e2e.engine.server import ADMISSION, Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LIMITS, mode
from e2e.vllm.environment import Environment

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("fault", ["order.take", "loop.updated"])
def test_a_server_whose_plugin_fails_under_load_serves_on_as_stock(
    fault: str, vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    settings = Settings(vllm, tmp_path, plugin, "broken.Broken", (ADMISSION,), {"HOLDFAST_TEST_FAULT": fault})
    with Server(settings) as server:
        answers, again = server.complete_all(crowd.prompts), server.complete_all(crowd.prompts[:10])
        assert mode(server) == "off"
        assert server.samples("holdfast:requests_arrived_total")[()] > 0
        assert "holdfast: off, the engine goes on as stock vLLM: RuntimeError: a fault in" in server.log
    crowd.assert_same(answers)
    crowd.assert_same(again)


def test_without_limits_the_engine_is_stock_and_waits_for_them(
    vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    with Server(Settings(vllm, tmp_path, plugin)) as server:
        server.complete_all(crowd.prompts[:10])
        assert mode(server) == "waiting"
        assert server.samples("holdfast:requests_arrived_total")[()] == 0
        server.limits.write_text(LIMITS.to_json())
        server.wait_for(lambda: mode(server) == "active", 3.0, "active plugin")


def test_an_engine_that_vllm_runs_with_another_scheduler_keeps_that_one(
    vllm: Environment, plugin: Path, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    prompt = Prompt(range(3, 40), 4)
    drafts = '--speculative-config={"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":2}'
    with Server(Settings(vllm, tmp_path, plugin, arguments=(drafts, ADMISSION))) as server:
        assert len(server.complete(prompt)) == prompt.output_tokens
        assert mode(server) == "off"
        assert "holdfast: off, this engine wants vLLM's Scheduler" in server.log
