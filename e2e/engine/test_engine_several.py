"""Several engines behind several API servers in one pod, which answers for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.engine.pod import FrontEnd, Pod
from e2e.engine.server import Prompt, Settings
from e2e.engine.test_engine_plugin import LIMITS
from e2e.vllm.environment import Environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_ON_ONE_HOST = {"VLLM_HOST_IP": "127.0.0.1"}


def by_engine(page: str, name: str) -> dict[str, float]:
    """The value of each engine."""
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {sample.labels["engine"]: sample.value for sample in samples if sample.name == name}


def test_counters_of_all_engines_are_on_the_page_of_the_pod(vllm: Environment, plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "engine-limits").write_text(LIMITS.to_json())
    prompts = [Prompt(list(range(number, number + 20)), 8) for number in range(24)]
    settings = Settings(
        vllm, tmp_path, plugin, arguments=("--data-parallel-size=2",), variables=_ON_ONE_HOST, spawns=True
    )
    with Pod(settings, FrontEnd.SEVERAL) as server:
        server.complete_all(prompts, at_once=8)
        page = server.get("/metrics")
        arrived, good = (by_engine(page, f"holdfast:requests_{what}_total") for what in ("arrived", "good"))
        assert set(arrived) == {"0", "1"}
        assert sum(arrived.values()) == sum(good.values()) == len(prompts)
