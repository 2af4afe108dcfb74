"""Engines of others, whose series are as they please, asked of a real Prometheus. Needs what test_promql.py needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.tsdb import NOW, Engine, Reader, Tsdb, constant, ready, scrapes, steady
from holdfast.domain.signals import SignalState

pytestmark = pytest.mark.cluster


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


async def test_a_new_engine_whose_series_differ_by_a_label_of_ours_silences_nobody(reader: Reader) -> None:
    tsdb, lately = Tsdb(), scrapes(NOW - 25, NOW)
    Engine(tsdb).scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    odd = Engine(tsdb, "odd-0", born_at=NOW - 30.0, namespace="theirs", holdfast_service="odd")
    odd.scraped(lately)
    for name in ("a", "b"):
        odd.add("prompt_tokens_total", lately, constant(5.0), metric=name)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
