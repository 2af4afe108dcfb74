"""Several engines behind several API servers in one pod: whichever server is scraped tells of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.engine.server import Prompt, Server, Settings
from e2e.engine.test_engine_plugin import LIMITS
from e2e.vllm.environment import Environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_ON_ONE_HOST = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1"}
_TWO_OF_EACH = ("--data-parallel-size=2", "--api-server-count=2")


def by_engine(page: str, name: str) -> dict[str, float]:
    """The value of each engine."""
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {sample.labels["engine"]: sample.value for sample in samples if sample.name == name}


def test_counters_of_all_engines_are_on_the_page_of_each_server(
    vllm: Environment, plugin: Path, tmp_path: Path
) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    prompts = [Prompt(list(range(number, number + 20)), 8) for number in range(24)]
    with Server(Settings(vllm, tmp_path, plugin, arguments=_TWO_OF_EACH, variables=_ON_ONE_HOST)) as server:
        server.complete_all(prompts, at_once=8)
        for _ in range(8):  # the kernel spreads connections over the servers
            page = server.get("/metrics")
            arrived, good = (by_engine(page, f"holdfast:requests_{what}_total") for what in ("arrived", "good"))
            assert set(arrived) == {"0", "1"}
            assert sum(arrived.values()) == sum(good.values()) == len(prompts)
