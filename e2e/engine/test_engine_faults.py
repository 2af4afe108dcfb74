"""A fault in the plugin itself: the engine serves on as stock vLLM and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.conftest import Crowd
from e2e.engine.everyhook import FAULTS
from e2e.engine.server import ADMISSION, Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LIMITS, mode
from e2e.vllm.environment import Environment

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def outcomes(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one engine in one process did with a fault in each hook, one after the other."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "engine-limits").write_text(LIMITS.to_json())
    script = Path(__file__).with_name("everyhook.py")
    variables = {
        **vllm.variables(),
        "PYTHONPATH": os.pathsep.join([str(plugin), vllm.variables()["PYTHONPATH"]]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HOLDFAST_ENGINE_FOLDER": str(folder),
        "HOLDFAST_ENGINE_LIMITS": str(folder / "engine-limits"),
    }
    result = folder / "outcomes.json"
    done = subprocess.run(
        [sys.executable, str(script), str(vllm.model), str(result)],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_hook_leaves_an_engine_that_serves_as_stock_and_says_so(
    fault: str, outcomes: dict[str, Any]
) -> None:
    found = outcomes[fault]
    assert found["reached"], "the fault was never come across"
    assert found["mode"] == "OFF"
    assert found["said"] == f"holdfast: off, the engine goes on as stock vLLM: RuntimeError: a fault in {fault}"
    assert found["finished"] == found["asked"]
    assert found["compared"] >= 0.75 * found["asked"]
    assert found["same"], "answers differ from those without a fault"
    assert found["stock_queue"]
    assert found["stock_limits"]


def test_a_server_whose_plugin_fails_under_load_serves_on_as_stock(
    vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    settings = Settings(vllm, tmp_path, plugin, "broken.Broken", (ADMISSION,), {"HOLDFAST_TEST_FAULT": "order.take"})
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
