"""The plugin where vLLM itself is in trouble: too little memory, too many requests, clients that hang up."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from e2e.engine.conftest import Crowd
from e2e.engine.server import Prompt, Server, Settings
from e2e.engine.test_engine_plugin import arrived, counts, is_conserved, mode
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.rules import Limits, Objectives

pytestmark = pytest.mark.vllm

# 1600 tokens of KV cache for requests of up to 440: sequences are preempted, and start again.
_SMALL_CACHE = ("--block-size=32", "--num-gpu-blocks-override=50")
_TIGHT = Limits(version=1, objectives=Objectives(ttft_seconds=0.4, tpot_seconds=0.05))


@pytest.mark.parametrize("caching", ["--enable-prefix-caching", "--no-enable-prefix-caching"])
def test_preempted_late_and_abandoned_requests_change_no_answer(
    caching: str, vllm: Environment, plugin: Path, crowd: Crowd, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(_TIGHT.to_json())
    with Server(Settings(vllm, tmp_path, plugin, arguments=(*_SMALL_CACHE, caching))) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            long = Prompt(crowd.prompts[0].tokens, 900)
            abandoned = [pool.submit(server.abandon, long, lambda: arrived(server) >= 24) for _ in range(4)]
            server.wait_for(lambda: arrived(server) == 4, 10, "requests that clients will abandon")
            answers = server.complete_all(crowd.prompts, at_once=32)
            assert all(each.result() for each in abandoned), "an answer was there"
        server.wait_for(lambda: counts(server)["unjudged"] == 0, 10, "judgement of all requests")
        found = counts(server)
        preemptions = server.samples("vllm:num_preemptions_total")[()]
        print(found, server.samples("holdfast:requests_bad_total"), f"{preemptions:.0f} preemptions")
        assert mode(server) == "active"
    assert preemptions > 0
    assert found["arrived"] == len(crowd.prompts) + 4
    assert found["bad"] > 0
    assert is_conserved(found)
    crowd.assert_same(answers)
