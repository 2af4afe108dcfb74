"""The cases of test_promql and its kin, asked of VictoriaMetrics: Prometheus' API, and a PromQL of its own.

`DIFFERS` is the list of what that store does otherwise; docs/operations.md says what it means for users.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.test_live_scrapes import h100, reading, until
from e2e.test_promql import *  # noqa: F403
from e2e.test_promql_facts import *  # noqa: F403
from e2e.test_promql_hangs import *  # noqa: F403
from e2e.test_promql_lags import *  # noqa: F403
from e2e.test_promql_plugins import *  # noqa: F403
from e2e.tsdb import SCRAPE_CONFIG, TARGET, Exporter, Reader, stored_by_victoria_metrics, victoria_metrics

pytestmark = pytest.mark.cluster

DIFFERS = {
    "test_what_happened_in_a_gap_is_no_burst": "increase() begins at the last sample before the interval, up to 5 min",
    "test_a_life_long_counter_that_prometheus_sees_for_the_first_time_is_no_burst": "delta() begins at zero",
    "test_every_signal_of_vllm_0_32_finds_its_place": "counts are whole: nothing is extrapolated to fractions",
    "test_nan_and_infinity_at_either_end_of_the_interval_are_named": "NaN is no sample, and -Inf a reset",
    "test_a_gauge_that_is_no_number_is_named": "NaN is no sample",
}


@pytest.fixture
async def reader(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Reader]:
    name = request.node.originalname
    if name in DIFFERS and "[newest-inf]" not in request.node.name and "[oldest-inf]" not in request.node.name:
        request.applymarker(pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    reader = Reader(tmp_path, stored_by_victoria_metrics)
    yield reader
    await reader.close()


async def test_live_scrapes_are_fresh_with_a_short_latency_offset(tmp_path: Path) -> None:
    exporter, config = Exporter(), tmp_path / "scrape.yml"
    config.write_text(SCRAPE_CONFIG + TARGET % {"address": exporter.address, "pod": "chat-0"})
    flags = (f"-promscrape.config={config}", "-search.latencyOffset=1s")
    with victoria_metrics(tmp_path, *flags) as url:
        async with reading(url) as source:
            seen = await until(source, lambda traffic: traffic.fresh and h100(traffic).finished > 0.0, "chat-0")
    exporter.close()
    assert h100(seen).ttft_count == h100(seen).finished
    assert h100(seen).ttft_within == pytest.approx(0.9 * h100(seen).finished)
