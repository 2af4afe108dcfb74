"""Pools of one service: what their pods and series say of them, and what is asked about them."""

from __future__ import annotations

import pytest

from holdfast.domain.service import ServiceKey, key_of
from holdfast.observe.series import queries
from holdfast.observe.series.samples import Sample, service_key

CHAT = ServiceKey("prod", "chat")
PREFILL = ServiceKey("prod", "chat", "prefill")


@pytest.mark.parametrize(("key", "label"), [(CHAT, "chat"), (PREFILL, "chat.prefill")])
def test_a_label_tells_the_service_and_the_pool(key: ServiceKey, label: str) -> None:
    assert key.label == label
    assert key.labels == ("prod", label)
    assert str(key) == f"prod/{label}"
    assert key_of("prod", label) == key
    assert service_key(Sample({"namespace": "prod", "holdfast_service": label}, 1.0)) == key


def test_the_pool_that_answers_is_the_service_and_comes_before_its_others() -> None:
    assert ServiceKey("prod", "chat", "") == CHAT
    assert sorted([ServiceKey("prod", "code"), PREFILL, CHAT]) == [CHAT, PREFILL, ServiceKey("prod", "code")]


def test_a_query_about_a_service_asks_for_no_series_of_its_other_pool() -> None:
    query = queries.Query("waiting", lambda engines: engines.read("vllm:num_requests_waiting"))
    assert 'holdfast_service=~"chat"' in queries.narrowed(query, [CHAT]).promql
    assert 'holdfast_service=~"chat\\\\.prefill"' in queries.narrowed(query, [PREFILL]).promql
